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

// A queue leads from the names of strict shares, under which they queue at the permit store, to the
// shares.
type queue struct {
	listen func()            // to the store's Waker, from the first call on
	names  map[string]queued // guarded by Engine.mu

	mu    sync.Mutex // guards woken
	woken []string   // names of shares whose turns have come since the last step
}

type queued struct {
	lane  *Lane
	share *sharing.Share
}

func (q *queue) init(running context.Context, e *Engine) {
	q.names = map[string]queued{}
	q.listen = sync.OnceFunc(func() {
		if waker, ok := e.store.(Waker); ok {
			e.running.Go(func() { e.awaitWakes(running, waker) })
		}
	})
}

// wakesAgain is how long after an error the store's Waker is called again.
const wakesAgain = 10 * time.Second

// awaitWakes listens to the store's Waker until running ends.
func (e *Engine) awaitWakes(running context.Context, waker Waker) {
	for logged := false; ; {
		err := waker.Wakes(running, e.env.Process, e.noteWoken)
		if err == nil || running.Err() != nil {
			return
		}
		if !logged {
			logged = true
			e.log.Warn("callers that queue for strict slots are not woken early; "+
				"they ask again when their turn is expected", "error", err)
		}
		select {
		case <-running.Done():
			return
		case <-time.After(wakesAgain):
		}
	}
}

// expect has the store's words for a share reach it, and the slots of other shares.
func (e *Engine) expect(l *Lane, s *sharing.Share) {
	if s.Waiter() != "" {
		e.queue.names[s.Waiter()] = queued{l, s}
	}
	if s.Limit.Queue {
		e.listen()
	}
}

// serveShare has the lane of a strict share stepped in this step of the loop.
func (e *Engine) serveShare(s *sharing.Share, now float64) {
	if q, ok := e.queue.names[s.Waiter()]; ok {
		e.setDue(q.lane, now)
	}
}

// forget ends expect. The share still leaves the queue under its name.
func (e *Engine) forget(s *sharing.Share) { delete(e.queue.names, s.Waiter()) }

// noteWoken notes that a share's turn has come. No lock is needed: a store that answers at once
// calls this inside Do, which the loop of this or of another engine calls with its Engine.mu held.
func (e *Engine) noteWoken(waiter string) {
	e.queue.mu.Lock()
	e.queue.woken = append(e.queue.woken, waiter)
	e.queue.mu.Unlock()
	e.wake()
}

// takeWoken has the shares whose turns have come ask for their slots in this step.
func (e *Engine) takeWoken(now float64) {
	e.queue.mu.Lock()
	woken := e.queue.woken
	e.queue.woken = nil
	e.queue.mu.Unlock()
	for _, waiter := range woken {
		if q, ok := e.queue.names[waiter]; ok {
			q.share.Woken(now)
			e.touch(q.lane, false)
		}
	}
}
