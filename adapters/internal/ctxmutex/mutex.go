// Package ctxmutex has a mutex whose Lock ends with a context.
package ctxmutex

import (
	"context"
	"errors"
	"sync/atomic"
)

// ErrClosing is the error of a Lock that ended with its closing context.
var ErrClosing = errors.New("ctxmutex: closing")

// A Mutex is a mutual exclusion lock whose Lock ends with a context. Lock and Unlock cost one
// atomic operation each without contention. Call Init first.
type Mutex struct {
	locked  atomic.Bool
	waiters atomic.Int32
	wakeup  chan struct{} // holds a value when a waiter should try again
}

// Init makes m ready, and unlocked.
func (m *Mutex) Init() { m.wakeup = make(chan struct{}, 1) }

// TryLock locks m if it is free, and reports whether it was.
func (m *Mutex) TryLock() bool { return m.locked.CompareAndSwap(false, true) }

// Lock locks m. A Mutex that is free is locked whatever the contexts say; otherwise Lock returns
// ctx.Err() when ctx ends, and [ErrClosing] when closing ends.
func (m *Mutex) Lock(ctx, closing context.Context) error {
	if m.TryLock() {
		return nil
	}
	m.waiters.Add(1) // before the next attempt, so that an Unlock after it sees a waiter
	defer m.waiters.Add(-1)
	for !m.TryLock() {
		select {
		case <-m.wakeup:
		case <-ctx.Done():
			return ctx.Err()
		case <-closing.Done():
			return ErrClosing
		}
	}
	return nil
}

// Locked reports whether m is locked.
func (m *Mutex) Locked() bool { return m.locked.Load() }

// Unlock unlocks m, and wakes one waiter.
func (m *Mutex) Unlock() {
	m.locked.Store(false)
	if m.waiters.Load() > 0 {
		m.wake()
	}
}

func (m *Mutex) wake() {
	select {
	case m.wakeup <- struct{}{}:
	default: // a waiter is about to try already
	}
}
