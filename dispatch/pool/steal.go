package pool

import (
	"math"
	"slices"
)

// A bucket is what one worker group may draw now, in permits.
type bucket struct {
	name  string
	share int64 // what has been opened in the period
	left  int64 // of share
}

// draw returns the permits that a group takes from each bucket: first from its own, and then, by
// stealing, what the other groups have left beyond keep × share. The others give in proportion to
// what they can, so that each loses at most (1-keep) × share in a period. A group without a
// bucket gets nothing; want of less than 1 asks for nothing.
func draw(buckets []bucket, keep float64, group string, want int64) (taken []int64) {
	taken = make([]int64, len(buckets))
	own := slices.IndexFunc(buckets, func(b bucket) bool { return b.name == group })
	if own < 0 || want < 1 {
		return taken
	}
	fromOwn := min(want, buckets[own].left)
	spare := make([]float64, len(buckets))
	sum := int64(0)
	for i, b := range buckets {
		if i == own {
			continue
		}
		// 6 with a rounding error counts as 6.
		kept := int64(math.Ceil(float64(keep*float64(b.share)) - 1e-9))
		spare[i] = float64(max(0, b.left-kept))
		sum += max(0, b.left-kept)
	}
	taken = divide(min(want-fromOwn, sum), spare)
	taken[own] = fromOwn
	return taken
}
