package resolve

import (
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
)

// An Outcome is how the system that a handler protects has answered.
type Outcome int

// The outcomes.
const (
	OK Outcome = iota
	Busy
	Failed
	Timeout
	Ignored
)

// addBusy adds the limit that busy answers lower, once outcomes are reported. Until the first busy
// answer, it is unlimited. While the permit store is unavailable, the last share stays in force.
func (s *Resolved) addBusy(t Terms, lane LaneID, p policy.Policy, r Reports) {
	rule := busyRule(p)
	if rule.Mode == busy.None || !r.Any {
		return
	}
	rule.MinRate = max(rule.MinRate, reservedByQuotas(t, lane.Topic, r.Owners))
	s.Messages = append(s.Messages, Limit{
		Key: permits.BusyKey(t.Cluster, lane.Topic, lane.Subscription), Reason: ReasonBusy,
		Shadow: p.Mode == policy.Shadow, Sharer: lane.Subscription,
		Weight: soleWeight, OnOutage: policy.OutageShare,
		Pace: Pace{
			Mode: policy.Fair, Rate: busy.Max, Round: time.Duration(p.Round).Seconds(), Rule: rule,
		},
		Revision: Revision(t.Policies),
	})
}

// reservedByQuotas is what the quotas of a topic's messages reserve together, in messages a
// second.
func reservedByQuotas(t Terms, topic policy.Topic, owners []Owner) (reserved float64) {
	counted := map[policy.Scope]bool{}
	for _, o := range owners {
		id := o.ID(topic, t.Policies.Set)
		if q, ok := t.Policies.Set.Quota(id); ok && !counted[id] {
			counted[id] = true
			reserved += t.Rates.Reserved(id, q)
		}
	}
	return reserved
}

var outcomeNamed = map[string]Outcome{
	policy.OutcomeBusy: Busy, policy.OutcomeFailed: Failed, policy.OutcomeTimeout: Timeout,
}

// countedOutcomes are OK and those that count as busy, a bit each.
func countedOutcomes(p policy.Policy) uint32 {
	if p.Busy.Mode == policy.BusyNone {
		return 0
	}
	bits := uint32(1) << OK
	for _, name := range p.Busy.Outcomes {
		bits |= 1 << outcomeNamed[name]
	}
	return bits
}

func busyRule(p policy.Policy) busy.Rule {
	switch p.Busy.Mode {
	case policy.BusyFraction:
		return busy.Rule{
			Mode: busy.ByFraction, MinRate: *p.Busy.MinRate, Tolerance: *p.Busy.Tolerance,
		}
	case policy.BusyTChannel:
		return busy.Rule{
			Mode: busy.ByCount, MinRate: *p.Busy.MinRate,
			RecoverRate: *p.Busy.RecoverRate, RecoverValue: *p.Busy.RecoverValue,
		}
	}
	return busy.Rule{}
}
