package dispatch

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// ratesEvery is how often a replica looks for rates, while it has quotas to obey.
const ratesEvery = 500 * time.Millisecond

// rates are what a Limiter knows of them. Its mutex guards it.
type rates struct {
	Rates
	now float64   // on the permit store's clock, when it was last asked
	at  time.Time // when that was
}

// leastRate is the lowest of a quota: one message in an hour or so, for a schedule has none of 0.
const leastRate = 1.0 / 4096

// addQuota adds the limit of the queue's throttling id, if that has a quota.
func (q *queue) addQuota(p *plan, by sharer) {
	l := q.limiter
	id := q.owner.id(q.topic, l.snapshot.Set)
	found, ok := l.snapshot.Set.Quota(id)
	if !ok {
		q.metered.Store(nil)
		return
	}
	name := quota.ID(id.String())
	q.metered.Store(&name)
	if found.Total == 0 && !found.Shadow {
		p.paused = true
	}
	a := q.account(permits.QuotaKey(l.cfg.Cluster, id), by.name, ReasonQuota)
	a.limit.round = policy.DefaultRound.Seconds() // not of whichever of the id's subscriptions was last looked at
	q.followRate(a)
	a.loss, a.weight, a.plain = policy.OutageShare, by.weight, false
	p.messages = append(p.messages, a)
}

// followRates obeys what ratekeepers find, while there are quotas.
func (l *Limiter) followRates(ctx context.Context) {
	ticker := time.NewTicker(ratesEvery)
	defer ticker.Stop()
	for bad := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !l.hasQuotas() {
			continue
		}
		text, now, err := l.cfg.Permits.Value(ctx, permits.RatesKey(l.cfg.Cluster))
		if err != nil {
			continue // the limits are allocated in the same permit store: that it is away is said
		}
		var found Rates
		if err := json.Unmarshal(text, &found); len(text) > 0 && err != nil {
			if found = (Rates{}); bad != err.Error() {
				bad = err.Error()
				l.log.Warn("the rates of quotas make no sense", "key", permits.RatesKey(l.cfg.Cluster), "error", err)
			}
		}
		l.mu.Lock()
		l.obeyRates(found, now)
		l.mu.Unlock()
	}
}

func (l *Limiter) hasQuotas() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.queues {
		if q.metered.Load() != nil {
			return true
		}
	}
	return false
}

// obeyRates puts rates in force, unless they are older than those that are. The caller holds l.mu.
func (l *Limiter) obeyRates(found Rates, now float64) {
	known := &l.rates
	old := known.Old(known.now)
	stale := found.Identity == known.Identity && found.Term < known.Term && !known.Old(now)
	if found.Time > 0 && !stale {
		known.Rates = found
	}
	known.now, known.at = now, time.Now()
	if !old && known.Old(now) && known.Time > 0 {
		l.log.Warn("no ratekeeper has found rates for long: quotas go on at what is reserved or, if nothing is, in total", "for", RatesHold)
	}
	for _, q := range l.queues {
		for _, a := range q.limits.messages {
			if a.reason != ReasonQuota {
				continue
			}
			if q.followRate(a); a.rev != a.limit.rev { // by another queue of the id, perhaps
				a.askAgain()
				q.touched.Store(true) // its next step was found by the old rate, of which a permit may be due in an hour
			}
		}
	}
	l.reserve()
	l.wake()
}

// followRate has the limit of the queue's id go at the rate that is known now. Its revision is the permit store's clock, so that of several replicas' rates
// the one that was found last is in force; where that clock was not asked lately, it is set again when it is. The caller holds limiter.mu.
func (q *queue) followRate(a *account) {
	set := q.limiter.snapshot.Set
	id := q.owner.id(q.topic, set)
	found, _ := set.Quota(id)
	known := &q.limiter.rates
	timely := time.Since(known.at) < 2*ratesEvery
	rate := min(busy.Max, max(leastRate, known.Of(id, found, known.now)))
	if rate != a.limit.rate || a.limit.undated && timely {
		a.limit.rate, a.limit.rev = rate, revision{"quota", max(a.limit.rev.number+1, int64(known.now*1e6))}
		a.limit.undated = !timely
		a.askAgain()
	}
}

// begun is how many messages an account of a quota has let begin, all time.
func (a *account) begun() int64 { return a.put - a.avail.Load() + a.through.Load() }

// settleBegun notes what the queue has begun of its quota since it was last asked. The caller holds limiter.mu.
func (q *queue) settleBegun() {
	for _, a := range q.limits.messages {
		if id := q.metered.Load(); a.reason == ReasonQuota && id != nil {
			n := a.begun()
			q.limiter.begun[*id] += n - a.settled
			a.settled = n
		}
	}
}

// usage returns the usage since the last one that was published, secs ago, and what to call once
// it is published. The caller holds l.mu for both.
func (l *Limiter) usage(secs float64) (u Usage, published func()) {
	u = Usage{Replica: l.cfg.Replica, Started: map[quota.ID]float64{}}
	for _, q := range l.queues {
		q.settleBegun()
	}
	started := maps.Clone(l.begun)
	for id, n := range started {
		u.Started[id] = max(0, float64(n)) / secs
	}
	var settles []func()
	for _, b := range l.backends {
		r, some, settle := b.report(secs)
		if some {
			u.Backends = append(u.Backends, r)
		}
		settles = append(settles, settle)
	}
	return u, func() {
		for id, n := range started {
			if l.begun[id] -= n; l.begun[id] == 0 {
				delete(l.begun, id)
			}
		}
		for _, settle := range settles {
			settle()
		}
	}
}
