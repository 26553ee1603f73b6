package engine

import "github.com/dispatchthrottle/throttle/dispatch/internal/sharing"

// Take takes up to max permits of every limit and size bytes, as callers do.
func (a *Admission) Take(max, size int64) int64 { return a.lane.take(a, max, size) }

// Shares returns the shares of the limits of messages and of bytes.
func (a *Admission) Shares() (messages, bytes []*sharing.Share) { return a.messages, a.bytes }

// Expected is how many strict shares are known by name.
func (e *Engine) Expected() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.waiters.byName)
}
