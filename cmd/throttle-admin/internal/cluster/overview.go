package cluster

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"
	"time"
)

// A Query says which rows an overview has, and in which order.
type Query struct {
	Filter  string // words; each is in the topic, in a subscription or in the condition; see MaxFilter
	Sort    string // one of Sorts; "": by how hard topics are throttled
	Reverse bool
	Page    int // from 0; beyond the last: the last
	Size    int // rows of a page
	Most    int // subscriptions of a row: those that wait hardest; 0 = all
}

// The bounds of a filter: its first bytes and words count, and the rest is ignored.
const (
	MaxFilter = 200
	maxWords  = 10
)

// words returns those of the filter, in lower case.
func (q Query) words() []string {
	words := strings.Fields(strings.ToLower(q.Filter[:min(len(q.Filter), MaxFilter)]))
	return words[:min(len(words), maxWords)]
}

// sorts are the orders of rows, each in its usual direction, if the sign is 1, or reversed. What is
// unknown comes last in both.
var sorts = map[string]func(a, b *Row, sign int) int{
	"throttled": func(a, b *Row, sign int) int { return harder(a.hardness(), b.hardness(), sign) },
	"topic":     func(a, b *Row, sign int) int { return sign * strings.Compare(a.Topic, b.Topic) },
	"limit": func(a, b *Row, sign int) int {
		return cmp.Or(byUnit(a, b), sign*cmp.Compare(b.Limit.Rate, a.Limit.Rate))
	},
	"rate":     func(a, b *Row, sign int) int { return cmp.Or(byUnit(a, b), falling(a.Rate, b.Rate, sign)) },
	"waiting":  func(a, b *Row, sign int) int { return falling(a.Waiting, b.Waiting, sign) },
	"wait":     func(a, b *Row, sign int) int { return falling(a.WaitP99, b.WaitP99, sign) },
	"backlog":  func(a, b *Row, sign int) int { return falling(a.Backlog, b.Backlog, sign) },
	"behind":   func(a, b *Row, sign int) int { return earlier(a.BehindSince, b.BehindSince, sign) },
	"drained":  func(a, b *Row, sign int) int { return falling(a.DrainedIn, b.DrainedIn, sign) },
	"replicas": func(a, b *Row, sign int) int { return sign * cmp.Compare(b.Replicas, a.Replicas) },
}

// A hardness is how hard a topic or a subscription is throttled.
type hardness struct {
	condition              Condition
	wait, waiting, backlog Number
}

func (r *Row) hardness() hardness { return hardness{r.Condition, r.WaitP99, r.Waiting, r.Backlog} }

func (s *SubscriptionRow) hardness() hardness {
	return hardness{s.Condition, s.WaitP99, s.Waiting, s.Backlog}
}

// harder compares by how hard something is throttled, the hardest first, or last if the sign is -1.
// Calls that wait count by powers of two: rows would not stand still.
func harder(a, b hardness, sign int) int {
	return cmp.Or(sign*cmp.Compare(a.condition.rank(), b.condition.rank()), falling(a.wait, b.wait, sign),
		falling(powerOfTwo(a.waiting), powerOfTwo(b.waiting), sign), falling(a.backlog, b.backlog, sign))
}

// hardest returns the subscriptions of a row, the one that is throttled hardest first.
func (r *Row) hardest() []SubscriptionRow {
	all := slices.Clone(r.Subscriptions)
	slices.SortStableFunc(all, func(a, b SubscriptionRow) int { return harder(a.hardness(), b.hardness(), 1) })
	return all
}

// powerOfTwo is the exponent of the next power of two above a number.
func powerOfTwo(n Number) Number {
	if !n.Known() {
		return n
	}
	return Number(bits.Len(uint(n)))
}

// byUnit compares units: messages come before bytes, and these before what has no limit.
func byUnit(a, b *Row) int {
	unit := func(r *Row) int {
		switch {
		case r.Limit.Reason == "":
			return 2
		case r.Limit.Reason.Bytes():
			return 1
		}
		return 0
	}
	return cmp.Compare(unit(a), unit(b))
}

// Sorts are the values of Query.Sort.
var Sorts = []string{
	"throttled", "topic", "limit", "rate", "waiting", "wait", "backlog", "behind", "drained", "replicas",
}

// falling compares numbers, the largest first, or the smallest if the sign is -1; those that are
// unknown come last.
func falling(a, b Number, sign int) int {
	switch {
	case a.Known() && b.Known():
		return sign * cmp.Compare(b, a)
	case a.Known():
		return -1
	case b.Known():
		return 1
	}
	return 0
}

// earlier compares times, the earliest first, or the latest if the sign is -1; none come last.
func earlier(a, b time.Time, sign int) int {
	switch {
	case a.IsZero() && b.IsZero():
		return 0
	case a.IsZero():
		return 1
	case b.IsZero():
		return -1
	}
	return sign * a.Compare(b)
}

// An Overview is a page of the topics of a cluster.
type Overview struct {
	Time     time.Time `json:"time"`
	Totals   Totals    `json:"totals"`
	Matching int       `json:"matching"` // topics that the filter leaves, on all pages
	Page     int       `json:"page"`     // from 0
	Rows     []Row     `json:"rows"`

	// Limits of several topics together that the filter leaves: those that most calls wait for.
	Aggregates         []Aggregate `json:"aggregates"`
	MatchingAggregates int         `json:"matchingAggregates"` // also those that are not listed
}

// Totals are of the whole cluster, whatever a filter leaves.
type Totals struct {
	Topics     int               `json:"topics"`
	Conditions map[Condition]int `json:"conditions"` // topics in each
	Waiting    int               `json:"waiting"`    // calls, as far as it is known
	Backlog    Number            `json:"backlog"`    // messages, as far as it is known
	Replicas   int               `json:"replicas"`
	More       int               `json:"more,omitempty"` // subscriptions that are not published
}

// Overview returns a page of the rows of the last Tick.
func (st *State) Overview(q Query, now time.Time) Overview {
	o := Overview{Time: now, Totals: Totals{Topics: len(st.topics), Conditions: map[Condition]int{}}}
	for _, r := range st.replicas {
		if r.gone.IsZero() {
			o.Totals.Replicas++
			o.Totals.More += r.last.More
		}
	}
	var backlog sum
	words := q.words()
	rows := make([]*Row, 0, len(st.topics))
	for _, t := range st.topics {
		o.Totals.Conditions[t.row.Condition]++
		if t.row.Waiting.Known() {
			o.Totals.Waiting += int(t.row.Waiting)
		}
		if t.row.Backlog.Known() {
			backlog.add(float64(t.row.Backlog))
		}
		if t.row.matches(words) {
			rows = append(rows, &t.row)
		}
	}
	o.Matching, o.Totals.Backlog = len(rows), backlog.number()
	o.Aggregates, o.MatchingAggregates = st.aggregatesWith(words)
	order := sorts[cmp.Or(q.Sort, "throttled")]
	sign := 1
	if q.Reverse {
		sign = -1
	}
	slices.SortFunc(rows, func(a, b *Row) int {
		return cmp.Or(order(a, b, sign), strings.Compare(a.Topic, b.Topic))
	})
	size := max(1, q.Size)
	o.Page = max(0, min(q.Page, (len(rows)-1)/size))
	begin := o.Page * size
	o.Rows = []Row{}
	for _, r := range rows[begin:min(begin+max(0, q.Size), len(rows))] {
		row := *r
		row.Subscriptions = r.hardest()
		if q.Most > 0 && len(row.Subscriptions) > q.Most {
			row.Subscriptions, row.More = row.Subscriptions[:q.Most:q.Most], len(row.Subscriptions)-q.Most
		}
		o.Rows = append(o.Rows, row)
	}
	return o
}

// matches reports whether each word, in lower case, is in the topic, in a subscription or in the
// condition.
func (r *Row) matches(words []string) bool {
	for _, word := range words {
		found := strings.Contains(strings.ToLower(r.Topic), word) || strings.Contains(string(r.Condition), word) ||
			slices.ContainsFunc(r.Subscriptions, func(s SubscriptionRow) bool {
				return strings.Contains(strings.ToLower(s.Subscription), word)
			})
		if !found {
			return false
		}
	}
	return true
}
