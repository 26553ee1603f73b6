package kafkathrottle

import (
	"context"
	"io"
	"sync/atomic"
)

// A turn is a mutex whose wait ends with a context. It costs two atomic operations while nobody waits.
type turn struct {
	taken   atomic.Bool
	waiters atomic.Int32
	free    chan struct{} // gets a value when it is passed and somebody waits: one of them tries again
}

func newTurn() turn { return turn{free: make(chan struct{}, 1)} }

// take waits for the turn. The error is ctx's, or io.EOF if closing ends.
func (t *turn) take(ctx, closing context.Context) error {
	if t.taken.CompareAndSwap(false, true) {
		return nil
	}
	return t.wait(ctx, closing)
}

func (t *turn) wait(ctx, closing context.Context) error {
	t.waiters.Add(1) // before the next try, so that who passes after it knows
	defer t.waiters.Add(-1)
	for !t.taken.CompareAndSwap(false, true) {
		select {
		case <-t.free:
		case <-ctx.Done():
			return ctx.Err()
		case <-closing.Done():
			return io.EOF
		}
	}
	return nil
}

// pass gives the turn on.
func (t *turn) pass() {
	t.taken.Store(false)
	if t.waiters.Load() > 0 {
		t.wake()
	}
}

func (t *turn) wake() {
	select {
	case t.free <- struct{}{}:
	default: // somebody is about to try already
	}
}
