package policy

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// An Entry is one stored policy.
type Entry struct {
	Scope  Scope
	Policy Policy

	// Temporary entries lie over the permanent entry of their scope, field by field, while they
	// live. Stores keep one for each field, so that they may end at different times.
	Temporary bool
	Field     string    // of a temporary entry: the JSON name of the only field that Policy sets
	Expires   time.Time // of a temporary entry; it is over then, whether or not the store has deleted it

	Revision int64 // of the store, when the entry was last written

	// Err says why the stored data cannot be used. Policy is then the last one of
	// this entry that could be, or empty.
	Err error
}

// Compare orders entries by scope, the permanent one first, then by field and revision.
func (e Entry) Compare(other Entry) int {
	temporary := func(e Entry) int {
		if e.Temporary {
			return 1
		}
		return 0
	}
	return cmp.Or(e.Scope.Compare(other.Scope), cmp.Compare(temporary(e), temporary(other)),
		cmp.Compare(e.Field, other.Field), cmp.Compare(e.Revision, other.Revision))
}

// ends tells the entries of which it is known when they end.
func (e Entry) ends() bool { return e.Temporary && !e.Expires.IsZero() }

// A Set is all policies, ready to be resolved. It never changes, and any number of goroutines may use it.
type Set struct {
	entries       []Entry
	cluster       *layer
	tenants       map[string]*layer
	tags          map[string]*layer
	namespaces    map[namespace]*layer
	patterns      []*layer // the one that wins last
	topics        map[Topic]*layer
	subscriptions map[subscription]*layer
}

type (
	namespace    struct{ tenant, cluster, name string }
	subscription struct {
		topic Topic
		name  string
	}
)

// A layer is the policy of one scope, temporary entries included.
type layer struct {
	scope  Scope
	policy Policy
	regex  *regexp.Regexp // of a pattern
}

// A TieError reports two patterns of the same priority and length that match one topic. In a Set
// the one whose text sorts first wins, here A; a store refuses them.
type TieError struct {
	A, B     Scope
	Priority int
	Topic    string // the URL of a topic that both match; "" if it could not be decided whether there is one
}

func (e *TieError) Error() string {
	if e.Topic == "" {
		return fmt.Sprintf("priority %d: %q and %q have the same priority and length, and are too complex to decide whether they match the same topics; "+
			"there %q wins: to be sure, give one of them another priority", e.Priority, e.A, e.B, e.A)
	}
	return fmt.Sprintf("priority %d: %q and %q have the same priority and length and both match %s, so that neither wins: give one of them another priority",
		e.Priority, e.A, e.B, e.Topic)
}

// NewSet returns the set of these entries. Its error joins a *[FieldError] for each pattern that is no
// regular expression; the set is usable nevertheless, without these.
// Two entries that set one field of one scope should not be; the one that [Entry.Compare] puts last wins.
func NewSet(entries []Entry) (*Set, error) {
	s := &Set{
		entries:       slices.Clone(entries),
		tenants:       make(map[string]*layer),
		tags:          make(map[string]*layer),
		namespaces:    make(map[namespace]*layer),
		topics:        make(map[Topic]*layer),
		subscriptions: make(map[subscription]*layer),
	}
	sortEntries(s.entries)
	var errs []error
	var last *layer
	for _, e := range s.entries {
		if last != nil && last.scope == e.Scope {
			last.policy.overlay(&e.Policy)
			continue
		}
		l := &layer{scope: e.Scope, policy: e.Policy}
		last = l
		switch e.Scope.Kind {
		case ClusterKind:
			s.cluster = l
		case TenantKind:
			s.tenants[e.Scope.Tenant] = l
		case TagKind:
			s.tags[e.Scope.Tag] = l
		case NamespaceKind:
			s.namespaces[namespace{e.Scope.Tenant, e.Scope.Cluster, e.Scope.Namespace}] = l
		case PatternKind:
			s.patterns = append(s.patterns, l)
		case TopicKind:
			s.topics[e.Scope.Topic] = l
		case SubscriptionKind:
			s.subscriptions[subscription{e.Scope.Topic, e.Scope.Subscription}] = l
		}
	}
	s.patterns = slices.DeleteFunc(s.patterns, func(l *layer) bool {
		err := l.scope.Validate()
		if err == nil {
			l.regex = regexp.MustCompile(l.scope.Pattern)
		}
		errs = append(errs, err)
		return err != nil
	})
	slices.SortFunc(s.patterns, func(a, b *layer) int {
		return cmp.Or(a.compareRank(b), cmp.Compare(b.scope.Pattern, a.scope.Pattern))
	})
	return s, errors.Join(errs...)
}

func sortEntries(entries []Entry) {
	if !slices.IsSortedFunc(entries, Entry.Compare) {
		slices.SortStableFunc(entries, Entry.Compare)
	}
}

func (l *layer) compareRank(other *layer) int {
	return cmp.Or(
		cmp.Compare(or(l.policy.Priority, 0), or(other.policy.Priority, 0)),
		cmp.Compare(len(l.scope.Pattern), len(other.scope.Pattern)))
}

// Single returns a set that has p as the cluster's default.
func Single(p Policy) *Set {
	s, _ := NewSet([]Entry{{Policy: p}}) // has no pattern that could be wrong
	return s
}

// Entries returns the entries of the set in the order of [Entry.Compare]. The slice is the caller's.
func (s *Set) Entries() []Entry { return slices.Clone(s.entries) }

// NextEnd returns when the first temporary entry ends, which may be past; zero if there is none.
func (s *Set) NextEnd() (end time.Time) {
	for i := range s.entries {
		if e := &s.entries[i]; e.ends() && (end.IsZero() || e.Expires.Before(end)) {
			end = e.Expires
		}
	}
	return end
}

// Resolve returns what the policies come to for a subscription of a topic in a cluster. It leaves
// Sources nil; [Set.Explain] fills it.
func (s *Set) Resolve(cluster string, t Topic, name string) Effective {
	e, _, _ := s.resolve(cluster, t, name, nil)
	return e
}

// Explain is Resolve with Sources.
func (s *Set) Explain(cluster string, t Topic, name string) Effective {
	e, layers, own := s.resolve(cluster, t, name, make([]*layer, 0, 8))
	e.Sources = make(map[string]Scope)
	for _, field := range fieldNames {
		for _, l := range layers {
			if l.policy.Has(field) && e.Topic.Has(field) { // a priority is nobody's but its pattern's
				e.Sources[field] = l.scope
			}
		}
		if own != nil && own.policy.Has(field) {
			if isBudget(field) {
				e.Sources["subscription."+field] = own.scope
			} else if e.Subscription.Has(field) {
				e.Sources[field] = own.scope
			}
		}
	}
	return e
}

// isBudget tells the fields that are a budget of their own in a subscription's scope.
func isBudget(field string) bool {
	return field == "messageRate" || field == "byteRate" || field == "burst" || field == "byteBurst"
}

// resolve also returns the layers of the topic, the least specific first, if it is given where to
// put them, and the subscription's own, or nil.
func (s *Set) resolve(cluster string, t Topic, name string, layers []*layer) (e Effective, _ []*layer, own *layer) {
	keep := layers != nil
	add := func(l *layer, aggregate bool) {
		if l == nil {
			return
		}
		if aggregate {
			rest := *l
			rest.policy = rest.policy.withoutBudget()
			l = &rest
		}
		e.Topic.overlay(&l.policy)
		if keep {
			layers = append(layers, l)
		}
	}
	// An aggregate keeps its rates for itself; how it behaves, it inherits.
	aggregate := func(scope Scope, own ...*layer) {
		g := Aggregate{scope, e.Topic.withoutBudget()}
		for _, l := range own {
			if l != nil {
				g.Policy.overlay(&l.policy)
			}
		}
		e.Aggregates = append(e.Aggregates, g)
	}
	if l := s.cluster; l != nil {
		if l.policy.IsAggregate() {
			aggregate(ClusterScope(), l)
		}
		add(l, l.policy.IsAggregate())
	}
	if l := s.tenants[t.Tenant]; l != nil {
		aggregate(TenantScope(t.Tenant), l)
	}
	if len(s.namespaces) > 0 {
		all, here := s.namespaces[namespace{t.Tenant, "", t.Namespace}], (*layer)(nil)
		if cluster != "" {
			here = s.namespaces[namespace{t.Tenant, cluster, t.Namespace}]
		}
		one := all != nil && all.policy.IsAggregate()
		if here != nil && here.policy.Aggregate != nil {
			one = *here.policy.Aggregate
		}
		if one {
			aggregate(NamespaceScope(t.Tenant, "", t.Namespace), all, here)
		}
		add(all, one)
		add(here, one)
	}
	if len(s.patterns) > 0 {
		url, last := t.String(), (*layer)(nil)
		for _, l := range s.patterns {
			if !l.regex.MatchString(url) {
				continue
			}
			if add(l, false); last != nil && l.compareRank(last) == 0 {
				e.Ties = append(e.Ties, tie(l, last, url))
			}
			last = l
		}
	}
	add(s.topics[t], false)
	e.Topic.Priority, e.Topic.Aggregate = nil, nil
	e.Topic = e.Topic.withoutQuotas()
	e.Subscription = e.Topic.withoutBudget()
	if own = s.subscriptions[subscription{t, name}]; own != nil {
		e.Subscription.overlay(&own.policy)
		e.Subscription.Priority = nil
	}
	return e, layers, own
}

// tie reports two patterns of one rank, of which a wins.
func tie(a, b *layer, topic string) *TieError {
	return &TieError{a.scope, b.scope, or(a.policy.Priority, 0), topic}
}

// Ties returns the pairs of patterns of the set that tie, with an example of a topic each, and those
// of which this could not be decided; only pairs with a scope of which among tells true.
func (s *Set) Ties(among func(Scope) bool) (ties []*TieError) {
	left := maxTieSteps
	automata := map[*layer]*automaton{}
	get := func(l *layer) *automaton {
		if automata[l] == nil {
			automata[l] = compile(l.scope.Pattern)
		}
		return automata[l]
	}
	for i, a := range s.patterns {
		for j := i - 1; j >= 0 && a.compareRank(s.patterns[j]) == 0; j-- {
			b := s.patterns[j]
			if !among(a.scope) && !among(b.scope) {
				continue
			}
			steps := min(left, maxOverlapSteps)
			left -= steps
			topic, decided := overlap(get(a), get(b), &steps)
			left += max(0, steps)
			if topic != "" || !decided {
				ties = append(ties, tie(a, b, topic))
			}
		}
	}
	return ties
}
