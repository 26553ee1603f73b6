package pool

import (
	"cmp"
	"math"
	"slices"
)

// Groups are the permits of one period, divided over groups of workers: what a ledger keeps
// under one key. Make it with [Fill], once a period; the zero value has no groups and no permits.
type Groups struct {
	Period  int64    `json:"period"` // whose permits these are; a ledger fills anew for another
	Keep    float64  `json:"keep"`   // the part of a group's share that others leave to it, 0..1
	Buckets []Bucket `json:"buckets,omitempty"`
}

// A Bucket is one group's part, in permits of the period.
type Bucket struct {
	Name   string `json:"name"`
	Share  int64  `json:"share"`            // at the start
	Left   int64  `json:"left"`             // of Share
	Stolen int64  `json:"stolen,omitempty"` // taken from others
	Need   int64  `json:"need,omitempty"`   // Stolen, and what the group last asked for in vain
}

// An Ask is one group's request.
type Ask struct {
	Group string
	Want  int64 // permits; less than 1 asks for nothing
}

// Fill returns the groups at the start of a period: permits in equal shares, the remainder to
// the lowest names. A name counts once. keep is bounded to 0..1; at 1 nobody can steal.
func Fill(period, permits int64, keep float64, names ...string) Groups {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	g := Groups{Period: period, Keep: min(max(0, keep), 1), Buckets: make([]Bucket, len(names))}
	for i, name := range names {
		share := Share(permits, len(names), i, 0)
		g.Buckets[i] = Bucket{Name: name, Share: share, Left: share}
	}
	return g
}

// Draw serves asks, and returns the state to keep and the permits of each ask.
//
// First everybody draws from its own group's bucket, in the order of asks. Who wants more is a thief: it
// steals what the others have left beyond Keep × Share. What there is to steal in the
// period is split evenly among the groups that wanted more when they last asked, up to
// their need; so one that stole much before another came stands back for it. The donors
// give in proportion to what they can. A donor loses at most (1-Keep) × Share in a
// period, and all draws together never exceed what [Fill] divided. A group that has no
// bucket gets nothing.
func (g Groups) Draw(asks ...Ask) (Groups, []int64) {
	g.Buckets = slices.Clone(g.Buckets)
	got := make([]int64, len(asks))
	index := make([]int, len(asks))
	rest := make([]int64, len(g.Buckets)) // what the askers' groups want beyond their own
	for i, a := range asks {
		index[i] = slices.IndexFunc(g.Buckets, func(b Bucket) bool { return b.Name == a.Group })
		if index[i] < 0 || a.Want < 1 {
			continue
		}
		b := &g.Buckets[index[i]]
		got[i] = min(a.Want, b.Left)
		b.Left -= got[i]
		rest[index[i]] += a.Want - got[i]
	}
	for _, i := range index {
		if i >= 0 {
			g.Buckets[i].Need = g.Buckets[i].Stolen + rest[i]
		}
	}
	due := g.entitled()
	for i, a := range asks {
		if index[i] >= 0 && a.Want > got[i] {
			thief := &g.Buckets[index[i]]
			n := g.take(min(a.Want-got[i], due[index[i]]-thief.Stolen))
			thief.Stolen += n
			got[i] += n
		}
	}
	return g, got
}

// Only returns the part of the groups that one side of a partition may spend while it cannot
// reach the others: the buckets of its own. Sides that share no name together spend no more than was left.
func (g Groups) Only(names ...string) Groups {
	g.Buckets = slices.DeleteFunc(slices.Clone(g.Buckets), func(b Bucket) bool { return !slices.Contains(names, b.Name) })
	return g
}

// spare returns what each group has left beyond its keep-back.
func (g Groups) spare() []int64 {
	spare := make([]int64, len(g.Buckets))
	for i, b := range g.Buckets {
		keep := int64(math.Ceil(float64(g.Keep*float64(b.Share)) - 1e-9))
		spare[i] = max(0, b.Left-keep)
	}
	return spare
}

// entitled returns what each group may steal in the whole period: what was stolen and what
// still can be, split evenly up to the needs.
func (g Groups) entitled() []int64 {
	pot := sum(g.spare())
	order := make([]int, len(g.Buckets))
	for i, b := range g.Buckets {
		pot += b.Stolen
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(g.Buckets[i].Need, g.Buckets[j].Need) })
	due := make([]int64, len(g.Buckets))
	for k, i := range order {
		due[i] = min(g.Buckets[i].Need, pot/int64(len(order)-k))
		pot -= due[i]
	}
	return due
}

// take takes up to n permits from those who can spare them, and returns how many.
func (g Groups) take(n int64) int64 {
	spare := g.spare()
	n = min(n, sum(spare))
	if n <= 0 {
		return 0
	}
	weights := make([]float64, len(spare))
	for i, x := range spare {
		weights[i] = float64(x)
	}
	for i, x := range Divide(n, weights) {
		g.Buckets[i].Left -= x
	}
	return n
}

func sum(xs []int64) int64 {
	var total int64
	for _, x := range xs {
		total += x
	}
	return total
}
