package engine

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// A name is a subscription's.
type name struct {
	topic        policy.Topic
	subscription string
}

// A subscription is what the lanes of one subscription in this process share: there is one lane
// for each owner of its messages.
type subscription struct {
	lanes    atomic.Pointer[[]*Lane] // replaced with Engine.mu held
	inFlight inFlight
	outcomes outcomes
}

// An inFlight counts the messages that are handed out and not Done, where that is limited. Any
// goroutine may use it.
type inFlight struct {
	n    atomic.Int64
	next atomic.Pointer[Lane] // requests a permit for its turn while no more may be in flight
}

// tryAcquire adds up to n messages, so that there are max at most, and returns how many.
func (f *inFlight) tryAcquire(n, max int64) int64 {
	for {
		now := f.n.Load()
		n = min(n, max-now)
		if n <= 0 {
			return 0
		}
		if f.n.CompareAndSwap(now, now+n) {
			return n
		}
	}
}

// free is how many more messages of a lane may be in flight soon: at least one if its turn is
// next, so that it has a permit then.
func (f *inFlight) free(l *Lane, bound int64) int64 {
	free := bound - f.n.Load()
	if f.next.Load() == l {
		return max(1, free)
	}
	return max(0, free)
}

// all are the lanes. No lock is needed.
func (s *subscription) all() []*Lane {
	if lanes := s.lanes.Load(); lanes != nil {
		return *lanes
	}
	return nil
}

// subscriptionOf makes the lane one of its subscription's.
func (e *Engine) subscriptionOf(l *Lane) *subscription {
	key := name{l.id.Topic, l.id.Subscription}
	s := e.subscriptions[key]
	if s == nil {
		s = &subscription{}
		e.subscriptions[key] = s
	}
	lanes := append(slices.Clone(s.all()), l)
	s.lanes.Store(&lanes)
	return s
}

// dropLane takes the lane out of its subscription.
func (e *Engine) dropLane(l *Lane) {
	lanes := slices.DeleteFunc(slices.Clone(l.of.all()), func(other *Lane) bool { return other == l })
	if l.of.lanes.Store(&lanes); len(lanes) == 0 {
		delete(e.subscriptions, name{l.id.Topic, l.id.Subscription})
	}
}

// cancel takes n messages out that were never handed out; the loop serves the lanes that wait. A
// lane's lock may be held.
func (s *subscription) cancel(n int64) {
	s.inFlight.n.Add(-n)
	for _, l := range s.all() {
		if l.Waited() {
			l.engine.touch(l, false)
		}
	}
}

// release takes n messages of a lane out that are Done. The lanes that wait take turns, the one
// after the lane first. The first that has no permit for its place is next: it requests one. No
// lock is needed.
func (s *subscription) release(l *Lane, n, max int64) {
	s.inFlight.n.Add(-n)
	now, lanes := time.Now(), s.all()
	after := slices.Index(lanes, l) + 1
	var next *Lane
	for i := range lanes {
		of := lanes[(after+i)%len(lanes)]
		waiters := of.waiters.Load()
		if waiters == 0 {
			continue
		}
		if s.inFlight.n.Load() >= max {
			break
		}
		of.serve(now)
		of.engine.touch(of, false)
		if of.waiters.Load() >= waiters {
			next = cmp.Or(next, of)
		}
	}
	if s.inFlight.next.Store(next); next != nil {
		next.engine.touch(next, false)
	}
}
