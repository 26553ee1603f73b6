package engine

import (
	"errors"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
)

// MaxPermits bounds what one call may ask for, so that no sum of calls overflows a counter.
const MaxPermits = 1<<31 - 1

// ErrClosed reports an Acquire on an engine or lane that has been closed.
var ErrClosed = errors.New("dispatch: closed")

// TakeSeveral takes up to n permits of every limit, if there are several of messages and nothing
// else to look at, and returns how many it got.
func (l *Lane) TakeSeveral(a *Admission, n int64) int64 {
	if !a.several || n <= 0 || n > MaxPermits || l.Waited() {
		return 0
	}
	return a.take(n, 0)
}

// serve grants callers what there is, in the order they came. The queue is not locked.
func (l *Lane) serve(now time.Time) {
	l.queue.mu.Lock()
	defer l.queue.mu.Unlock()
	a := l.admission.Load()
	l.queue.answer(func(c *caller) bool {
		if !l.tryAnswer(a, c) {
			return false
		}
		l.queue.waits.add(now.Sub(c.since), c.why)
		return true
	})
}

// tryAnswer answers a caller, if it need not wait any more. The queue is locked.
func (l *Lane) tryAnswer(a *Admission, c *caller) bool {
	switch {
	case a == nil:
		c.grant = Grant{N: int(c.max)}
	case a.closed:
		c.err = ErrClosed
	default:
		g, ok := l.grant(a, c.max, c.size)
		if !ok {
			return false
		}
		c.grant, c.until = g, a.usableUntil()
	}
	return true
}

// grant takes what a caller wants, if every limit has some of it. The queue is locked.
func (l *Lane) grant(a *Admission, max, size int64) (Grant, bool) {
	if a.paused {
		return Grant{}, false
	}
	if a.boundsInFlight() {
		if max = min(max, l.subscription.inFlight.free(a.maxInFlight)); max == 0 {
			return Grant{}, false
		}
	}
	if size < 0 { // no more messages than there are bytes for
		for _, s := range a.bytes {
			max = min(max, 1+int64(float64(s.Available())/l.sizes.average()))
		}
	}
	charged := l.charge(a, max, size)
	n := l.take(a, max, charged)
	if n == 0 {
		return Grant{}, false
	}
	if n < max && size < 0 && charged > 0 { // fewer messages than their bytes were charged for
		fewer := l.charge(a, n, size)
		untake(a.bytes, charged-fewer)
		charged = fewer
	}
	if a = l.passShadow(a, n, charged); a.maxInFlight > 0 && charged == 0 {
		charged = 1 // of no limit, but Done has something to settle
	}
	g := Grant{N: int(n), Admission: a, Size: charged, Taken: a.Step()}
	if until := a.usableUntil(); until != 0 && time.Since(l.core.start) > until {
		g.waste()
		return Grant{}, false
	}
	return g, true
}

// charge is the bytes to charge for n messages.
func (l *Lane) charge(a *Admission, n, size int64) int64 {
	switch {
	case !a.limitsBytes():
		return 0
	case size >= 0:
		return max(1, size)
	}
	return max(1, int64(min(float64(n)*l.sizes.average(), 1<<50)))
}

// take takes up to max permits of every limit, charges size bytes, and counts the messages as in
// flight. It returns how many they are: 0 if a limit has no permit, or no more may be in flight.
func (l *Lane) take(a *Admission, max, size int64) int64 {
	n := a.take(max, size)
	if n == 0 || !a.boundsInFlight() {
		return n
	}
	inFlight := l.subscription.inFlight.tryAcquire(n, a.maxInFlight)
	untake(a.messages, n-inFlight)
	if inFlight == 0 { // another lane of the subscription was quicker
		untake(a.bytes, size)
	}
	return inFlight
}

// passShadow counts n messages with size bytes that pass limits in shadow mode, and returns the
// admission of their Grant.
func (l *Lane) passShadow(a *Admission, n, size int64) *Admission {
	if !a.shadow.empty() && !a.shadow.pass(n, size) { // those it lacked are demand
		l.touch(false)
	}
	if a.untracked == nil {
		return a
	}
	counter := &l.subscription.inFlight
	inFlight := counter.tryAcquire(n, a.maxInFlight)
	if inFlight == n {
		return a
	}
	counter.n.Add(-inFlight)
	l.beyondInFlight.Add(n - inFlight)
	return a.untracked
}

// waste gives up a strict slot that its caller came to too late, and gives back the permits of
// other limits.
func (g *Grant) waste() {
	a := g.Admission
	a.paced.Waste(int64(g.N))
	for _, s := range a.messages {
		if s != a.paced {
			s.Return(int64(g.N))
		}
	}
	for _, s := range a.bytes {
		s.Return(g.Size)
	}
	a.shadow.settle(int64(g.N), g.Size, func(*sharing.Share) bool { return true })
	if a.maxInFlight > 0 {
		a.lane.subscription.cancel(int64(g.N))
	}
	g.Admission = nil
}
