package engine

import (
	"cmp"
	"slices"
	"time"
)

// release takes n messages of the lane out that are Done. The lanes of the subscription that wait
// take turns, the one after this lane first. The first that has no permit yet for the message that
// it may have in flight is next: it requests one. Any goroutine may call it; no queue is locked.
func (l *Lane) release(n, bound int64) {
	s := l.subscription
	s.inFlight.n.Add(-n)
	now, lanes := time.Now(), s.all()
	after := slices.Index(lanes, l) + 1
	var next *Lane
	for i := range lanes {
		other := lanes[(after+i)%len(lanes)]
		callers := other.queue.length.Load()
		if callers == 0 {
			continue
		}
		if s.inFlight.n.Load() >= bound {
			break
		}
		other.serve(now)
		other.touch(false)
		if other.queue.length.Load() >= callers {
			next = cmp.Or(next, other)
		}
	}
	s.next.Store(next)
	if next != nil {
		next.touch(false)
	}
}
