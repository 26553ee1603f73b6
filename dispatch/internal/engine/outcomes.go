package engine

import (
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// outcomes are what handlers of a subscription have reported since the last request. Any goroutine
// may use them.
type outcomes struct {
	counted  atomic.Uint32 // a bit for each outcome that is counted
	reported atomic.Bool   // one was counted: the subscription has a busy limit
	ok, busy atomic.Int64
	retry    atomic.Int64 // the longest retry-after, ns
}

// ReportOutcome counts how the system that a handler protects has answered. retryAfter is when it
// may be asked again, 0 = unknown.
func (l *Lane) ReportOutcome(o resolve.Outcome, retryAfter time.Duration) {
	s := &l.of.outcomes
	if s.counted.Load()>>uint(o)&1 == 0 {
		return
	}
	if o == resolve.OK {
		s.ok.Add(1)
	} else {
		s.busy.Add(1)
		retry := int64(retryAfter)
		for longest := s.retry.Load(); retry > longest && !s.retry.CompareAndSwap(longest, retry); {
			longest = s.retry.Load()
		}
	}
	if !s.reported.Load() {
		l.slowDown()
	}
}

// slowDown makes the subscription's busy limit. It takes the lock itself.
func (l *Lane) slowDown() {
	e := l.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if open := !e.closed && e.lanes[l.id] == l; open && !l.of.outcomes.reported.Swap(true) {
		e.applyAll(l.of.all())
	}
}

// take returns what was reported since the last call.
func (s *outcomes) take() schedule.Answers {
	return schedule.Answers{
		OK: float64(s.ok.Swap(0)), Busy: float64(s.busy.Swap(0)),
		RetryAfter: time.Duration(s.retry.Swap(0)).Seconds(),
	}
}
