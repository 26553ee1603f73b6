package engine

import (
	"log/slog"
	"sync/atomic"

	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// unavailableAfter is how long after the last answer to any request the permit store counts as
// unavailable, in seconds: one limit whose requests fail beside others whose do not is no outage.
const unavailableAfter = 0.5

// An availability counts answers, and logs when the permit store becomes unavailable and when it
// is back.
type availability struct {
	log *slog.Logger

	requests, errors, late, damaged atomic.Int64
	unavailable                     atomic.Bool

	answeredAt float64 // the last answer; 0 = none yet. Guarded by Engine.mu
}

// count counts an answer that its share has taken in.
func (a *availability) count(s *sharing.Share, r *permits.Request, now float64) {
	limit, logged := s.Limit.Key, &s.Logged
	a.requests.Add(1)
	if damage := r.Damaged(); damage != nil {
		a.damaged.Add(1)
		a.log.Warn("what the permit store had of a limit was damaged; it was replaced",
			"limit", limit, "error", damage)
	}
	if r.Err != nil {
		a.errors.Add(1)
		if now-a.answeredAt > unavailableAfter && a.unavailable.CompareAndSwap(false, true) {
			a.log.Warn("the permit store is unavailable; each limit goes on as its onOutage says",
				"error", r.Err)
		}
		if !logged.Failing && s.FailingFor(now) > 2*unavailableAfter && !a.unavailable.Load() {
			logged.Failing = true
			a.log.Warn("requests for a limit fail; it goes on as its onOutage says",
				"limit", limit, "error", r.Err)
		}
		return
	}
	a.answeredAt = now
	if r.Late() {
		a.late.Add(1)
		return
	}
	if a.unavailable.CompareAndSwap(true, false) {
		a.log.Info("the permit store is available again")
	}
	if logged.Failing {
		logged.Failing = false
		a.log.Info("requests for a limit are answered again", "limit", limit)
	}
	if s.NoGroup() && !logged.NoGroup {
		groups := s.Limit.Groups
		a.log.Warn("this process is in none of a limit's worker groups, and gets no permits",
			"limit", limit, "groups", groups.Terms.Names, "group", groups.Own)
	}
	logged.NoGroup = s.NoGroup()
}

// An Availability is how requests to the permit store have gone since the start.
type Availability struct {
	Requests, Errors, Late, Damaged int64
	Unavailable                     bool // none has been answered lately
}

func (a *availability) now() Availability {
	return Availability{
		a.requests.Load(), a.errors.Load(), a.late.Load(), a.damaged.Load(), a.unavailable.Load(),
	}
}
