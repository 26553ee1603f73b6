package services

import (
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// A Proxy forwards TCP connections to a service, and breaks them on demand.
type Proxy struct {
	Addr string // host:port, where clients connect

	upstream string
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	thawed  *sync.Cond
	conns   map[net.Conn]bool
	cut     bool
	frozen  bool
	latency time.Duration
	loss    float64 // of segments, which come resend later
	lost    int     // connections up to this one pass nothing
	last    int     // connection
}

// resend is how much later a segment comes that was lost: TCP's shortest timeout.
const resend = 200 * time.Millisecond

// NewProxy starts a proxy in front of upstream, a host:port. It ends with the test.
func NewProxy(t testing.TB, upstream string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		Addr: l.Addr().String(), upstream: upstream, listener: l, conns: map[net.Conn]bool{},
	}
	p.thawed = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close() // ends accept
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Cut drops all connections, with the bytes on their way, and each new one until Restore.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.conns {
		_ = c.Close() // ends its reads and writes
	}
	p.thawed.Broadcast()
}

// Freeze holds all bytes in both directions until Restore; connections stay open, and new ones are
// accepted.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

// Latency delays bytes that are sent from now on by d, in each direction.
func (p *Proxy) Latency(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = d
}

// Lose loses that part of the segments that are sent from now on, each once.
func (p *Proxy) Lose(part float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loss = part
}

// Abandon leaves the connections half-open: none of them passes anything any more, and neither
// side is told. New ones work.
func (p *Proxy) Abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = p.last
}

// Restore ends Cut, Freeze, Latency and Lose; the bytes that Freeze held are sent.
func (p *Proxy) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.frozen, p.latency, p.loss = false, false, 0, 0
	p.thawed.Broadcast()
}

// Connections returns how many connections there have been to the service.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

// serve forwards bytes both ways until one side ends or the proxy is cut.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	if !p.track(client) {
		return
	}
	defer p.forget(client)
	server, err := net.Dial("tcp", p.upstream)
	if err != nil {
		return
	}
	defer server.Close()
	if !p.track(server) {
		return
	}
	defer p.forget(server)
	p.mu.Lock()
	p.last++
	number := p.last
	p.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { p.pass(server, client, number) })
	wg.Go(func() { p.pass(client, server, number) })
	wg.Wait()
}

// track records an open connection for Cut; it returns false if the proxy is cut.
func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return false
	}
	p.conns[c] = true
	return true
}

func (p *Proxy) forget(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// pass sends the bytes of src to dst, when they are due, until either ends.
func (p *Proxy) pass(dst, src net.Conn, number int) {
	type segment struct {
		data []byte
		due  time.Time
	}
	held := make(chan segment, 64)
	p.wg.Go(func() {
		defer close(held)
		for {
			buf := make([]byte, 32<<10)
			n, err := src.Read(buf)
			if n > 0 {
				held <- segment{buf[:n], time.Now().Add(p.delay())}
			}
			if err != nil {
				return
			}
		}
	})
	defer dst.Close()
	for s := range held {
		time.Sleep(time.Until(s.due))
		p.waitWhileFrozen(number)
		if _, err := dst.Write(s.data); err != nil {
			_ = src.Close() // ends the reader
		}
	}
}

func (p *Proxy) delay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loss > 0 && rand.Float64() < p.loss {
		return p.latency + resend
	}
	return p.latency
}

func (p *Proxy) waitWhileFrozen(number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for (p.frozen || number <= p.lost) && !p.cut {
		p.thawed.Wait()
	}
}
