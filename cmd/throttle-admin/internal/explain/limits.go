package explain

import (
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A limit is one that each message of a topic or a subscription must pass.
type limit struct {
	scope  policy.Scope
	rate   policy.Rate
	bytes  bool
	policy policy.Policy // of the scope
	mode   policy.LimitMode
	shared sharing
}

// limitsOf returns the limits of a topic or a subscription.
func limitsOf(scope policy.Scope, e policy.Effective) (limits []limit) {
	add := func(scope policy.Scope, p policy.Policy, modes policy.Modes) {
		if p.MessageRate.Limited() {
			shared := sharingOf(p)
			if _, paced := shared.(strict); paced && modes.Messages.IsShadow() {
				shared = fair{} // nothing waits for a slot
			}
			limits = append(limits, limit{scope, p.MessageRate, false, p, modes.Messages, shared})
		}
		if p.ByteRate.Limited() {
			limits = append(limits, limit{scope, p.ByteRate, true, p, modes.Bytes, fair{}})
		}
	}
	add(policy.TopicScope(scope.Topic), e.Topic, e.TopicModes)
	add(policy.SubscriptionScope(scope.Topic, scope.Subscription), e.Subscription, e.SubscriptionModes)
	for _, g := range e.Aggregates {
		add(g.Scope, g.Policy, g.Modes)
	}
	return limits
}

func (l limit) reason() dispatch.Reason { return dispatch.ReasonOf(l.scope.Kind, l.bytes) }

// isAggregate reports whether the limit is of several topics together.
func (l limit) isAggregate() bool {
	return l.scope.Kind != policy.TopicKind && l.scope.Kind != policy.SubscriptionKind
}

// exemptsCaughtUp reports whether the limit does not apply to subscriptions without a backlog.
func (l limit) exemptsCaughtUp() bool { return !l.isAggregate() && l.shared.exemptsCaughtUp() }
