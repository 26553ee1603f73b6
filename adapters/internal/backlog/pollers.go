// Package backlog polls brokers for how many messages wait for the consumers of this process.
package backlog

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Interval is the time between two polls.
const Interval = time.Second

// Timeout bounds the requests of one poll.
const Timeout = 2 * time.Second

// A Poller asks one cluster for the backlogs of its members, and reports them.
type Poller[M any] interface {
	// Poll is called at once and then every [Interval], never twice at a time. ctx ends when the
	// last member leaves.
	Poll(ctx context.Context, members []M)
	// Close is called after the last Poll.
	Close()
}

// Pollers are the running Pollers of this process, one for each key: consumers of the same cluster
// share one. Any number of goroutines may use it at once; the zero value is ready.
type Pollers[K, M comparable] struct {
	mu      sync.Mutex
	running map[K]*running[M]
}

type running[M comparable] struct {
	members []M // guarded by Pollers.mu, and replaced as a whole: a Poll may read the last ones
	stop    context.CancelFunc
	done    chan struct{}
}

// Join adds a member to the Poller of key. Open opens that if there is none. The member calls
// leave once: with the last one the Poller ends, and leave returns when it has.
func (p *Pollers[K, M]) Join(key K, member M, open func() Poller[M]) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.running[key]
	if r == nil {
		ctx, stop := context.WithCancel(context.Background())
		r = &running[M]{stop: stop, done: make(chan struct{})}
		if p.running == nil {
			p.running = map[K]*running[M]{}
		}
		p.running[key] = r
		go p.run(ctx, r, open())
	}
	r.members = append(slices.Clip(r.members), member)
	return func() { p.leave(key, r, member) }
}

func (p *Pollers[K, M]) leave(key K, r *running[M], member M) {
	p.mu.Lock()
	r.members = slices.DeleteFunc(slices.Clone(r.members), func(m M) bool { return m == member })
	last := len(r.members) == 0
	if last {
		delete(p.running, key)
	}
	p.mu.Unlock()
	if last {
		r.stop()
		<-r.done
	}
}

func (p *Pollers[K, M]) run(ctx context.Context, r *running[M], poller Poller[M]) {
	defer close(r.done)
	defer poller.Close()
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	for {
		p.mu.Lock()
		members := r.members
		p.mu.Unlock()
		poller.Poll(ctx, members)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if ctx.Err() != nil { // select picks at random
			return
		}
	}
}
