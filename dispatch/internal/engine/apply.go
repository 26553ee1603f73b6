package engine

import (
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/policy"
)

// ApplyPolicies puts policies in force on all lanes.
func (e *Engine) ApplyPolicies(s policy.Snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.terms.Policies = s
	for _, l := range e.lanes {
		l.apply()
	}
}

// applyAll puts the terms in force on some lanes again.
func (e *Engine) applyAll(lanes []*Lane) {
	for _, l := range lanes {
		l.apply()
	}
}

// apply brings the lane's limits in line with the terms. Shares whose limits no longer apply
// retire: what they hold goes back.
func (l *Lane) apply() {
	e := l.engine
	e.terms.RatesTimely = time.Since(e.ratesReadAt) < ratesTimely
	r := resolve.Resolve(e.terms, l.id, l.reports())
	for _, tie := range r.Ties {
		if pair := [2]policy.Scope{tie.A, tie.B}; !e.ties[pair] {
			e.ties[pair] = true
			e.log.Warn("two patterns tie; the one that sorts first wins",
				"wins", tie.A, "loses", tie.B, "topic", tie.Topic, "priority", tie.Priority)
		}
	}
	was := l.limits.all
	now := e.clock(time.Now())
	share := func(limits []resolve.Limit) (shares []*sharing.Share) {
		for _, limit := range limits {
			shares = append(shares, l.share(limit, was, now))
		}
		return shares
	}
	l.caughtUpBacklog, l.throttleCaughtUp = r.CaughtUpBacklog, r.ThrottleCaughtUp
	l.limits = admit(l, share(r.Messages), share(r.Bytes), &r)
	l.setQuota(r.Quota)
	l.of.outcomes.counted.Store(r.Outcomes)
	for _, s := range was {
		if !l.limits.has(s) {
			e.forget(s)
			l.retired = append(l.retired, s)
		}
	}
	for _, s := range l.limits.all {
		e.expect(l, s)
	}
	l.admit()
	e.touch(l, false)
}

// share returns the lane's share of a limit: the one it has, or had lately, or a new one.
func (l *Lane) share(limit resolve.Limit, was []*sharing.Share, now float64) *sharing.Share {
	fits := func(s *sharing.Share) bool { return s.Fits(limit) }
	if i := slices.IndexFunc(was, fits); i >= 0 {
		was[i].Apply(limit)
		return was[i]
	}
	if i := slices.IndexFunc(l.retired, fits); i >= 0 {
		s := l.retired[i]
		l.retired = slices.Delete(l.retired, i, i+1)
		s.Apply(limit)
		return s
	}
	s := sharing.New(&l.engine.env, limit, now)
	if debt := l.debts[limit.Key]; debt > 0 {
		s.Owe(debt)
		delete(l.debts, limit.Key)
	}
	for _, other := range slices.Concat(was, l.retired) { // of another mode
		if other.Limit.Key == limit.Key {
			s.Owe(other.ForgiveDebt())
		}
	}
	return s
}

// reports are what is known of the outcomes that the subscription's handlers report.
func (l *Lane) reports() resolve.Reports {
	r := resolve.Reports{Any: l.of.outcomes.reported.Load()}
	for _, of := range l.of.all() {
		r.Owners = append(r.Owners, of.id.Owner)
	}
	return r
}

// admit sets the limits that apply to callers now, or nothing if there is none.
func (l *Lane) admit() {
	if old := l.admission.Load(); old != nil && old.closed {
		return
	}
	a := l.limits
	if !a.paused {
		exempt := l.caughtUp && !l.throttleCaughtUp
		a = a.without(func(s *sharing.Share) bool {
			return s.Open() || exempt && s.Limit.ExemptsCaughtUp
		})
	}
	if l.admission.Load() == a {
		return
	}
	l.admission.Store(a)
	l.serve(time.Now())
	l.engine.touch(l, false) // permits go back, or callers are served
}

// followOutage lifts the limits whose policies say so while the permit store is unavailable.
func (l *Lane) followOutage() {
	changed := false
	for _, s := range l.limits.all {
		changed = s.FollowOutage() || changed
	}
	if changed {
		l.admit()
	}
}
