// Package resolve determines which limits apply to a subscription. It is a pure function of the
// policies and of the rates of quotas.
package resolve

import (
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// Terms are what the limits of all subscriptions of a process are resolved from.
type Terms struct {
	Cluster     string
	WorkerGroup string // that this process is in; "" = none
	Policies    policy.Snapshot
	Rates       quota.Rates // of throttling ids, as a ratekeeper found them
	RatesAt     float64     // the permit store's clock when Rates were read, seconds
	RatesTimely bool        // Rates were read so lately that RatesAt is about now
}

// A LaneID names the messages of one subscription that have one owner. They have the same limits.
type LaneID struct {
	Topic        policy.Topic
	Subscription string
	Owner        Owner
}

// Reports are what is known of the outcomes that a subscription's handlers report.
type Reports struct {
	Any    bool    // one was reported that matters: the subscription has a busy limit
	Owners []Owner // of the subscription's messages: busy answers leave what their quotas reserve
}

// Resolved are the settings that the policies in force give to the messages of a lane.
type Resolved struct {
	Messages, Bytes []Limit
	Paused          bool
	MaxInFlight     int64 // messages delivered and not Done; 0 = any number
	ShadowInFlight  bool  // messages beyond MaxInFlight are counted, and do not wait

	CaughtUpBacklog  int64 // messages; a subscription is caught up at this backlog or under
	ThrottleCaughtUp bool  // a caught-up subscription is throttled, too

	Quota    *quota.ID // the throttling id whose quota applies; nil = none
	Outcomes uint32    // a bit for each [Outcome] that is counted
	Ties     []*policy.TieError
}

// A Limit is one limit of a lane.
type Limit struct {
	Key             string // of the permit store
	Reason          string // why callers wait for it
	Shadow          bool   // messages that would have to wait for it are counted, and do not wait
	ExemptsCaughtUp bool   // caught-up subscriptions bypass it
	Pace
	Sharer   string // the name under which the schedule counts this lane
	Weight   float64
	Reserved float64 // permits a second
	OnOutage policy.OnOutage
	Split    Split
	Groups   Groups
	Source   string            // the policy store that the revision is of; "" = none that has an id
	Revision schedule.Revision // at which the limit last changed
}

// A Pace has the settings whose change advances the revision of a limit, beside those of
// Groups.Terms.
type Pace struct {
	Mode        policy.SharingMode
	Rate        float64 // permits a second
	Ramp        schedule.Ramp
	Burst       float64   // permits
	Round       float64   // seconds
	MaxReserved float64   // strict: slots allocated ahead, in all
	Queue       bool      // strict: a caller that finds all slots allocated queues
	Expiry      float64   // strict: how late a slot may be used, seconds
	Rule        busy.Rule // by which busy answers lower the limit; the zero value: not at all
}

// Split are the settings of `sharing.mode: split`.
type Split struct {
	PoolSize int     // that the policy sets; 0 = the replicas agree on it
	TTL      float64 // seconds after which a silent replica does not count
}

// Groups are the settings of `sharing.mode: groups`.
type Groups struct {
	Terms pool.Terms
	Own   string // the worker group of this process
}

// Resolve returns the limits that apply to the messages of a lane. m are the patterns that match
// its topic, if they are known.
func Resolve(t Terms, lane LaneID, m policy.Matches, r Reports) Resolved {
	e := t.Policies.Set.ResolveMatched(t.Cluster, lane.Topic, lane.Subscription, m)
	p := e.Subscription.WithDefaults()
	s := Resolved{
		Paused: p.IsPaused(), MaxInFlight: *p.MaxInFlight, ShadowInFlight: p.Mode == policy.Shadow,
		CaughtUpBacklog:  *p.CaughtUp.Backlog,
		ThrottleCaughtUp: *p.CaughtUp.Throttle,
		Outcomes:         countedOutcomes(p), Ties: e.Ties,
	}
	own := policy.SubscriptionScope(lane.Topic, lane.Subscription)
	by := sharer{lane.Subscription, *p.Weight, p.Reserved.PerSec(), p.ReservedBytes.PerSec()}
	topic := e.Topic.WithDefaults()
	topic.OnOutage = p.OnOutage
	s.add(t, policy.TopicScope(lane.Topic), topic, e.TopicModes, by)
	s.add(t, own, p, e.SubscriptionModes, sharer{name: lane.Subscription, weight: soleWeight})
	s.addBusy(t, lane, p, r)
	by.name = own.String()
	s.addQuota(t, lane, by)
	for _, a := range e.Aggregates {
		s.add(t, a.Scope, a.Policy.WithDefaults(), a.Modes, by)
	}
	s.pace()
	return s
}

// Revision returns the revision of policies.
func Revision(s policy.Snapshot) schedule.Revision {
	return schedule.Revision{Epoch: s.Epoch, Number: s.Revision}
}

// source names the policy store of policies, of which two on one permit store are a mistake. Plain
// policies, of files or programs, are compared by their times.
func source(s policy.Snapshot) string {
	if s.Plain {
		return ""
	}
	return s.Identity[:min(len(s.Identity), schedule.MaxSource)]
}

// soleWeight is the weight of a subscription in a limit that it shares with no other.
const soleWeight = 1

// A sharer is how a subscription shares a limit.
type sharer struct {
	name                    string
	weight                  float64
	reserved, reservedBytes float64 // a second
}

// add adds the limits of a scope, of a policy with defaults.
func (s *Resolved) add(
	t Terms, scope policy.Scope, p policy.Policy, modes policy.Modes, by sharer,
) {
	limit := Limit{
		Sharer: by.name, Weight: by.weight, OnOutage: p.OnOutage,
		Source: source(t.Policies), Revision: Revision(t.Policies),
		Pace: Pace{Mode: policy.Fair, Round: time.Duration(p.Round).Seconds()},
	}
	ofTopic := scope.Kind == policy.TopicKind || scope.Kind == policy.SubscriptionKind
	if p.MessageRate.Limited() {
		m := limit
		m.Key, m.Reason = permits.LimitKey(t.Cluster, scope, false), Reason(scope.Kind, false)
		m.Reserved, m.Shadow = by.reserved, modes.Messages.IsShadow()
		m.Rate, m.Burst = p.MessageRate.PerSec(), float64(*p.Burst)
		m.Ramp = rampTo(m.Rate, p.Ramp.From.PerSec(), p)
		m.share(t, p)
		m.ExemptsCaughtUp = ofTopic && m.Mode != policy.Strict
		s.Messages = append(s.Messages, m)
	}
	if p.ByteRate.Limited() {
		b := limit
		b.Key, b.Reason = permits.LimitKey(t.Cluster, scope, true), Reason(scope.Kind, true)
		b.Reserved, b.Shadow = by.reservedBytes, modes.Bytes.IsShadow()
		b.Rate, b.Burst = p.ByteRate.PerSec(), float64(*p.ByteBurst)
		b.Ramp = rampTo(b.Rate, p.Ramp.FromBytes.PerSec(), p)
		b.ExemptsCaughtUp = ofTopic
		s.Bytes = append(s.Bytes, b)
	}
}

// share sets how a limit of messages is shared.
func (m *Limit) share(t Terms, p policy.Policy) {
	ttl := time.Duration(p.Sharing.PoolTTL).Seconds()
	switch m.Mode = p.Sharing.Mode; m.Mode {
	case policy.Strict:
		m.Burst, m.MaxReserved = 0, float64(*p.Sharing.MaxReserved)
		m.Queue = p.Sharing.Wait == policy.WaitQueue
		m.Expiry = time.Duration(p.Sharing.PermitExpiry).Seconds()
	case policy.Split:
		m.Split = Split{PoolSize: int(*p.Sharing.Replicas), TTL: ttl}
	case policy.Groups:
		m.Groups.Own = t.WorkerGroup
		m.Groups.Terms = pool.Terms{
			Names: p.Sharing.Groups, Keep: *p.Sharing.KeepBack,
			Permits: p.MessageRate.Permits, Period: p.MessageRate.Period.Seconds(),
			Ahead: min(time.Duration(p.Round), p.MessageRate.Period/10).Seconds(), TTL: ttl,
		}
	}
}

// pace leaves strict pacing to the slowest of the limits that are to be strict, and shares the
// others fairly: slots of two lines would hardly ever be due at the same time. For a limit in
// shadow mode no message waits for a slot.
func (s *Resolved) pace() {
	slowest := -1
	for i, m := range s.Messages {
		if m.Mode != policy.Strict || m.Shadow {
			continue
		}
		if slowest < 0 || m.Rate < s.Messages[slowest].Rate {
			slowest = i
		}
	}
	for i := range s.Messages {
		if m := &s.Messages[i]; m.Mode == policy.Strict && i != slowest {
			m.Mode = policy.Fair
		}
	}
}

// rampTo is the ramp to a rate, if the policy has one: from the smallest step unless it sets
// another start.
func rampTo(rate, from float64, p policy.Policy) schedule.Ramp {
	over := time.Duration(p.Ramp.Over).Seconds()
	if over == 0 || p.Ramp.Mode == policy.RampNone {
		return schedule.Ramp{}
	}
	if from == 0 {
		from = rate / over
	}
	return schedule.Ramp{
		From: from, Over: over, TTL: time.Duration(p.Ramp.TTL).Seconds(),
		Relaxed: p.Ramp.Mode == policy.RampRelaxed,
	}
}

// minQuotaRate is the lowest rate of a quota, messages a second: a schedule has none of 0.
const minQuotaRate = 1.0 / 4096

// addQuota adds the limit of the lane's throttling id, if that has a quota.
func (s *Resolved) addQuota(t Terms, lane LaneID, by sharer) {
	id := lane.Owner.ID(lane.Topic, t.Policies.Set)
	q, ok := t.Policies.Set.Quota(id)
	if !ok {
		return
	}
	name := quota.ID(id.String())
	s.Quota = &name
	s.Paused = s.Paused || q.Total == 0 && !q.Shadow
	m := Limit{
		Key: permits.QuotaKey(t.Cluster, id), Reason: ReasonQuota,
		Sharer: by.name, Weight: by.weight, OnOutage: policy.OutageShare,
		Pace: Pace{
			Mode: policy.Fair, Round: time.Duration(policy.Policy{}.WithDefaults().Round).Seconds(),
		},
	}
	m.quote(t, id, q)
	s.Messages = append(s.Messages, m)
}

// Requote returns a lane's quota limit at the rate that is known now.
func Requote(t Terms, lane LaneID, limit Limit) Limit {
	id := lane.Owner.ID(lane.Topic, t.Policies.Set)
	q, _ := t.Policies.Set.Quota(id)
	limit.quote(t, id, q)
	return limit
}

// quote sets the rate of a quota. The revision is the permit store's clock in milliseconds, 0 if
// that or the rate is not known: then the rate replaces none that the schedule has.
func (m *Limit) quote(t Terms, id policy.Scope, q policy.EffectiveQuota) {
	m.Rate = min(busy.Max, max(minQuotaRate, t.Rates.Of(id, q, t.RatesAt)))
	m.Revision = schedule.Revision{}
	if t.RatesTimely && t.Rates.Read(id) {
		m.Revision.Number = int64(t.RatesAt * float64(time.Second/time.Millisecond))
	}
}

// The reasons of callers that wait for a limit without a scope.
const (
	ReasonBusy  = "busy answers"
	ReasonQuota = "quota"
)

// Reason returns the reason of callers that wait for a limit of a scope of that kind, such as
// "subscription's byte rate".
func Reason(kind policy.Kind, bytes bool) string {
	r := "message rate"
	if bytes {
		r = "byte rate"
	}
	if kind != policy.TopicKind {
		r = kind.String() + "'s " + r
	}
	return r
}
