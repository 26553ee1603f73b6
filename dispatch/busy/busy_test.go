package busy_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
)

// TestTChannel: the limit first grows and is then halved.
func TestTChannel(t *testing.T) {
	rate := busy.TChannel{RecoverRate: 3}
	for _, c := range []struct {
		limit float64
		busy  int
		want  float64
	}{
		{busy.Max, 12, 9765.624}, {busy.Max, 13, 4882.812},
		{5000, 1, 10000}, {5000, 2, 5000}, {5000, 3, 2500},
		{busy.Max, 0, busy.Max}, {20, 20, 7.629e-5}, {2441.406, 0, 9765.625},
		{20, 3000, 7.629e-5}, {5, -1, 20},
	} {
		assert.InEpsilon(t, c.want, rate.Next(c.limit, c.busy), 1e-4, "%v, %d busy", c.limit, c.busy)
	}
	assert.InDelta(t, 205, busy.TChannel{RecoverValue: 200, RecoverRate: 3}.Next(210, 1), 0)
	assert.InDelta(t, 7, busy.TChannel{RecoverRate: 3, MinRate: 7}.Next(10, 3), 0)
}

// TestTChannelSilence: if there are no more busy answers than requests, at least one request is
// allowed in eight seconds, and in every second if MinRate is set.
func TestTChannelSilence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		minRate := rapid.SampledFrom([]float64{0, 1, 5}).Draw(t, "minRate")
		rule := busy.TChannel{RecoverRate: 3, MinRate: minRate}
		limit, silent := float64(busy.Max), 0
		for range 60 {
			through := int(limit)
			silent++
			if through > 0 {
				silent = 0
			}
			if silent > 7 || silent > 0 && rule.MinRate > 0 {
				t.Fatalf("%d seconds of silence, limit %v", silent, limit)
			}
			limit = rule.Next(limit, rapid.IntRange(0, min(through, 100)).Draw(t, "busy"))
		}
	})
}

// TestPublished checks how the published tables end. The whole tables are golden files of
// throttle-admin.
func TestPublished(t *testing.T) {
	for _, c := range []struct {
		name      string
		rule      busy.TChannel
		converged int
		last      float64 // requests sent in the last second
	}{
		{"steady", busy.TChannel{RecoverRate: 3}, 17, 5000},
		{"flappy", busy.TChannel{RecoverRate: 3}, 19, 5000},
		{"steady", busy.TChannel{RecoverValue: 200}, 0, 4200},
		{"flappy", busy.TChannel{RecoverValue: 200}, 0, 4000},
	} {
		s, err := busy.Published(c.name)
		require.NoError(t, err)
		all, converged, ok := s.Run(func(now busy.Second) float64 {
			return c.rule.Next(now.Limit, int(now.Busy))
		})
		assert.Equal(t, c.converged, converged)
		assert.Equal(t, c.converged > 0, ok)
		assert.InDelta(t, c.last, all[len(all)-1].Through, 1)
	}
	_, err := busy.Published("bumpy")
	assert.EqualError(t, err, `pattern "bumpy": is unknown: use steady, flappy, linear_grow, `+
		`linear_decrease, exponential_grow, exponential_decrease`)
}

// TestPatterns: every pattern stays between 0 and its bound.
func TestPatterns(t *testing.T) {
	at := map[string][3]float64{ // at seconds 1, 3 and 60
		"steady": {50, 50, 50}, "flappy": {0, 50, 50},
		"linear_grow": {150, 350, 6050}, "linear_decrease": {0, 0, 0},
		"exponential_grow":     {100, 400, 1e9},
		"exponential_decrease": {25, 6.25, 50 * math.Pow(2, -60)},
	}
	for _, name := range busy.Patterns() {
		for i, second := range []int{1, 3, 60} {
			got := busy.Pattern{Name: name, Start: 50}.At(second)
			assert.InDelta(t, at[name][i], got, 1e-12, "%s at %d", name, second)
		}
	}
}
