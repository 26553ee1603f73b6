package engine

import (
	"context"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
)

// A Waker is a Store that says when the turn of a share that queues for a strict slot has come
// before it was expected.
type Waker interface {
	Wakes(ctx context.Context, process string, woken func(waiter string)) error
}

// A queue leads from the names under which shares queue at the permit store to the shares.
type queue struct {
	listen func()            // to the store's Waker, from the first call on
	names  map[string]queued // guarded by Engine.mu
}

type queued struct {
	lane  *Lane
	share *sharing.Share
}

func (q *queue) init(running context.Context, e *Engine) {
	q.names = map[string]queued{}
	q.listen = sync.OnceFunc(func() {
		if waker, ok := e.store.(Waker); ok {
			e.running.Go(func() {
				if err := waker.Wakes(running, e.env.Process, e.woken); err != nil && running.Err() == nil {
					e.log.Warn("callers that queue for strict slots are not woken early; they ask again when their turn is expected", "error", err)
				}
			})
		}
	})
}

// expect has the store's words for a share reach it.
func (e *Engine) expect(l *Lane, s *sharing.Share) {
	if s.Limit.Queue {
		e.queue.names[s.Waiter()] = queued{l, s}
		e.listen()
	}
}

// forget ends expect. The share still leaves the queue under its name.
func (e *Engine) forget(s *sharing.Share) { delete(e.queue.names, s.Waiter()) }

// woken has a share ask for its slot now. It takes the lock itself.
func (e *Engine) woken(waiter string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q, ok := e.queue.names[waiter]; ok && !e.closed {
		q.share.Woken(e.clock(time.Now()))
		e.touch(q.lane, false)
	}
}
