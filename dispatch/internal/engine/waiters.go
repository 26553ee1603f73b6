package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
)

// A Waker is a Store that says when the turn of a share that queues for a strict slot has come
// before it was expected.
type Waker interface {
	Wakes(ctx context.Context, process string, woken func(waiter string)) error
}

// waiters are the strict shares of an engine, by the names under which they queue at the permit
// store.
type waiters struct {
	inbox  *inbox
	listen func()            // to the store's Waker, from the first call on
	byName map[string]waiter // guarded by Engine.mu

	mu    sync.Mutex // guards woken
	woken []string   // names of shares whose turns have come since the last step
}

type waiter struct {
	lane  *Lane
	share *sharing.Share
}

func (w *waiters) init(in *inbox, listen func()) {
	w.inbox, w.listen, w.byName = in, sync.OnceFunc(listen), map[string]waiter{}
}

// wakesAgain is how long after an error the store's Waker is called again.
const wakesAgain = 10 * time.Second

// await listens to the store's Waker until ctx ends. No lock is needed.
func (w *waiters) await(ctx context.Context, waker Waker, process string, log *slog.Logger) {
	for logged := false; ; {
		err := waker.Wakes(ctx, process, w.note)
		if err == nil || ctx.Err() != nil {
			return
		}
		if !logged {
			logged = true
			log.Warn("callers that queue for strict slots are not woken early; "+
				"they ask again when their turn is expected", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wakesAgain):
		}
	}
}

// expect has the store's words for a share reach it, and the slots of other shares.
func (w *waiters) expect(l *Lane, s *sharing.Share) {
	if s.Waiter != "" {
		w.byName[s.Waiter] = waiter{l, s}
	}
	if s.Limit.Queue {
		w.listen()
	}
}

// forget ends expect. The share still leaves the queue under its name.
func (w *waiters) forget(s *sharing.Share) { delete(w.byName, s.Waiter) }

// note notes that a share's turn has come. No lock is needed: a store that answers at once calls
// this inside Do, which the loop of this or of another engine calls with its Engine.mu held.
func (w *waiters) note(name string) {
	w.mu.Lock()
	w.woken = append(w.woken, name)
	w.mu.Unlock()
	w.inbox.wake()
}

// wake has the shares whose turns have come ask for their slots in this step.
func (w *waiters) wake(now float64) {
	w.mu.Lock()
	woken := w.woken
	w.woken = nil
	w.mu.Unlock()
	for _, name := range woken {
		if found, ok := w.byName[name]; ok {
			found.share.Woken(now)
			found.lane.touch(false)
		}
	}
}
