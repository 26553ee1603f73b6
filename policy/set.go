package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// An Entry is one stored object: the policy of a scope, the quota of a throttling id, or the
// cluster's settings for quotas.
type Entry struct {
	Scope    Scope
	Settings Settings // a Policy, a Quota or QuotaSettings; nil is an empty Policy

	// Temporary entries lie over the permanent entry of their scope, field by field, until they
	// expire. Stores keep one for each field, so that they may expire at different times.
	Temporary bool
	Field     string    // of a temporary entry: the only field that Settings sets
	Expires   time.Time // of a temporary entry; it may outlast that in the store

	Revision int64 // of the store, when the entry was last written

	// Err says why the stored data cannot be used. Settings is then the last version of this entry
	// that could be used, or sets nothing.
	Err error
}

// Section returns the section that the entry belongs to.
func (e Entry) Section() Section {
	if e.Settings == nil {
		return PolicySection
	}
	return e.Settings.Section()
}

// Policy returns the policy of an entry of [PolicySection], else one that sets nothing.
func (e Entry) Policy() Policy {
	p, _ := e.Settings.(Policy)
	return p
}

// Compare orders entries by section and scope, the permanent one first, then by field and revision.
func (e Entry) Compare(other Entry) int {
	temporary := func(e Entry) int {
		if e.Temporary {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(e.Section(), other.Section()), e.Scope.Compare(other.Scope),
		cmp.Compare(temporary(e), temporary(other)), cmp.Compare(e.Field, other.Field),
		cmp.Compare(e.Revision, other.Revision))
}

// expires reports whether it is known when the entry expires.
func (e Entry) expires() bool { return e.Temporary && !e.Expires.IsZero() }

// A Set is all policies and quotas, ready to be resolved. It never changes, and any number of
// goroutines may use it.
type Set struct {
	entries       []Entry
	cluster       *layer
	tenants       map[string]*layer
	namespaces    map[namespace]*layer
	patterns      []*layer // the one that wins last
	topics        map[Topic]*layer
	subscriptions map[subscription]*layer
	quotas        map[Scope]Quota // by throttling id
	quotaSettings QuotaSettings

	historySettings HistorySettings
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
	scope   Scope
	policy  Policy
	pattern *pattern // nil unless the scope is one
}

// A TieError reports two patterns of the same priority and length that match one topic. In a Set
// the one whose text sorts first wins, here A; a store refuses them.
type TieError struct {
	A, B     Scope
	Priority int
	Topic    string // the URL of a topic that both match; "" if none was found in time
}

func (e *TieError) Error() string {
	if e.Topic == "" {
		return fmt.Sprintf("policy: priority %d: %q and %q have the same priority and length, "+
			"and it takes too long to find a topic that both match; there %q wins: "+
			"give one of them another priority", e.Priority, e.A, e.B, e.A)
	}
	return fmt.Sprintf("policy: priority %d: %q and %q have the same priority and length, "+
		"and both match %s: give one of them another priority", e.Priority, e.A, e.B, e.Topic)
}

// NewSet returns the set of these entries. Its error joins a *[FieldError] for each pattern that is
// not a valid regular expression; the set is usable without them. Two entries should not set one
// field of one scope; if they do, the one that [Entry.Compare] puts last wins.
func NewSet(entries []Entry) (*Set, error) {
	s := &Set{
		entries:       slices.Clone(entries),
		tenants:       make(map[string]*layer),
		namespaces:    make(map[namespace]*layer),
		topics:        make(map[Topic]*layer),
		subscriptions: make(map[subscription]*layer),
		quotas:        make(map[Scope]Quota),
	}
	if !slices.IsSortedFunc(s.entries, Entry.Compare) {
		slices.SortStableFunc(s.entries, Entry.Compare)
	}
	var errs []error
	var last *layer
	for i := range s.entries {
		e := &s.entries[i]
		if e.Settings == nil {
			e.Settings = Policy{}
		}
		switch settings := e.Settings.(type) {
		case Quota:
			s.quotas[e.Scope] = Overlay(s.quotas[e.Scope], settings)
		case QuotaSettings:
			s.quotaSettings = Overlay(s.quotaSettings, settings)
		case HistorySettings:
			s.historySettings = Overlay(s.historySettings, settings)
		default:
			p := e.Policy()
			if last != nil && last.scope == e.Scope {
				last.policy.overlay(&p)
			} else {
				last = &layer{scope: e.Scope, policy: p}
				errs = append(errs, s.add(last))
			}
		}
	}
	slices.SortFunc(s.patterns, func(a, b *layer) int {
		return cmp.Or(a.compareRank(b), cmp.Compare(b.scope.Pattern, a.scope.Pattern))
	})
	return s, errors.Join(errs...)
}

// add adds the layer of a scope that has none. A pattern that is not valid is left out.
func (s *Set) add(l *layer) (err error) {
	switch scope := l.scope; scope.Kind {
	case ClusterKind:
		s.cluster = l
	case TenantKind:
		s.tenants[scope.Tenant] = l
	case NamespaceKind:
		s.namespaces[namespace{scope.Tenant, scope.Cluster, scope.Namespace}] = l
	case PatternKind:
		l.pattern, _ = compilePattern(scope.Pattern) // Validate has the error
		if err = scope.Validate(); err == nil {
			s.patterns = append(s.patterns, l)
		}
	case TopicKind:
		s.topics[scope.Topic] = l
	case SubscriptionKind:
		s.subscriptions[subscription{scope.Topic, scope.Subscription}] = l
	}
	return err
}

func (l *layer) priority() int {
	if l.policy.Priority == nil {
		return 0
	}
	return *l.policy.Priority
}

func (l *layer) compareRank(other *layer) int {
	return cmp.Or(cmp.Compare(l.priority(), other.priority()),
		cmp.Compare(len(l.scope.Pattern), len(other.scope.Pattern)))
}

func (p *Policy) isAggregate() bool { return p.Aggregate != nil && *p.Aggregate }

// Single returns a set that has p as the cluster's default.
func Single(p Policy) *Set {
	s, _ := NewSet([]Entry{{Settings: p}}) // has no pattern that could be invalid
	return s
}

// Entries returns the entries of the set in the order of [Entry.Compare]. The slice is the
// caller's.
func (s *Set) Entries() []Entry { return slices.Clone(s.entries) }

// NextEnd returns when the first temporary entry expires, which may be past; zero if there is none.
func (s *Set) NextEnd() (end time.Time) {
	for i := range s.entries {
		if e := &s.entries[i]; e.expires() && (end.IsZero() || e.Expires.Before(end)) {
			end = e.Expires
		}
	}
	return end
}

// Resolve returns what the policies come to for a subscription of a topic in a cluster. It leaves
// Sources nil; [Set.Explain] fills it.
func (s *Set) Resolve(cluster string, t Topic, name string) Effective {
	return s.resolve(cluster, t, name, s.Match(t), nil)
}

// ResolveMatched is Resolve with what Match has returned for the topic. If that was of another set
// or topic, it matches the patterns itself.
func (s *Set) ResolveMatched(cluster string, t Topic, name string, m Matches) Effective {
	if m.set != s || m.topic != t {
		m = s.Match(t)
	}
	return s.resolve(cluster, t, name, m, nil)
}

// Matches are the patterns of a set that match a topic. The zero value is of no set.
type Matches struct {
	set    *Set
	topic  Topic
	layers []*layer // the one that wins last
}

// Match finds the patterns that match a topic, which may take milliseconds: all else that resolving
// does takes a microsecond.
func (s *Set) Match(t Topic) Matches {
	m := Matches{set: s, topic: t}
	if len(s.patterns) == 0 {
		return m
	}
	url := t.String()
	for _, l := range s.patterns {
		if l.pattern.regex.MatchString(url) {
			m.layers = append(m.layers, l)
		}
	}
	return m
}

// Explain is Resolve with Sources.
func (s *Set) Explain(cluster string, t Topic, name string) Effective {
	sources := make(map[string]Scope)
	e := s.resolve(cluster, t, name, s.Match(t), func(l *layer, isAggregate bool) {
		for _, r := range policyTable.set(&l.policy) {
			switch own := l.scope.Kind == SubscriptionKind; {
			case own && r.isLimit:
				sources["subscription."+r.name] = l.scope
			case !(isAggregate && r.isLimit):
				sources[r.name] = l.scope
			}
		}
	})
	delete(sources, "priority")  // is only the pattern's,
	delete(sources, "aggregate") // and this the namespace's
	e.Sources = sources
	return e
}

// resolve calls each, unless that is nil, with the layers that apply, the least specific first;
// isAggregate says that the layer's limits are not the topic's.
func (s *Set) resolve(
	cluster string, t Topic, name string, m Matches, each func(l *layer, isAggregate bool),
) (e Effective) {
	add := func(l *layer, isAggregate bool) {
		if l == nil {
			return
		}
		if isAggregate {
			others := l.policy.withoutLimits()
			e.Topic.overlay(&others)
		} else {
			e.Topic.overlay(&l.policy)
			e.TopicModes.add(l)
		}
		if each != nil {
			each(l, isAggregate)
		}
	}
	// The limits of an aggregate are its own; how it treats them, it inherits.
	aggregate := func(scope Scope, own ...*layer) {
		g := Aggregate{Scope: scope, Policy: e.Topic.withoutLimits()}
		for _, l := range own {
			if l != nil {
				g.Policy.overlay(&l.policy)
				g.Modes.add(l)
			}
		}
		e.Aggregates = append(e.Aggregates, g)
	}
	if l := s.cluster; l != nil {
		if l.policy.isAggregate() {
			aggregate(ClusterScope(), l)
		}
		add(l, l.policy.isAggregate())
	}
	if l := s.tenants[t.Tenant]; l != nil {
		aggregate(TenantScope(t.Tenant), l)
	}
	if len(s.namespaces) > 0 {
		all, here := s.namespaces[namespace{t.Tenant, "", t.Namespace}], (*layer)(nil)
		if cluster != "" {
			here = s.namespaces[namespace{t.Tenant, cluster, t.Namespace}]
		}
		one := all != nil && all.policy.isAggregate()
		if here != nil && here.policy.Aggregate != nil {
			one = *here.policy.Aggregate
		}
		if one {
			aggregate(NamespaceScope(t.Tenant, "", t.Namespace), all, here)
		}
		add(all, one)
		add(here, one)
	}
	for i, l := range m.layers {
		add(l, false)
		if i > 0 && l.compareRank(m.layers[i-1]) == 0 {
			e.Ties = append(e.Ties, tie(l, m.layers[i-1], t.String()))
		}
	}
	add(s.topics[t], false)
	e.Topic.Priority, e.Topic.Aggregate = nil, nil
	e.Subscription = e.Topic.withoutLimits()
	if own := s.subscriptions[subscription{t, name}]; own != nil {
		e.Subscription.overlay(&own.policy)
		e.SubscriptionModes.add(own)
		if each != nil {
			each(own, false)
		}
	}
	return e
}

// tie reports two patterns of one rank, of which a wins.
func tie(a, b *layer, topic string) *TieError {
	return &TieError{a.scope, b.scope, a.priority(), topic}
}

// Ties returns the pairs of patterns of the set that tie, with an example of a topic each, and the
// pairs for which this is undecided; only pairs with a scope for which among is true.
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
