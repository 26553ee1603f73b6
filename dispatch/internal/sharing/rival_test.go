package sharing

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestRivals: replicas of two policy stores release their permits at the lower rate, also when the
// policy of the higher one changes, and at the higher one once the others have been silent for a
// minute.
func TestRivals(t *testing.T) {
	for _, mode := range []policy.SharingMode{policy.Fair, policy.Strict} {
		w := newWorld()
		var both []*client
		for i, source := range []string{"low", "high"} {
			limit := limited(mode, 100+300*float64(i))
			if mode == policy.Strict {
				limit = strictLimit(limit.Rate)
			}
			limit.Source, limit.Revision = source, schedule.Revision{Epoch: int64(1 + i), Number: 1}
			one := w.join(limit)
			one.callers = 2
			both = append(both, one)
		}
		low, high := both[0], both[1]
		rate := func(c *client) float64 { return c.Stats(w.now).Allowed }
		w.run(3)
		assert.InDelta(t, 100, rate(low), 1e-9, mode)
		assert.InDelta(t, 100, rate(high), 1e-9, mode)
		assert.Equal(t, "high", low.Rival(w.now))
		assert.Equal(t, "low", high.Rival(w.now))

		from := w.now
		limit := high.Limit
		limit.Rate, limit.Revision.Number = 800, 2
		high.Apply(limit)
		high.touch()
		for range 1000 {
			w.run(0.001)
			assert.LessOrEqual(t, rate(high), 100+1e-9, mode)
		}
		assert.LessOrEqual(t, low.between(from, from+1)+high.between(from, from+1), 112, mode)

		low.callers, low.closing = 0, true
		w.run(58)
		assert.InDelta(t, 100, rate(high), 1e-9, mode)
		w.run(5)
		assert.InDelta(t, 800, rate(high), 1e-9, mode)
		assert.Empty(t, high.Rival(w.now))
		assert.InDelta(t, 800, high.between(w.now-1, w.now), 40, mode)
		high.callers = 0
		w.run(61)
		assert.Empty(t, high.Rival(w.now))
	}
}

// TestRivalThatEndsUnseen: a replica that has missed the answer by which its rival ended is at its
// own rate after the next one.
func TestRivalThatEndsUnseen(t *testing.T) {
	for _, limit := range []resolve.Limit{limited(policy.Fair, 400), grouped("eu")} {
		w := newWorld()
		limit.Source, limit.Revision = "high", schedule.Revision{Epoch: 1, Number: 1}
		one := w.join(limit)
		one.callers = 2
		w.run(2)
		require.InDelta(t, limit.Rate, one.Stats(w.now).Allowed, 1e-9)
		one.rate = limit.Rate / 4
		w.run(1)
		assert.InDelta(t, limit.Rate, one.Stats(w.now).Allowed, 1e-9, limit.Mode)
	}
}
