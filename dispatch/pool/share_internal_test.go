package pool

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// TestShareLaws: the shares of a period add up exactly, and no rank is ever a permit away from
// its even part.
func TestShareLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		permits := rapid.Int64Range(0, 1<<40).Draw(t, "permits")
		if rapid.Bool().Draw(t, "few") {
			permits %= 50
		}
		size := rapid.IntRange(1, 40).Draw(t, "size")
		first := rapid.Int64Range(-1000, 1<<40).Draw(t, "period")
		periods := int64(rapid.IntRange(1, 100).Draw(t, "periods"))
		got := make([]int64, size)
		for p := range periods {
			sum := int64(0)
			for rank := range size {
				n := share(permits, size, rank, first+p)
				sum += n
				got[rank] += n
			}
			if sum != permits {
				t.Fatalf("%d of %d permits", sum, permits)
			}
		}
		for rank, n := range got { // n - periods·permits/size, times size
			if d := n*int64(size) - periods*permits; d <= -int64(size) || d >= int64(size) {
				t.Fatalf("rank %d has %d of %d permits in %d periods", rank, n, permits, periods)
			}
		}
	})
}

func TestShareNothing(t *testing.T) {
	for _, c := range []struct {
		permits    int64
		size, rank int
	}{{-1, 2, 0}, {10, 0, 0}, {10, -1, 0}, {10, 2, 2}, {10, 2, -1}} {
		assert.Zero(t, share(c.permits, c.size, c.rank, 1), c)
	}
	assert.EqualValues(t, math.MaxInt64/2+1,
		share(math.MaxInt64, 2, 0, math.MaxInt64)+share(math.MaxInt64, 2, 1, math.MaxInt64)-math.MaxInt64/2)
}

// TestDivide has the vector V18 and its edges.
func TestDivide(t *testing.T) {
	for _, c := range []struct {
		permits int64
		weights []float64
		want    []int64
	}{
		{10, []float64{1, 1, 1}, []int64{4, 3, 3}},
		{7, []float64{5, 3, 1}, []int64{4, 2, 1}},
		{1, []float64{1, 1}, []int64{1, 0}},
		{5, []float64{1, 4, 4, 6}, []int64{1, 1, 1, 2}}, // 1/3, 4/3, 4/3: a tie in all but rounding
		{5, []float64{0, 1, 0}, []int64{0, 5, 0}},
		{3, []float64{.1, .1, .1}, []int64{1, 1, 1}},
		{0, []float64{1, 2}, []int64{0, 0}},
		{-3, []float64{1}, []int64{0}},
		{9, []float64{0, 0}, []int64{0, 0}},
		{9, nil, []int64{}},
	} {
		assert.Equal(t, c.want, divide(c.permits, c.weights), c)
	}
}

func TestDivideLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		permits := rapid.Int64Range(0, 1<<50).Draw(t, "permits")
		if rapid.Bool().Draw(t, "few") {
			permits %= 100
		}
		weights := rapid.SliceOfN(rapid.Float64Range(0.001, 1000), 1, 30).Draw(t, "weights")
		total, sum := 0.0, int64(0)
		for _, w := range weights {
			total += w
		}
		for i, n := range divide(permits, weights) {
			sum += n
			if exact := float64(permits) * weights[i] / total; math.Abs(float64(n)-exact) > 1+1e-6+exact*1e-14 {
				t.Fatalf("%d for %v", n, exact)
			}
		}
		if sum != permits {
			t.Fatalf("%d of %d permits", sum, permits)
		}
	})
}

// TestShareRotates: three permits a period for four ranks: each goes without in turn.
func TestShareRotates(t *testing.T) {
	for period, want := range [][]int64{{1, 1, 1, 0}, {1, 1, 0, 1}, {1, 0, 1, 1}, {0, 1, 1, 1}} {
		var shares []int64
		for rank := range 4 {
			shares = append(shares, share(3, 4, rank, int64(period)))
		}
		assert.Equal(t, want, shares, "period %d", period)
	}
}
