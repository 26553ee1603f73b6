package pool

import (
	"cmp"
	"math"
	"slices"
)

// Share returns what the member of that rank gets of a period's permits, in a pool of that size:
// the even part, and one more for as many members as the division leaves permits. Those move on
// with the number of the period, so that the shares of all ranks add up to permits exactly, and
// after any number of periods nobody is a whole permit away from its even part; with fewer permits
// than members each gets one in turn. All members must number the periods alike, from a common
// clock.
//
// Shares change in the middle of a period when the pool does. The bound that [Meet] gives holds at
// every moment, so spend a share at an even pace over its period, at the one that is right now:
// then all together stay within the limit and one permit for each member in any second. Spent at
// once, a period's permits could be granted twice.
//
// Negative permits, a size of 0 and a rank outside the pool give 0. Sizes are below 2^31.
func Share(permits int64, size, rank int, period int64) int64 {
	if permits <= 0 || size <= 0 || rank < 0 || rank >= size {
		return 0
	}
	n := int64(size)
	left := permits % n
	first := (period%n + n) % n * left % n // the first rank to get one more: those of the last period end there
	if (int64(rank)-first+n)%n < left {
		return permits/n + 1
	}
	return permits / n
}

// Whole returns the permits of one period at a rate, in permits a period, that need not be
// whole: its whole part, or one more in as many periods as make up for the fraction.
// Negative and not finite rates give 0.
func Whole(rate float64, period int64) int64 {
	if !(rate > 0) || rate > math.MaxInt64/2 {
		return 0
	}
	whole, part := math.Modf(rate)
	if p := float64(period); math.Floor(float64((p+1)*part)) > math.Floor(float64(p*part)) {
		whole++
	}
	return int64(whole)
}

// Divide divides permits in proportion to weights by largest remainder (Hamilton's method), ties
// by index. The parts add up to permits exactly. Weights are finite and not negative; one of 0
// gets nothing. Negative permits, and weights that add up to 0, give zeros. Permits are below
// 2^50.
func Divide(permits int64, weights []float64) []int64 {
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
