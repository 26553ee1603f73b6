package engine

import (
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
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
		e.apply(l)
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
func (e *Engine) match(id resolve.LaneID) policy.Matches {
	e.mu.Lock()
	set, open := e.terms.Policies.Set, e.lanes[id] != nil
	e.mu.Unlock()
	if open {
		return policy.Matches{}
	}
	return set.Match(id.Topic)
}

// ratesTimely is how long the permit store's clock of the last rates counts as about now.
const ratesTimely = time.Second

// applyAll puts the terms in force on some lanes again.
func (e *Engine) applyAll(lanes []*Lane) {
	for _, l := range lanes {
		e.apply(l)
	}
}

// apply brings a lane's limits in line with the terms. Shares whose limits no longer apply retire:
// what they hold goes back.
func (e *Engine) apply(l *Lane) {
	e.terms.RatesTimely = time.Since(e.ratesReadAt) < ratesTimely
	r := resolve.Resolve(e.terms, l.id, l.matches, l.reports())
	e.logTies(r.Ties)
	now := e.clock(time.Now())
	obtain := func(limits []resolve.Limit) (shares []*sharing.Share) {
		for _, limit := range limits {
			shares = append(shares, l.shares.obtain(limit, &e.env, now))
		}
		return shares
	}
	l.handles.threshold, l.handles.throttleCaughtUp = r.CaughtUpBacklog, r.ThrottleCaughtUp
	for _, s := range l.shares.replace(newAdmission(l, obtain(r.Messages), obtain(r.Bytes), &r)) {
		e.waiters.forget(s)
	}
	for _, s := range l.shares.inForce.all {
		e.waiters.expect(l, s)
	}
	e.setQuota(l, r.Quota)
	l.subscription.outcomes.counted.Store(r.Outcomes)
	l.admit()
	l.touch(false)
}

// setQuota sets whose quota applies to a lane; nil = none does.
func (e *Engine) setQuota(l *Lane, id *quota.ID) {
	if l.Quota() != nil {
		e.withQuota--
	}
	if id != nil {
		e.withQuota++
	}
	l.quota.Store(id)
}

// logTies logs the patterns that tie, once.
func (e *Engine) logTies(ties []*policy.TieError) {
	for _, tie := range ties {
		if pair := [2]policy.Scope{tie.A, tie.B}; !e.ties[pair] {
			e.ties[pair] = true
			e.journal.warn("two patterns tie; the one that sorts first wins",
				"wins", tie.A, "loses", tie.B, "topic", tie.Topic, "priority", tie.Priority)
		}
	}
}

// reports are what is known of the outcomes that the subscription's handlers report.
func (l *Lane) reports() resolve.Reports {
	if !l.subscription.outcomes.reported.Load() {
		return resolve.Reports{}
	}
	r := resolve.Reports{Any: true}
	for _, other := range l.subscription.all() {
		r.Owners = append(r.Owners, other.id.Owner)
	}
	return r
}

// SlowDown makes the busy limit of a lane's subscription, after the first outcome that was counted.
func (e *Engine) SlowDown(l *Lane) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if open := !e.closed && e.lanes[l.id] == l; open && !l.subscription.outcomes.reported.Swap(true) {
		e.applyAll(l.subscription.all())
	}
}
