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
	mode   sharing
}

// limitsOf returns the limits of a topic or a subscription.
func limitsOf(scope policy.Scope, e policy.Effective) (limits []limit) {
	add := func(scope policy.Scope, p policy.Policy) {
		if p.MessageRate.Limited() {
			limits = append(limits, limit{scope, p.MessageRate, false, p, modeOf(p)})
		}
		if p.ByteRate.Limited() {
			limits = append(limits, limit{scope, p.ByteRate, true, p, fair{}})
		}
	}
	add(policy.TopicScope(scope.Topic), e.Topic)
	add(policy.SubscriptionScope(scope.Topic, scope.Subscription), e.Subscription)
	for _, g := range e.Aggregates {
		add(g.Scope, g.Policy)
	}
	return limits
}

func (l limit) reason() dispatch.Reason { return dispatch.ReasonOf(l.scope.Kind, l.bytes) }

// isAggregate reports whether the limit is of several topics together.
func (l limit) isAggregate() bool {
	return l.scope.Kind != policy.TopicKind && l.scope.Kind != policy.SubscriptionKind
}

// exemptsCaughtUp reports whether the limit does not apply to subscriptions without a backlog.
func (l limit) exemptsCaughtUp() bool { return !l.isAggregate() && l.mode.exemptsCaughtUp() }
