package engine

import (
	"cmp"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
)

// TryAcquire takes up to max messages' permits if some are there now, and waits only for the
// permit store's answer whether a strict slot is free. If it is refused, next says when to come
// back; a refusal counts as demand, so that permits are requested for the next try.
func (l *Lane) TryAcquire(max int) (g Grant, next time.Time, ok bool) {
	if max <= 0 {
		return Grant{}, time.Time{}, true
	}
	max = min(max, MaxPermits)
	l.queue.mu.Lock()
	a := l.admission.Load()
	switch {
	case a == nil:
		l.queue.mu.Unlock()
		return Grant{N: max}, time.Time{}, true
	case a.closed:
		l.queue.mu.Unlock()
		return Grant{}, time.Now().Add(time.Minute), false
	case len(l.queue.callers) == 0:
		if g, ok := l.grant(a, int64(max), -1); ok {
			l.queue.mu.Unlock()
			return g, time.Time{}, true
		}
	}
	if a.paused {
		l.queue.mu.Unlock()
		return Grant{}, time.Now().Add(time.Second), false
	}
	if a.paced == nil {
		next = l.refuse(a, int64(max))
		l.queue.mu.Unlock()
		return Grant{}, next, false
	}
	return l.trySlot(a)
}

// refuse counts a refusal as demand of the limits that have no permit, and says when to come back.
// The queue is locked.
func (l *Lane) refuse(a *Admission, n int64) time.Time {
	next := time.Now().Add(tick)
	soon := next
	look := func(limits []*sharing.Share, permits int64) {
		for _, s := range limits {
			if !s.Empty() {
				continue
			}
			s.Refuse(permits)
			if at := s.Bucket.Next(); at.After(next) {
				next = at
			} else {
				s.SetNext(soon) // the loop has not set it lately
			}
		}
	}
	look(a.messages, n)
	look(a.bytes, l.charge(a, n, -1))
	l.touch(false)
	return next
}

// maxLoopDelay is how long a try waits for the loop where the permit store answers at once.
const maxLoopDelay = 100 * time.Millisecond

// trySlot has the loop ask for a slot of a strict limit that is free now. The queue is locked, and
// trySlot unlocks it.
func (l *Lane) trySlot(a *Admission) (Grant, time.Time, bool) {
	now := time.Now()
	next := now.Add(tick)
	switch {
	case len(l.queue.callers) > 0, // others come first
		a.boundsInFlight() && l.subscription.inFlight.full(a.maxInFlight):
		l.queue.mu.Unlock()
		return Grant{}, next, false
	case a.lacksOther():
		next = l.refuse(a, 1)
		l.queue.mu.Unlock()
		return Grant{}, next, false
	}
	if full := l.core.start.Add(a.paced.FullUntil()); full.After(now) {
		l.queue.mu.Unlock()
		return Grant{}, full, false
	}
	c := l.enter(a, 1, -1, true)
	l.queue.mu.Unlock()
	defer l.core.callers.Put(c)
	l.touch(true)
	timer := time.NewTimer(cmp.Or(l.core.timeout(), maxLoopDelay))
	defer timer.Stop()
	select {
	case <-c.ready:
	case <-timer.C:
		if l.queue.leave(c) {
			return Grant{}, time.Now().Add(tick), false
		}
		<-c.ready
	}
	switch {
	case c.err != nil:
		return Grant{}, time.Now().Add(time.Minute), false
	case c.grant.N == 0:
		return Grant{}, c.next, false
	case c.tooLate(l.core.start):
		c.grant.waste()
		return Grant{}, time.Now().Add(tick), false
	}
	return c.grant, time.Time{}, true
}

// refuseTries answers the callers that do not wait and that got no slot. Engine.mu is held.
func (l *Lane) refuseTries(t time.Time, now float64) {
	a := l.admission.Load()
	if a == nil {
		return
	}
	next := t.Add(tick)
	if a.paced != nil {
		at, refused := a.paced.TryRefused(now)
		if !refused {
			return
		}
		if slot := l.core.time(at); slot.After(next) {
			next = slot
		}
	}
	l.queue.mu.Lock()
	defer l.queue.mu.Unlock()
	refused := l.queue.answer(func(c *caller) bool {
		if c.try {
			c.next = next
		}
		return c.try
	})
	if refused > 0 && len(l.queue.callers) > 0 {
		// This step requested no slot for the callers that wait behind the try.
		l.touch(false)
	}
}
