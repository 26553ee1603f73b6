package engine

import (
	"context"
	"fmt"
	"time"
)

// Acquire waits for up to max messages' permits: for when the fast path did not get them. size is
// the bytes of the message, -1 = unknown.
func (l *Lane) Acquire(ctx context.Context, max int, size int64) (Grant, error) {
	if max <= 0 {
		return Grant{}, nil
	}
	max = min(max, MaxPermits)
	l.queue.mu.Lock()
	a := l.admission.Load()
	switch {
	case a == nil:
		l.queue.mu.Unlock()
		return Grant{N: max}, nil
	case a.closed:
		l.queue.mu.Unlock()
		return Grant{}, ErrClosed
	case len(l.queue.callers) == 0:
		if g, ok := l.grant(a, int64(max), size); ok {
			l.queue.mu.Unlock()
			return g, nil
		}
	}
	if ctx.Err() != nil {
		l.queue.mu.Unlock()
		return Grant{}, waitError(ctx)
	}
	c := l.enter(a, int64(max), size, false)
	l.queue.mu.Unlock()
	defer l.core.callers.Put(c)
	// This is read after the caller has entered: a step that does not see the caller clears it
	// first.
	if !l.covered.Load() {
		l.touch(false)
	}
	for {
		select {
		case <-c.ready:
		case <-ctx.Done():
			return Grant{}, l.cancel(c, waitError(ctx))
		}
		if !c.tooLate(l.core.start) {
			return c.grant, c.err
		}
		c.grant.waste()
		l.enterAgain(c)
		l.touch(false)
	}
}

func waitError(ctx context.Context) error {
	return fmt.Errorf("dispatch: wait for a permit: %w", context.Cause(ctx))
}

// enter puts a new caller at the end of the queue, which is locked.
func (l *Lane) enter(a *Admission, max, size int64, try bool) *caller {
	c := l.core.callers.Get().(*caller)
	*c = caller{max: max, size: size, try: try, since: time.Now(), why: l.reason(a), ready: c.ready}
	l.queue.enter(c)
	return c
}

// enterAgain puts a caller that came too late for its slot back at its place in the queue, or
// answers it if there is nothing to wait for any more. The queue is not locked.
func (l *Lane) enterAgain(c *caller) {
	l.queue.mu.Lock()
	defer l.queue.mu.Unlock()
	c.grant, c.err, c.until = Grant{}, nil, 0
	switch a := l.admission.Load(); {
	case a == nil:
		c.grant = Grant{N: int(c.max)}
		c.ready <- struct{}{}
	case a.closed: // the loop may have served the queue for the last time
		c.err = ErrClosed
		c.ready <- struct{}{}
	default:
		l.queue.enterAgain(c)
	}
}

// cancel ends the wait of a caller with an error. Permits that it was granted at the same moment go
// back. The queue is not locked.
func (l *Lane) cancel(c *caller, err error) error {
	if !l.queue.leave(c) {
		<-c.ready
		if c.err == nil && c.grant.Admission != nil {
			c.grant.Settle(0, 0)
		}
	}
	l.touch(false) // a strict slot goes back while it is the last
	return err
}

// reason says which limit holds callers up. No lock is needed.
func (l *Lane) reason(a *Admission) string {
	switch {
	case a == nil || a.closed:
		return ""
	case a.paused:
		return ReasonPaused
	case a.boundsInFlight() && l.subscription.inFlight.full(a.maxInFlight):
		return ReasonInFlight
	}
	switch s := a.firstEmpty(nil); {
	case s == nil:
	case s.Unavailable():
		return ReasonUnavailable
	case s.NoGroup():
		return ReasonNoGroup
	default:
		return s.Reason
	}
	return ""
}
