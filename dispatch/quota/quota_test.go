package quota_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// TestCost: costs are whole pages, at least one; writes cost four times as much.
func TestCost(t *testing.T) {
	for bytes, read := range map[int64]int64{0: 4096, 1: 4096, 4096: 4096, 4097: 8192, 10000: 12288} {
		assert.Equal(t, read, quota.ReadCost(bytes))
		assert.Equal(t, 4*read, quota.WriteCost(bytes))
	}
	assert.Positive(t, quota.ReadCost(math.MaxInt64))
	assert.Positive(t, quota.WriteCost(math.MaxInt64))
}

// TestTarget: reserved has precedence, then the lower of desired and limiting; NaN does not count.
func TestTarget(t *testing.T) {
	none := math.NaN()
	for _, c := range []struct{ reserved, desired, limiting, want float64 }{
		{0, 16.6667, none, 16.6667}, {11.6667, 16.6667, 8.3333, 11.6667}, {0, 16.6667, 8.3333, 8.3333},
		{0, 16.6667, 20, 16.6667}, {0, none, 20, 20}, {5, none, none, 5}, {none, 7, none, 7},
	} {
		assert.InDelta(t, c.want, quota.Target(c.reserved, c.desired, c.limiting), 1e-9)
	}
	assert.True(t, math.IsNaN(quota.Target(none, none, none)))
}

// TestRatio: a backend is slowed down to a half at most, and not at all below its spring.
func TestRatio(t *testing.T) {
	for queue, want := range map[float64]float64{
		700e6: 2, 800e6: 1, 900e6: 0.6667, 1000e6: 0.5, 5000e6: 0.5, 600e6 + 1: 2e8,
	} {
		ratio, ok := quota.Load{Queue: queue, Target: 800e6, Spring: 200e6}.Ratio()
		assert.True(t, ok)
		assert.InEpsilon(t, want, ratio, 1e-4)
	}
	_, ok := quota.Load{Queue: 600e6, Target: 800e6, Spring: 200e6}.Ratio()
	assert.False(t, ok)
}

// TestSmoother: values follow the folding time, also when they are read in between.
func TestSmoother(t *testing.T) {
	s := quota.Smoother{Folding: 10}
	s.Reset(0, 0)
	s.Set(100, 0)
	for _, c := range []struct{ at, total float64 }{
		{1, 9.516258}, {5, 39.346934}, {10, 63.212056}, {20, 86.466472}, {30, 95.021293},
	} {
		assert.InDelta(t, c.total, s.Total(c.at), 1e-5)
	}
	fresh := quota.Smoother{Folding: 10}
	fresh.Set(50, 3)
	assert.InDelta(t, 50, fresh.Total(3), 0, "the first value counts at once")
	assert.InDelta(t, 50, fresh.Total(2), 0, "a clock that steps back changes nothing")
}

// TestQuotaFaults: all faults are reported at once, with what to do.
func TestQuotaFaults(t *testing.T) {
	assert.NoError(t, quota.Quota{Reserved: 1, Total: 1}.Validate())
	assert.EqualError(t, quota.Quota{Reserved: 5, Total: 1}.Validate(),
		"reserved 5: is above total 1: lower it, or set both")
	assert.EqualError(t, quota.Quota{Reserved: -1, Total: math.NaN()}.Validate(),
		"reserved -1: is invalid: want bytes a second, 0 or more\n"+
			"total NaN: is invalid: want bytes a second, 0 or more")
}
