package policy

// Effective is what the policies come to for one subscription of one topic in one
// cluster: the fields of all scopes that match, the most specific one winning field by field.
type Effective struct {
	// Topic has the topic's own budget, shared by all its subscriptions:
	// cluster < namespace < namespace of this cluster < pattern < topic.
	Topic Policy

	// Subscription has all behaviour fields with the subscription's scope on top of Topic's.
	// Its rates and bursts are the subscription's further budget and are
	// set only if the subscription's own scope sets them.
	Subscription Policy

	// Aggregates are the budgets over many topics that this topic is one of: its tenant's, its namespace's, the cluster's.
	Aggregates []Aggregate

	// Sources names, by the JSON name of a field, the scope that each set field came from; in
	// Subscription's terms, a rate of the subscription under "subscription.messageRate" etc.
	Sources map[string]Scope

	// Ties are the pairs of matching patterns of which neither wins by priority or length; usually none.
	Ties []*TieError
}

// An Aggregate is one budget over all topics of a scope.
type Aggregate struct {
	Scope  Scope  // of kind cluster, tenant or namespace, without a cluster
	Policy Policy // its rates and bursts, and how they behave
}

// Snapshot is all policies at one revision of their store.
type Snapshot struct {
	Set      *Set   // never nil
	Identity string // of the store: revisions of different identities cannot be compared
	Revision int64  // of the store, when this was true; below 2^53
}
