package engine

import "sync/atomic"

// A subscription is what the lanes of one subscription in this process share: there is one lane
// for each owner of its messages. Any goroutine may use it.
type subscription struct {
	lanes    atomic.Pointer[[]*Lane] // replaced with Engine.mu held
	inFlight inFlight
	next     atomic.Pointer[Lane] // requests a permit for its turn while no more may be in flight
	outcomes outcomes
}

// all are the lanes.
func (s *subscription) all() []*Lane {
	if lanes := s.lanes.Load(); lanes != nil {
		return *lanes
	}
	return nil
}

// free is how many more messages of a lane may be in flight soon: at least one if its turn is
// next, so that it has a permit then.
func (s *subscription) free(l *Lane, bound int64) int64 {
	free := s.inFlight.free(bound)
	if s.next.Load() == l {
		return max(1, free)
	}
	return free
}

// cancel takes n messages out that were never handed out; the loop serves the lanes that wait. A
// queue may be locked.
func (s *subscription) cancel(n int64) {
	s.inFlight.n.Add(-n)
	for _, l := range s.all() {
		if l.Waited() {
			l.touch(false)
		}
	}
}

// An inFlight counts the messages that are handed out and not Done, where that is limited.
type inFlight struct{ n atomic.Int64 }

// free is how many more messages may be in flight, so that there are bound at most.
func (f *inFlight) free(bound int64) int64 { return max(0, bound-f.n.Load()) }

// full reports whether no more messages may be in flight.
func (f *inFlight) full(bound int64) bool { return f.free(bound) == 0 }

// tryAcquire adds up to n messages, so that there are bound at most, and returns how many.
func (f *inFlight) tryAcquire(n, bound int64) int64 {
	for {
		now := f.n.Load()
		n = min(n, bound-now)
		if n <= 0 {
			return 0
		}
		if f.n.CompareAndSwap(now, now+n) {
			return n
		}
	}
}
