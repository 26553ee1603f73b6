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

// count counts an answer, if its outcome counts. It reports whether it is the first one.
func (s *outcomes) count(o resolve.Outcome, retryAfter time.Duration) (first bool) {
	if s.counted.Load()>>uint(o)&1 == 0 {
		return false
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
	return !s.reported.Load()
}

// take returns what was reported since the last call.
func (s *outcomes) take() schedule.Answers {
	return schedule.Answers{
		OK: float64(s.ok.Swap(0)), Busy: float64(s.busy.Swap(0)),
		RetryAfter: time.Duration(s.retry.Swap(0)).Seconds(),
	}
}
