package pool_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/dispatchthrottle/throttle/dispatch/pool"
)

// TestShareLaws: the shares of a period add up exactly, and nobody is ever a permit away from its even part.
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
				share := pool.Share(permits, size, rank, first+p)
				sum += share
				got[rank] += share
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
		assert.Zero(t, pool.Share(c.permits, c.size, c.rank, 1), c)
	}
	assert.EqualValues(t, math.MaxInt64/2+1, pool.Share(math.MaxInt64, 2, 0, math.MaxInt64)+pool.Share(math.MaxInt64, 2, 1, math.MaxInt64)-math.MaxInt64/2)
}

func TestWhole(t *testing.T) {
	for _, rate := range []float64{0, 1.0 / 3600, 0.3, 19.5, 1000, 123456.789} {
		sum := int64(0)
		const start, periods = 1_800_000_000, 7200
		for p := range int64(periods) {
			n := pool.Whole(rate, start+p)
			assert.InDelta(t, rate, n, 1)
			sum += n
		}
		assert.InDelta(t, rate*periods, sum, 1.01, "at %v", rate)
	}
	for _, rate := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		assert.Zero(t, pool.Whole(rate, 1))
	}
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
		assert.Equal(t, c.want, pool.Divide(c.permits, c.weights), c)
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
		for i, n := range pool.Divide(permits, weights) {
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

// Three permits a period for four replicas: each goes without in turn.
func ExampleShare() {
	for period := range int64(4) {
		var shares []int64
		for rank := range 4 {
			shares = append(shares, pool.Share(3, 4, rank, period))
		}
		fmt.Println(shares)
	}
	// Output:
	// [1 1 1 0]
	// [1 1 0 1]
	// [1 0 1 1]
	// [0 1 1 1]
}

// 2.5 permits a period are 2 and 3 in turn.
func ExampleWhole() {
	fmt.Println(pool.Whole(2.5, 0), pool.Whole(2.5, 1), pool.Whole(2.5, 2), pool.Whole(2.5, 3))
	// Output: 2 3 2 3
}

func ExampleDivide() {
	fmt.Println(pool.Divide(7, []float64{5, 3, 1}))
	// Output: [4 2 1]
}
