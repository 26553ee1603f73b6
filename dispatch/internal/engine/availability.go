package engine

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// unavailableAfter is how long after the last answer to any request the permit store counts as
// unavailable, in seconds: one limit whose requests fail beside others whose do not is no outage.
const unavailableAfter = 0.5

// The permit store is slow while its calls take longer than slowAbove on average, and until they
// take less than slowBelow, seconds: rounds are then longer than policies ask for.
const slowAbove, slowBelow = 0.1, 0.05

// averaged is over how many seconds the latency is averaged, and heaviest the part that a call
// which comes after a while has in it.
const averaged, heaviest = 2.0, 0.25

// notedFor is how long after the last call its latency tells how the permit store is, in seconds.
const notedFor = 60.0

// damageEvery is how often damage of one limit is logged, in seconds.
const damageEvery = 60.0

// An availability counts answers, and logs when the permit store becomes unavailable or slow, and
// when that ends.
type availability struct {
	journal *journal

	requests, errors, late, damaged atomic.Int64
	unavailable                     atomic.Bool

	// Engine.mu guards the fields below.
	answeredAt float64            // the last answer; 0 = none yet
	latency    float64            // of calls with allocations, on average, seconds; 0 = unknown
	notedAt    float64            // the last of these calls; 0 = none yet
	slowSince  float64            // since when latency has been above slowAbove; 0 = it is not
	slow       bool               // which is in the log
	damagedAt  map[string]float64 // by key: when damage was last logged
}

// count counts an answer that its share has taken in.
func (a *availability) count(s *sharing.Share, r *permits.Request, now float64) {
	limit, logged := s.Limit.Key, &s.Logged
	a.requests.Add(1)
	if damage := r.Damaged(); damage != nil {
		a.damaged.Add(1)
		a.logDamage(limit, damage, now)
	}
	if r.Err != nil {
		a.errors.Add(1)
		if now-a.answeredAt > unavailableAfter && a.unavailable.CompareAndSwap(false, true) {
			a.journal.warn("the permit store is unavailable; each limit goes on as its onOutage says",
				"error", r.Err)
		}
		if !logged.Failing && s.FailingFor(now) > 2*unavailableAfter && !a.unavailable.Load() {
			logged.Failing = true
			a.journal.warn("requests for a limit fail; it goes on as its onOutage says",
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
		a.journal.warn("the permit store is available again")
	}
	if logged.Failing {
		logged.Failing = false
		a.journal.warn("requests for a limit are answered again", "limit", limit)
	}
	if s.NoGroup() && !logged.NoGroup {
		groups := s.Limit.Groups
		a.journal.warn("this process is in none of a limit's worker groups, and gets no permits",
			"limit", limit, "groups", groups.Terms.Names, "group", groups.Own)
	}
	logged.NoGroup = s.NoGroup()
}

// logDamage logs damage of a limit, unless that was logged in the last minute.
func (a *availability) logDamage(limit string, damage error, now float64) {
	if at, ok := a.damagedAt[limit]; ok && now-at < damageEvery {
		return
	}
	if a.damagedAt == nil {
		a.damagedAt = map[string]float64{}
	}
	maps.DeleteFunc(a.damagedAt, func(_ string, at float64) bool { return now-at >= damageEvery })
	a.damagedAt[limit] = now
	a.journal.warn("what the permit store had of a limit was damaged; it was replaced",
		"limit", limit, "error", damage)
}

// noteCall takes in how long a call of the store took, if an allocation in it was answered. The
// first call may have to connect, and does not count.
func (a *availability) noteCall(answers []sending, now float64) {
	answered := slices.IndexFunc(answers, func(s sending) bool {
		return s.request.Allocate != nil && s.request.Err == nil
	})
	if answered < 0 {
		return
	}
	took, before := answers[answered].took, a.notedAt
	a.notedAt = now
	switch {
	case before == 0: // it may have had to connect
		return
	case a.latency == 0:
		a.latency = took
	default:
		a.latency += (took - a.latency) * min(heaviest, (now-before)/averaged)
	}
	switch {
	case a.slow && a.latency < slowBelow:
		a.slow = false
		a.journal.warn("the permit store is no longer slow", "latency", seconds(a.latency).Round(time.Millisecond))
	case a.latency <= slowAbove:
		a.slowSince = 0
	case a.slowSince == 0:
		a.slowSince = now
	case !a.slow && now-a.slowSince > averaged:
		a.slow = true
		a.journal.warn("the permit store is slow; limits are used as far as it answers",
			"latency", seconds(a.latency).Round(time.Millisecond))
	}
}

// An Availability is how requests to the permit store have gone since the start.
type Availability struct {
	Requests, Errors, Late, Damaged int64
	Unavailable                     bool    // none has been answered lately
	Latency                         float64 // of calls of the last minute, seconds; 0 = unknown
	Slow                            bool    // by its latency
}

// Availability returns how requests to the permit store have gone.
func (e *Engine) Availability() Availability {
	a := &e.availability
	e.mu.Lock()
	latency, slow := a.latency, a.slow
	if e.core.clock(time.Now())-a.notedAt > notedFor { // a store that nobody asks is not slow
		latency, slow = 0, false
	}
	e.mu.Unlock()
	return Availability{
		a.requests.Load(), a.errors.Load(), a.late.Load(), a.damaged.Load(), a.unavailable.Load(), latency, slow,
	}
}
