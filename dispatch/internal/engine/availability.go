package engine

import "sync/atomic"

// unavailableAfter is how long no request must have been answered until the permit store counts as
// unavailable, in seconds: one limit whose requests fail beside others whose do not is no outage.
const unavailableAfter = 0.5

// An availability counts answers, and logs when the permit store becomes unavailable and when it
// is back.
type availability struct {
	requests, errors, late, damaged atomic.Int64
	unavailable                     atomic.Bool

	answeredAt float64 // the last answer; 0 = none yet. Guarded by Engine.mu
}

// count counts an answer that its share has taken in.
func (e *Engine) count(s sending, now float64) {
	r, limit, logged := s.request, s.share.Limit.Key, &s.share.Logged
	e.requests.Add(1)
	if damage := r.Damaged(); damage != nil {
		e.damaged.Add(1)
		e.log.Warn("what the permit store had of a limit was damaged; it was replaced",
			"limit", limit, "error", damage)
	}
	if r.Err != nil {
		e.errors.Add(1)
		if now-e.answeredAt > unavailableAfter && e.unavailable.CompareAndSwap(false, true) {
			e.log.Warn("the permit store is unavailable; each limit goes on as its onOutage says",
				"error", r.Err)
		}
		if !logged.Failing && s.share.FailingFor(now) > 2*unavailableAfter && !e.unavailable.Load() {
			logged.Failing = true
			e.log.Warn("requests for a limit fail; it goes on as its onOutage says",
				"limit", limit, "error", r.Err)
		}
		return
	}
	e.answeredAt = now
	if r.Late() {
		e.late.Add(1)
		return
	}
	if e.unavailable.CompareAndSwap(true, false) {
		e.log.Info("the permit store is available again")
	}
	if logged.Failing {
		logged.Failing = false
		e.log.Info("requests for a limit are answered again", "limit", limit)
	}
	if s.share.NoGroup() && !logged.NoGroup {
		groups := s.share.Limit.Groups
		e.log.Warn("this process is in none of a limit's worker groups, and gets no permits",
			"limit", limit, "groups", groups.Terms.Names, "group", groups.Own)
	}
	logged.NoGroup = s.share.NoGroup()
}

// An Availability is how requests to the permit store have gone since the start.
type Availability struct {
	Requests, Errors, Late, Damaged int64
	Unavailable                     bool // none has been answered lately
}

// Availability returns how requests to the permit store have gone.
func (e *Engine) Availability() Availability {
	return Availability{
		e.requests.Load(), e.errors.Load(), e.late.Load(), e.damaged.Load(), e.unavailable.Load(),
	}
}
