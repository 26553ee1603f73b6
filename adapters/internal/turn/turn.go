// Package turn has the readers of adapters take turns.
package turn

import (
	"context"
	"errors"
	"sync/atomic"
)

// ErrClosing is what Take returns when closing has ended.
var ErrClosing = errors.New("closing")

// A Turn is a mutex whose wait ends with a context. It costs two atomic operations while nobody waits.
type Turn struct {
	taken   atomic.Bool
	waiters atomic.Int32
	free    chan struct{} // gets a value when it is passed and somebody waits: one of them tries again
}

// New returns a turn that nobody has.
func New() *Turn { return &Turn{free: make(chan struct{}, 1)} }

// Take waits for the turn. The error is ctx's, or ErrClosing if closing ends.
func (t *Turn) Take(ctx, closing context.Context) error {
	if t.taken.CompareAndSwap(false, true) {
		return nil
	}
	return t.wait(ctx, closing)
}

func (t *Turn) wait(ctx, closing context.Context) error {
	t.waiters.Add(1) // before the next try, so that who passes after it knows
	defer t.waiters.Add(-1)
	for !t.taken.CompareAndSwap(false, true) {
		select {
		case <-t.free:
		case <-ctx.Done():
			return ctx.Err()
		case <-closing.Done():
			return ErrClosing
		}
	}
	return nil
}

// Taken reports whether somebody has the turn.
func (t *Turn) Taken() bool { return t.taken.Load() }

// Pass gives the turn on.
func (t *Turn) Pass() {
	t.taken.Store(false)
	if t.waiters.Load() > 0 {
		t.wake()
	}
}

func (t *Turn) wake() {
	select {
	case t.free <- struct{}{}:
	default: // somebody is about to try already
	}
}
