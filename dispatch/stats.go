package dispatch

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
)

// Stats is what a replica can tell about itself; metrics and status records are made from it.
type Stats struct {
	Replica  string `json:"replica"`
	Cluster  string `json:"cluster"`
	Version  string `json:"version"`
	Identity string `json:"identity"` // of the policy store
	Revision int64  `json:"revision"` // of the policies in force

	PolicyError string `json:"policyError,omitempty"` // why the policies cannot be read now; empty: they can
	BadPolicies int    `json:"badPolicies,omitempty"` // stored policies that make no sense and are not in force

	Permits       PermitStoreStats    `json:"permitStore"`
	Subscriptions []SubscriptionStats `json:"subscriptions,omitempty"` // sorted by topic and name
}

// PermitStoreStats counts the allocations sent to the permit store since the start.
type PermitStoreStats struct {
	Requests int64 `json:"requests"`       // allocations, pipelined or not
	Errors   int64 `json:"errors"`         // that failed
	Late     int64 `json:"late"`           // that came too late to count
	Away     bool  `json:"away,omitempty"` // the last one failed
}

// A Reason says why callers wait.
type Reason string

// The reasons.
const (
	ReasonNone                 Reason = ""
	ReasonMessages             Reason = "message rate"
	ReasonBytes                Reason = "byte rate"
	ReasonSubscriptionMessages Reason = "subscription's message rate"
	ReasonSubscriptionBytes    Reason = "subscription's byte rate"
	ReasonNamespaceMessages    Reason = "namespace's message rate" // aggregates: of all topics together
	ReasonNamespaceBytes       Reason = "namespace's byte rate"
	ReasonTenantMessages       Reason = "tenant's message rate"
	ReasonTenantBytes          Reason = "tenant's byte rate"
	ReasonClusterMessages      Reason = "cluster's message rate"
	ReasonClusterBytes         Reason = "cluster's byte rate"
	ReasonInFlight             Reason = "messages in flight"
	ReasonPaused               Reason = "paused"
	ReasonBusy                 Reason = "busy answers"
	ReasonQuota                Reason = "quota"
	ReasonPermits              Reason = "permit store unavailable"
	ReasonNoGroup              Reason = "in none of the limit's groups"
)

// ReasonOf is why callers wait for a limit of a scope of that kind.
func ReasonOf(kind policy.Kind, bytes bool) Reason {
	r := ReasonMessages
	if bytes {
		r = ReasonBytes
	}
	if kind != policy.TopicKind {
		r = Reason(kind.String()+"'s ") + r
	}
	return r
}

// bytes says that the limit is of bytes.
func (r Reason) bytes() bool { return strings.HasSuffix(string(r), string(ReasonBytes)) }

// plain says that the limit is of one topic or subscription: who has caught up is exempt.
func (r Reason) plain() bool {
	switch r {
	case ReasonMessages, ReasonBytes, ReasonSubscriptionMessages, ReasonSubscriptionBytes:
		return true
	}
	return false
}

// SubscriptionStats is one subscription in one replica. Counts are since it was opened here; those of its limits go on if a
// new handle is opened within a minute.
type SubscriptionStats struct {
	Topic        string           `json:"topic"`
	Subscription string           `json:"subscription"`
	Owner        string           `json:"owner,omitempty"` // tenant:NAME or tag:NAME, where it was opened with one
	CaughtUp     bool             `json:"caughtUp,omitempty"`
	Exempt       bool             `json:"exempt,omitempty"` // nothing is charged now
	Shadow       bool             `json:"shadow,omitempty"`
	Backlog      int64            `json:"backlog"` // messages; -1 = unknown
	Waiting      int              `json:"waiting,omitempty"`
	InFlight     int64            `json:"inFlight,omitempty"` // messages handed out and not Done, where maxInFlight is set
	Reason       Reason           `json:"reason,omitempty"`   // why they wait
	Shadowed     int64            `json:"shadowed,omitempty"`
	Waits        map[Reason]int64 `json:"waits,omitempty"` // calls that had to wait, all time
	WaitTimes    Histogram        `json:"-"`
	Limits       []LimitStats     `json:"limits,omitempty"`
}

// LimitStats is one limit as one subscription of one replica sees it.
type LimitStats struct {
	Key         string  `json:"key"` // in the permit store
	Reason      Reason  `json:"limit"`
	Rate        float64 `json:"rate"`               // the limit's, permits a second
	Ramp        float64 `json:"ramp,omitempty"`     // where it is on its ramp, permits a second; 0 = at Rate
	Share       float64 `json:"share,omitempty"`    // what this replica may count on, permits a second; 0 = not known, as with strict sharing
	Use         float64 `json:"use"`                // permits a second taken here, averaged over 300 ms or, if that is longer, the last ten
	Stock       int64   `json:"stock,omitempty"`    // allocated and not taken
	Granted     int64   `json:"granted"`            // permits, all time, those returned included
	Returned    int64   `json:"returned,omitempty"` // permits given back unused, all time
	Owed        int64   `json:"owed,omitempty"`     // permits used beyond those granted, all time; later grants pay for them
	Lapsed      int64   `json:"lapsed,omitempty"`   // permits allocated and wasted
	Allocations int64   `json:"allocations"`
	Queued      bool    `json:"queued,omitempty"` // waits in the queue of a strict limit whose slots are all allocated
	Pool        int     `json:"pool,omitempty"`   // replicas by which a split limit is divided
	Group       string  `json:"group,omitempty"`  // of workers that the replica is in, where the limit is divided over groups
	Revision    int64   `json:"revision"`         // at which the limit last changed
}

// WaitBuckets are the upper bounds of a Histogram's buckets; the last bucket has none.
var WaitBuckets = [...]time.Duration{
	time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond, 100 * time.Millisecond,
	300 * time.Millisecond, time.Second, 3 * time.Second, 10 * time.Second, 60 * time.Second,
}

// A Histogram counts waits by their length.
type Histogram struct {
	Count   int64
	Sum     time.Duration
	Buckets [len(WaitBuckets) + 1]int64 // not cumulative
}

func (h *Histogram) add(d time.Duration) {
	i, _ := slices.BinarySearch(WaitBuckets[:], d)
	h.Count++
	h.Sum += d
	h.Buckets[i]++
}

// counters are the Limiter's own.
type counters struct {
	requests, errors, late atomic.Int64
	away                   atomic.Bool
}

// queueStats is guarded by the queue's mutex.
type queueStats struct {
	shadowed int64
	waits    map[Reason]int64
	times    *Histogram
}

func (s *queueStats) waited(d time.Duration, why Reason) {
	if s.times == nil {
		s.times, s.waits = new(Histogram), map[Reason]int64{}
	}
	s.times.add(d)
	s.waits[why]++
}

// Stats returns what there is to know now. It costs about a microsecond a subscription.
func (l *Limiter) Stats() Stats { return l.stats(func(*queue) bool { return true }) }

func (l *Limiter) stats(wanted func(*queue) bool) Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{
		Replica: l.cfg.Replica, Cluster: l.cfg.Cluster, Version: Version(),
		Identity: l.snapshot.Identity, Revision: l.snapshot.Revision, BadPolicies: l.bad,
		Permits: PermitStoreStats{l.counters.requests.Load(), l.counters.errors.Load(), l.counters.late.Load(), l.counters.away.Load()},
	}
	if l.source != nil {
		s.PolicyError = l.source.Error()
	}
	now := time.Now()
	for _, q := range l.queues {
		if wanted(q) {
			s.Subscriptions = append(s.Subscriptions, q.report(now))
		}
	}
	slices.SortFunc(s.Subscriptions, func(a, b SubscriptionStats) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Subscription, b.Subscription), cmp.Compare(a.Owner, b.Owner))
	})
	return s
}

// Stats returns what there is to know now of the subscription, all its handles in this process together. That of a nil
// Subscription is empty.
func (s *Subscription) Stats() SubscriptionStats {
	if s == nil {
		return SubscriptionStats{Backlog: -1, Exempt: true}
	}
	s.queue.limiter.mu.Lock()
	defer s.queue.limiter.mu.Unlock()
	return s.queue.report(time.Now())
}

// MessageRate is the rate of the narrowest limit, in messages a second: for a limit of bytes, what it lets through of messages
// of so many bytes. It is infinite where nothing is limited, also for the caught up, whose limits are those of when they fall behind.
func (s SubscriptionStats) MessageRate(bytes float64) float64 {
	rate := math.Inf(1)
	if s.Shadow {
		return rate
	}
	for _, l := range s.Limits {
		if l.Reason.bytes() {
			rate = min(rate, l.Rate/bytes)
		} else {
			rate = min(rate, l.Rate)
		}
	}
	return rate
}

// report is the queue's part of Stats. The caller holds limiter.mu.
func (q *queue) report(now time.Time) SubscriptionStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.plan.Load()
	s := SubscriptionStats{
		Topic: q.topic.String(), Subscription: q.name, Owner: q.owner.String(), CaughtUp: q.caughtUp, Exempt: p == nil, Shadow: q.limits.shadow,
		Backlog: q.backlog(now), Waiting: len(q.waiting), InFlight: q.family.flying.Load(), Shadowed: q.stats.shadowed,
	}
	if len(q.waiting) > 0 {
		s.Reason = q.reason(p)
	}
	if q.stats.times != nil {
		s.WaitTimes = *q.stats.times
		s.Waits = map[Reason]int64{}
		maps.Copy(s.Waits, q.stats.waits)
	}
	for _, a := range q.limits.all() {
		if l := a.report(q.limiter.clock(now)); l.Reason != ReasonBusy || l.Rate < busy.Max { // a healthy service limits nobody
			s.Limits = append(s.Limits, l)
		}
	}
	return s
}

func (a *account) report(now float64) LimitStats {
	pool, tried, wasted := 0, int64(0), int64(0)
	share, use := a.share, a.meter.rate(now)
	if a.strict != nil {
		tried, wasted = a.strict.tried.Load(), a.strict.wasted.Load()
		share, use = 0, min(use, a.limit.rate) // the reply's share is that of all
	}
	if a.split != nil {
		pool = a.split.size
	}
	group, ramp := "", 0.0
	if a.groups != nil {
		group = a.groups.group
	}
	rate := a.limit.rate
	if a.limit.ramp.Over > 0 && a.rate < rate {
		ramp = a.rate
	}
	if a.limit.rule.Mode != busy.None && a.rate > 0 {
		rate = a.rate
	}
	return LimitStats{
		Queued: a.lining(), Pool: pool, Ramp: ramp, Group: group,
		Key: a.limit.key, Reason: a.reason, Rate: rate, Share: share, Use: use, Stock: a.held(),
		Granted: a.put + tried - a.avail.Load() + a.returned.Load() - a.owed.Load(), Returned: a.returned.Load(), Owed: a.owed.Load(), Lapsed: a.lapsed + wasted, Allocations: a.allocations,
		Revision: a.limit.rev.number,
	}
}

// reason says which limit holds callers up.
func (q *queue) reason(p *plan) Reason {
	switch {
	case p == nil || p.closed:
		return ReasonNone
	case p.paused:
		return ReasonPaused
	case p.inFlight > 0 && q.family.flying.Load() >= p.inFlight:
		return ReasonInFlight
	}
	for _, list := range [...][]*account{p.messages, p.bytes} {
		for _, a := range list {
			if a.avail.Load() <= 0 {
				if a.lost.Load() {
					return ReasonPermits
				}
				if a.outside.Load() {
					return ReasonNoGroup
				}
				return a.reason
			}
		}
	}
	return ReasonNone
}

// publishMost bounds a status record: the subscriptions beyond it are left out.
const publishMost = 1000

// publish tells the permit store once a second what those subscriptions do that do something.
func (l *Limiter) publish(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for countAt := time.Now().Add(firstCount); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		l.publishUsage(ctx)
		l.forgetEnded()
		s := l.stats(func(q *queue) bool { return q.active.Load() || q.caughtUp })
		if len(s.Subscriptions) == 0 || s.Permits.Away {
			continue
		}
		s.Subscriptions = s.Subscriptions[:min(len(s.Subscriptions), publishMost)]
		text, err := json.Marshal(s)
		if err == nil {
			err = l.cfg.Permits.Publish(ctx, l.cfg.Cluster, l.cfg.Replica, text, 3*time.Second)
		}
		if err != nil && ctx.Err() == nil {
			l.log.Debug("the status record could not be published", "error", err)
		}
		if now := time.Now(); err == nil && now.After(countAt) {
			countAt = now.Add(countEvery)
			l.countReplicas(ctx)
		}
	}
}

// publishUsage tells the ratekeeper what the quotas' ids have used since the last time that it
// succeeded.
func (l *Limiter) publishUsage(ctx context.Context) {
	now := time.Now()
	l.mu.Lock()
	secs := now.Sub(l.usageAt).Seconds()
	u, published := l.usage(max(secs, 0.1))
	l.mu.Unlock()
	if len(u.Started)+len(u.Backends) > 0 {
		text, err := json.Marshal(u)
		if err == nil {
			err = l.cfg.Permits.Publish(ctx, permits.UsageOf(l.cfg.Cluster), l.cfg.Replica, text, 3*time.Second)
		}
		if err != nil {
			if ctx.Err() == nil {
				l.log.Debug("what quotas have used could not be published", "error", err)
			}
			return
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	published()
	l.usageAt = now
}
