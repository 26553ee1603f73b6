package engine

import (
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/policy"
)

// maxTies is how many pairs of patterns are remembered as logged, before a change of the policies
// forgets them.
const maxTies = 1000

// ApplyPolicies puts policies in force on all lanes. matches is what Match has returned for them.
func (e *Engine) ApplyPolicies(s policy.Snapshot, matches Matches) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.terms.Policies = s
	if len(e.ties) > maxTies {
		clear(e.ties)
	}
	for _, l := range e.lanes {
		l.matches = matches[l.id.Topic]
		l.apply()
	}
}

// Matches are the patterns that match topics, by topic.
type Matches map[policy.Topic]policy.Matches

// Match finds the patterns of a set that match the topics of all lanes. It holds no lock while it
// matches.
func (e *Engine) Match(set *policy.Set) Matches {
	matches := Matches{}
	for {
		var opened []policy.Topic // since the last round
		e.mu.Lock()
		for id := range e.lanes {
			if _, ok := matches[id.Topic]; !ok {
				opened = append(opened, id.Topic)
				matches[id.Topic] = policy.Matches{}
			}
		}
		e.mu.Unlock()
		if len(opened) == 0 {
			return matches
		}
		for _, t := range opened {
			matches[t] = set.Match(t)
		}
	}
}

// match finds the patterns in force that match the topic of a lane that is not open yet. It holds
// no lock while it matches.
func (e *Engine) match(id resolve.Lane) policy.Matches {
	e.mu.Lock()
	set, open := e.terms.Policies.Set, e.lanes[id] != nil
	e.mu.Unlock()
	if open {
		return policy.Matches{}
	}
	return set.Match(id.Topic)
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
	r := resolve.Resolve(e.terms, l.id, l.matches, l.reports())
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
	if !l.of.outcomes.reported.Load() {
		return resolve.Reports{}
	}
	r := resolve.Reports{Any: true}
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
