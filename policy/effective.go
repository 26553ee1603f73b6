package policy

// Effective is what the policies come to for one subscription of one topic in one cluster: the
// fields of all scopes that match, the most specific scope winning field by field.
type Effective struct {
	// Topic has the topic's own limits, shared by all its subscriptions:
	// cluster < namespace < namespace in this cluster < pattern < topic.
	Topic Policy

	// Subscription has the fields of Topic other than its limits, and over them the subscription's.
	// Its rates and bursts are further limits of the subscription; they are set only by the
	// subscription's own scope.
	Subscription Policy

	// Aggregates are the limits that this topic shares with others: those of its tenant, its
	// namespace and the cluster.
	Aggregates []Aggregate

	// TopicModes are the modes of Topic's limits, and SubscriptionModes those of Subscription's. The
	// mode of a limit is set by the scope that sets its rate, or by a more specific one, and is
	// Enforce if none of them sets one: so a mode previews a rate that is inherited, and never lifts
	// one that a more specific scope has set. The Mode of Topic and of Subscription is the inherited
	// one, which is that of maxInFlight and busy.
	TopicModes, SubscriptionModes Modes

	// Sources names the scope that each set field comes from, by the field's name; it is nil unless
	// [Set.Explain] made the value. A limit of the subscription is under "subscription.messageRate"
	// and so on; other fields are the subscription's.
	Sources map[string]Scope

	// Ties are the pairs of matching patterns of which neither wins by priority or length; usually
	// none.
	Ties []*TieError
}

// An Aggregate is the limits over all topics of a scope together.
type Aggregate struct {
	Scope  Scope  // of kind cluster, tenant or namespace, without a cluster
	Policy Policy // rates and bursts, and how they are shared
	Modes  Modes  // set by the scope, or for the namespace by that in this cluster; not inherited
}

// Modes are the modes of the two limits of a policy.
type Modes struct{ Messages, Bytes LimitMode }

// A LimitMode is the mode of a limit, and the scope that sets it. The zero value is the default,
// Enforce.
type LimitMode struct {
	Mode Mode // "" = Enforce
	By   Scope
}

// IsShadow reports whether the limit only counts.
func (m LimitMode) IsShadow() bool { return m.Mode == Shadow }

// add takes in a scope that is more specific than those before.
func (m *Modes) add(l *layer) {
	m.Messages.add(l, l.policy.MessageRate != Rate{})
	m.Bytes.add(l, l.policy.ByteRate != Rate{})
}

func (m *LimitMode) add(l *layer, setsRate bool) {
	if setsRate {
		*m = LimitMode{}
	}
	if l.policy.Mode != "" {
		*m = LimitMode{l.policy.Mode, l.scope}
	}
}
