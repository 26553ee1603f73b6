package pool

import (
	"cmp"
	"math"
	"slices"
)

// share returns what the part of that rank gets of a period's permits, divided into size parts:
// the even part, and one more for as many ranks as the division leaves permits. Those ranks move
// on with the number of the period. So the shares of all ranks add up to permits exactly, and
// after any number of periods no rank is a whole permit away from its even part; with fewer
// permits than ranks each gets one in turn.
//
// Negative permits, a size of 0 and a rank outside of it give 0. Sizes are below 2^31.
func share(permits int64, size, rank int, period int64) int64 {
	if permits <= 0 || size <= 0 || rank < 0 || rank >= size {
		return 0
	}
	n := int64(size)
	left := permits % n
	// The first rank to get one more: those of the last period end there.
	first := (period%n + n) % n * left % n
	if (int64(rank)-first+n)%n < left {
		return permits/n + 1
	}
	return permits / n
}

// divide divides permits in proportion to weights by largest remainder (Hamilton's method), ties
// by index. The parts add up to permits exactly. Weights are finite and not negative; one of 0
// gets nothing. Negative permits, and weights that add up to 0, give zeros. Permits are below
// 2^50.
func divide(permits int64, weights []float64) []int64 {
	parts := make([]int64, len(weights))
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	if permits <= 0 || !(sum > 0) {
		return parts
	}
	left := permits
	order := make([]int, 0, len(weights))
	rest := make([]float64, len(weights))
	for i, w := range weights {
		exact := float64(permits) * (w / sum)
		parts[i] = int64(exact)
		left -= parts[i]
		rest[i] = math.Round((exact - float64(parts[i])) * 1e9) // equal but for rounding is equal
		if w > 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(rest[j], rest[i]) })
	for _, i := range order[:left] {
		parts[i]++
	}
	return parts
}
