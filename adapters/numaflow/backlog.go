package numaflowthrottle

import (
	"context"
	"time"

	"github.com/dispatchthrottle/throttle/adapters/internal/backlog"
)

// Pending is the user's, and the messages that are to be delivered again.
func (s *source) Pending(ctx context.Context) int64 {
	n := s.Sourcer.Pending(ctx)
	if n >= 0 {
		n += s.unacknowledged.toRequeue()
	}
	return n
}

// pollDue reports whether the last poll is long enough ago.
func (s *source) pollDue(now time.Time) bool {
	return now.Sub(s.opened) >= time.Duration(s.polled.Load())+backlog.Interval
}

// pollBacklog polls the backlog when it is due, until the Read is over.
func (s *source) pollBacklog(ctx context.Context) {
	for {
		now, last := int64(time.Since(s.opened)), s.polled.Load()
		if wait := time.Duration(last + int64(backlog.Interval) - now); wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		} else if s.polled.CompareAndSwap(last, now) {
			s.guarded(s.reportBacklog)
		}
	}
}

// reportBacklog reports the backlog, if there is a limit.
func (s *source) reportBacklog() {
	if len(s.sub.Stats().Limits) == 0 || !s.polling.TryLock() {
		return
	}
	defer s.polling.Unlock()
	s.sub.ReportBacklog(s.Pending(context.Background()))
}
