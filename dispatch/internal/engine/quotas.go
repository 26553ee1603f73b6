package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// ApplyRates puts the rates of throttling ids in force on the lanes whose quotas they are. They
// were read now, when the permit store's clock was at.
func (e *Engine) ApplyRates(rates quota.Rates, at float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.terms.Rates, e.terms.RatesAt, e.terms.RatesTimely = rates, at, true
	e.ratesReadAt = time.Now()
	for _, l := range e.lanes {
		for _, s := range l.shares.inForce.messages {
			if s.Limit.Reason != resolve.ReasonQuota {
				continue
			}
			if s.Apply(resolve.Requote(e.terms, l.id, s.Limit)) {
				l.touch(false) // a permit may be due in an hour by the old rate
			}
		}
	}
	hasQuota := func(l *Lane) bool { return l.Quota() != nil }
	for _, s := range e.subscriptions {
		if s.outcomes.reported.Load() && slices.ContainsFunc(s.all(), hasQuota) {
			e.applyAll(s.all()) // what quotas reserve, busy answers do not take away
		}
	}
}

// Quotas returns the throttling ids whose quotas apply to lanes, sorted.
func (e *Engine) Quotas() []quota.ID {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.withQuota == 0 {
		return nil
	}
	ids := map[quota.ID]bool{}
	for _, l := range e.lanes {
		if id := l.Quota(); id != nil {
			ids[*id] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// Started returns how many messages each throttling id with a quota has started since the counts
// were last taken. They stay until taken is called, with those to take out.
func (e *Engine) Started() (n map[quota.ID]int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.lanes {
		e.countStarted(l)
	}
	n = make(map[quota.ID]int64, len(e.started))
	maps.Copy(n, e.started)
	return n
}

// TakeStarted takes messages out of the counts that Started returns.
func (e *Engine) TakeStarted(n map[quota.ID]int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, k := range n {
		if e.started[id] -= k; e.started[id] == 0 {
			delete(e.started, id)
		}
	}
}

// countStarted notes what a lane has started of its quota since it was last asked.
func (e *Engine) countStarted(l *Lane) {
	id := l.quota.Load()
	if id == nil {
		return
	}
	for _, s := range l.shares.inForce.messages {
		if s.Limit.Reason == resolve.ReasonQuota {
			e.started[*id] += s.TakeUsed()
		}
	}
}
