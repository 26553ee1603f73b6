package pool

import (
	"cmp"
	"math"
	"slices"
)

// Groups are the permits of one period, divided over groups of workers. Make it with [Fill], or take what a
// [Division] has open; the zero value has no groups and no permits.
type Groups struct {
	Period  int64    `json:"period"` // whose permits these are; a permit store fills anew for another
	Keep    float64  `json:"keep"`   // the part of a group's share that others leave to it, 0..1
	Buckets []Bucket `json:"buckets,omitempty"`
}

// A Bucket is one group's part, in permits of the period.
type Bucket struct {
	Name  string `json:"name"`
	Share int64  `json:"share"` // at the start
	Left  int64  `json:"left"`  // of Share
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
// First everybody draws from its own group's bucket, in the order of asks. Who wants more is a
// thief: all thieves together may steal what the others have left beyond Keep × Share, split
// evenly among their asks up to what each still needs, the odd ones to the largest. The donors
// give in proportion to what they can. So a donor loses at most (1-Keep) × Share in a period, and
// all draws together never exceed what [Fill] divided. A group that has no bucket gets nothing.
func (g Groups) Draw(asks ...Ask) (Groups, []int64) {
	g.Buckets = slices.Clone(g.Buckets)
	got := make([]int64, len(asks))
	need := make([]int64, len(asks)) // beyond the own bucket
	for i, a := range asks {
		own := slices.IndexFunc(g.Buckets, func(b Bucket) bool { return b.Name == a.Group })
		if own < 0 || a.Want < 1 {
			continue
		}
		got[i] = min(a.Want, g.Buckets[own].Left)
		g.Buckets[own].Left -= got[i]
		need[i] = a.Want - got[i]
	}
	spare := make([]float64, len(g.Buckets))
	pot := int64(0)
	for i, b := range g.Buckets {
		keep := int64(math.Ceil(float64(g.Keep*float64(b.Share)) - 1e-9)) // what is 6 but for rounding is 6
		spare[i] = float64(max(0, b.Left-keep))
		pot += max(0, b.Left-keep)
	}
	stolen := int64(0)
	for i, n := range evenly(pot, need) {
		got[i] += n
		stolen += n
	}
	for i, n := range Divide(stolen, spare) {
		g.Buckets[i].Left -= n
	}
	return g, got
}

// Only returns the part of the groups that one side of a partition may spend while it cannot reach
// the others: the buckets of its own. Sides that share no name together spend no more than was
// left.
func (g Groups) Only(names ...string) Groups {
	g.Buckets = slices.DeleteFunc(slices.Clone(g.Buckets), func(b Bucket) bool { return !slices.Contains(names, b.Name) })
	return g
}

// evenly divides n evenly, but gives nobody more than it needs.
func evenly(n int64, needs []int64) []int64 {
	order := make([]int, len(needs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(needs[i], needs[j]) })
	parts := make([]int64, len(needs))
	for k, i := range order {
		parts[i] = min(needs[i], n/int64(len(order)-k))
		n -= parts[i]
	}
	return parts
}
