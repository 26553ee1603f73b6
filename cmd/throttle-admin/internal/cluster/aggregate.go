package cluster

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
)

// An Aggregate is what an overview shows of a limit of several topics together: of a namespace, a
// tenant or the cluster.
type Aggregate struct {
	Scope     string    `json:"scope"`
	Filter    string    `json:"filter,omitempty"` // of a Query that leaves its topics
	Condition Condition `json:"condition"`        // throttled, flowing or idle
	Limit     Limit     `json:"limit"`
	Rate      Number    `json:"rate"`              // permits a second, of the topics that have a rate
	Unknown   int       `json:"unknown,omitempty"` // topics whose rate is unknown
	Waiting   int       `json:"waiting"`           // calls that wait for this limit now
	Topics    int       `json:"topics"`            // that replicas publish
	Throttled int       `json:"throttled"`         // topics of which calls wait for it, or lately did

	shown limit // which Limit is of
}

// A contribution is what one topic has of an Aggregate.
type contribution struct {
	shown   limit
	cluster string // that the key is of
	rate    sum
	waiting int
	waited  bool
}

// isAggregate reports whether the limit is of several topics together.
func (l *limit) isAggregate() bool {
	_, ok := (&waits{}).of(l.Reason)
	return ok
}

// contribute brings what the topic has of each Aggregate up to date.
func (t *topic) contribute() {
	t.contributions = t.contributions[:0]
	for _, g := range t.groups {
		for _, p := range g.parts {
			if !p.live() {
				continue
			}
			for i := range p.last.Limits {
				if p.last.Limits[i].isAggregate() {
					t.contribution(p, &p.last.Limits[i]).add(p, i)
				}
			}
		}
	}
}

// contribution returns that to the limit, a new one at first.
func (t *topic) contribution(p *part, l *limit) *contribution {
	i := slices.IndexFunc(t.contributions, func(c contribution) bool { return c.shown.Key == l.Key })
	if i < 0 {
		i = len(t.contributions)
		t.contributions = append(t.contributions, contribution{shown: *l, cluster: p.replica.last.Cluster})
	}
	return &t.contributions[i]
}

// add adds what a part has of its limit i.
func (c *contribution) add(p *part, i int) {
	l := &p.last.Limits[i]
	if l.before(&c.shown) {
		c.shown = *l
	}
	if rate, ok := p.counted(l.Key); ok {
		c.rate.add(rate.smoothed)
	}
	waiting, waited := p.waitedFor(l)
	c.waiting, c.waited = c.waiting+waiting, c.waited || waited
}

// sumUp returns the limits of several topics, by key.
func (st *State) sumUp() map[string]*Aggregate {
	all := map[string]*Aggregate{}
	for _, t := range st.topics {
		for i := range t.contributions {
			c := &t.contributions[i]
			a := all[c.shown.Key]
			if a == nil {
				a = &Aggregate{Scope: permits.LimitScope(c.cluster, c.shown.Key), shown: c.shown}
				a.Filter = filterOf(a.Scope)
				all[c.shown.Key] = a
			}
			a.add(c)
		}
	}
	for _, a := range all {
		a.conclude()
	}
	return all
}

// conclude says what follows from all contributions.
func (a *Aggregate) conclude() {
	a.Limit = a.shown.view()
	if a.Unknown == a.Topics {
		a.Rate = Unknown
	}
	switch {
	case a.Throttled > 0:
		a.Condition = Throttled
	case a.Rate == 0 && a.Unknown == 0:
		a.Condition = Idle
	default:
		a.Condition = Flowing
	}
}

// add adds the contribution of a topic. One to which nothing is charged now has a rate of 0.
func (a *Aggregate) add(c *contribution) {
	a.Topics++
	a.Waiting += c.waiting
	if c.waited {
		a.Throttled++
	}
	if rate := Number(c.rate.total); rate.Known() {
		a.Rate += rate
	} else {
		a.Unknown++
	}
	if c.shown.before(&a.shown) {
		a.shown = c.shown
	}
}

// filterOf returns the filter that leaves the topics of a scope.
func filterOf(scope string) string {
	switch s, _ := policy.ParseScope(scope); s.Kind {
	case policy.TenantKind:
		return "://" + s.Tenant + "/"
	case policy.NamespaceKind:
		return "://" + s.Tenant + "/" + s.Namespace + "/"
	}
	return ""
}

// maxAggregates is how many an overview has.
const maxAggregates = 20

// aggregatesWith returns those with each word, in lower case, in the scope or in what its topics
// have in common: throttled ones first, by how many calls wait for them, and at most maxAggregates.
// It returns how many there are of these in all, too.
func (st *State) aggregatesWith(words []string) (some []Aggregate, all int) {
	some = []Aggregate{}
	for _, a := range st.aggregates {
		text := strings.ToLower(a.Scope + " " + a.Filter)
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) }) {
			some = append(some, *a)
		}
	}
	slices.SortFunc(some, func(a, b Aggregate) int {
		return cmp.Or(cmp.Compare(a.Condition.rank(), b.Condition.rank()),
			falling(powerOfTwo(Number(a.Waiting)), powerOfTwo(Number(b.Waiting)), 1),
			strings.Compare(a.Scope, b.Scope), strings.Compare(string(a.Limit.Reason), string(b.Limit.Reason)))
	})
	return some[:min(len(some), maxAggregates)], len(some)
}
