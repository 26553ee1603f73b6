package pairs

import (
	"math/rand/v2"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		n                 int
		low, middle, high float64
	}{ // ranks: tables of the sign test's 95 % intervals
		{1, 1, 1, 1}, {2, 1, 1.5, 2}, {5, 1, 3, 5}, {6, 1, 3.5, 6}, {9, 2, 5, 8}, {15, 4, 8, 12}, {31, 10, 16, 22},
		{101, 41, 51, 61},
	} {
		var samples []float64
		for i := range c.n {
			samples = append(samples, float64(i+1))
		}
		rand.New(rand.NewPCG(1, 2)).Shuffle(c.n, func(i, j int) { samples[i], samples[j] = samples[j], samples[i] })
		if low, middle, high := median(samples); low != c.low || middle != c.middle || high != c.high {
			t.Errorf("median of 1..%d = %v [%v, %v], want %v [%v, %v]", c.n, middle, low, high, c.middle, c.low, c.high)
		}
	}
}
