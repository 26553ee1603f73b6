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
}
