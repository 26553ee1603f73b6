package redispermits_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
)

// A farServer is a server in memory whose answers take a while, for a bubble of synctest.
type farServer struct {
	rtt    time.Duration
	frozen bool // it answers nothing
	redis  *miniredis.Miniredis

	mu     sync.Mutex // guards the fields below
	opened int        // connections
	bytes  int        // that it was sent
}

func newFarServer(t *testing.T, rtt time.Duration) *farServer {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	permitstest.AddStruct(t, m)
	return &farServer{rtt: rtt, redis: m}
}

func (f *farServer) open(timeout time.Duration) *redispermits.Store {
	return redispermits.Open(redis.UniversalOptions{Addrs: []string{"redis:6379"}, Dialer: f.dial}, timeout)
}

// counts returns how many connections were opened, and how many bytes were sent, so far.
func (f *farServer) counts() (opened, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opened, f.bytes
}

func (f *farServer) dial(context.Context, string, string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened++
	if f.frozen {
		conn, _ := net.Pipe()
		return conn, nil
	}
	conn, err := f.redis.Dial()
	return f.late(conn), err
}

// A late connection delivers what is written after a time, and has room for it meanwhile.
type late struct {
	net.Conn
	server  *farServer
	written chan delivery
}

type delivery struct {
	text []byte
	at   time.Time
}

func (f *farServer) late(conn net.Conn) late {
	l := late{conn, f, make(chan delivery, 1000)}
	go func() {
		for d := range l.written {
			time.Sleep(time.Until(d.at))
			_, _ = conn.Write(d.text) // fails if the other side has closed the connection
		}
	}()
	return l
}

func (l late) Write(b []byte) (int, error) {
	l.server.mu.Lock()
	l.server.bytes += len(b)
	l.server.mu.Unlock()
	l.written <- delivery{bytes.Clone(b), time.Now().Add(l.server.rtt)}
	return len(b), nil
}

func (l late) Close() error {
	close(l.written)
	return l.Conn.Close()
}

// TestFewConnections: many allocations at the same time share a few connections, and a server that
// does not know the script is sent it once.
func TestFewConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newFarServer(t, time.Millisecond)
		store := server.open(time.Second)
		var callers sync.WaitGroup
		for i := range 200 {
			callers.Go(func() {
				_, err := permitstest.Allocate(t.Context(), store, fmt.Sprint("throttle:limit:{", i, "}"), request(1))
				assert.NoError(t, err)
			})
		}
		callers.Wait()
		require.NoError(t, store.Close())
		opened, sent := server.counts()
		assert.LessOrEqual(t, opened, 3)
		assert.LessOrEqual(t, sent, 300_000, "the script has 20,000")
	})
}

// TestOneCallWhileUnavailable: a server that does not answer gets one connection at a time from a
// process, whatever that has to send.
func TestOneCallWhileUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 200 * time.Millisecond
		server := newFarServer(t, 0)
		server.frozen = true
		store := server.open(timeout)
		var callers sync.WaitGroup
		for i := range 100 {
			callers.Go(func() {
				time.Sleep(time.Duration(i) * timeout / 20)
				start := time.Now()
				_, err := permitstest.Allocate(t.Context(), store, "throttle:limit:{a}", request(1))
				assert.Error(t, err)
				assert.LessOrEqual(t, time.Since(start), permits.MaxTimeout)
			})
		}
		callers.Wait()
		require.NoError(t, store.Close())
		opened, _ := server.counts() // go-redis may open another one yet
		assert.LessOrEqual(t, opened, 10, "in five time-outs")
	})
}

// TestJoinedCallsAreNotSlow: to a far server, a call takes hardly longer while many others are on
// their way, and is not cancelled with another one.
func TestJoinedCallsAreNotSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rtt, step = 100 * time.Millisecond, 2 * time.Millisecond
		server := newFarServer(t, rtt)
		store := server.open(time.Second)
		_, err := permitstest.Allocate(t.Context(), store, "throttle:limit:{first}", request(1))
		require.NoError(t, err) // and it knows the script
		cancelled, cancel := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		for i := range 500 {
			callers.Go(func() {
				time.Sleep(time.Duration(i) * step)
				ctx, start := t.Context(), time.Now()
				if i%2 == 0 {
					ctx = cancelled
				}
				_, err := permitstest.Allocate(ctx, store, fmt.Sprint("throttle:limit:{", i, "}"), request(1))
				if i%2 == 0 && err != nil {
					return
				}
				assert.NoError(t, err, "call %d", i)
				if i > 250 { // connections are open
					assert.LessOrEqual(t, time.Since(start), rtt+6*time.Millisecond, "call %d", i)
				}
			})
		}
		time.Sleep(400 * step)
		cancel()
		callers.Wait()
		require.NoError(t, store.Close())
		opened, _ := server.counts()
		assert.LessOrEqual(t, opened, 70, "connections")
	})
}
