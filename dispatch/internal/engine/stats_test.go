package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
)

func statsOf(e *fixture, activeOnly bool) []engine.Stats {
	stats, _ := e.Stats(activeOnly, 9)
	return stats
}

// TestHardest: if there are more lanes than wanted, those are returned that callers wait for.
func TestHardest(t *testing.T) {
	run(t, 0, orders+" paused=true", func(t *testing.T, e *fixture) {
		_, few, many := e.open("idle"), e.open("few"), e.open("many")
		e.wait(t.Context(), few, 1, -1)
		e.wait(t.Context(), many, 1, -1)
		e.wait(t.Context(), many, 1, -1)
		time.Sleep(ms)
		for _, c := range []struct{ most, more int }{{3, 0}, {2, 1}, {1, 2}, {0, 3}} {
			stats, more := e.Stats(false, c.most)
			assert.Equal(t, c.more, more)
			var got []resolve.LaneID
			for _, s := range stats {
				got = append(got, s.Lane)
			}
			want := []resolve.LaneID{laneOf("many"), laneOf("few"), laneOf("idle")}
			assert.ElementsMatch(t, want[:c.most], got)
		}
	})
}

// TestBehindSince: a lane is behind since a backlog above the threshold was reported, as long as
// one is known.
func TestBehindSince(t *testing.T) {
	run(t, 0, orders+" messageRate=10", func(t *testing.T, e *fixture) {
		h := e.open("")
		assert.Zero(t, h.Stats().BehindSince, "the backlog is unknown")
		h.ReportBacklog(101)
		since := time.Now()
		for range 9 {
			assert.Equal(t, since, h.Stats().BehindSince)
			time.Sleep(time.Second)
			h.ReportBacklog(5000)
		}
		time.Sleep(6 * time.Second)
		assert.Zero(t, h.Stats().BehindSince, "the report is too old")
		assert.Empty(t, statsOf(e, true))
		h.ReportBacklog(5000)
		assert.Equal(t, since, h.Stats().BehindSince)
		assert.Len(t, statsOf(e, true), 1, "it is published, though nobody asks for permits")
		h.ReportBacklog(5)
		assert.Zero(t, h.Stats().BehindSince)
		time.Sleep(time.Second)
		h.ReportBacklog(300)
		assert.Equal(t, time.Now(), h.Stats().BehindSince)
	})
}

// TestWaitBuckets: a wait is counted in the bucket whose bound it does not exceed.
func TestWaitBuckets(t *testing.T) {
	run(t, 0, orders+" messageRate=10 sharing.mode=strict", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		before := h.Stats().WaitTimes
		c := e.wait(t.Context(), h, 1, -1)
		time.Sleep(time.Second)
		assert.True(t, c.over())
		assert.Equal(t, 100*ms, c.took)
		for i, n := range h.Stats().WaitTimes.Buckets {
			is := i < len(engine.WaitBuckets) && engine.WaitBuckets[i] == c.took
			assert.Equal(t, is, n > before.Buckets[i], "bucket %d", i)
		}
	})
}

// TestReasonUnavailable: callers wait for the permit store if the policy stops them in an outage.
func TestReasonUnavailable(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=100 onOutage=stop", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquireFor(time.Second, h, -1)
		e.store.setDown(true)
		time.Sleep(time.Second)
		e.empty(h)
		c := e.wait(t.Context(), h, 1, -1)
		time.Sleep(3 * time.Second)
		assert.False(t, c.over())
		assert.Equal(t, engine.ReasonUnavailable, h.Stats().Reason)
		e.store.setDown(false)
		time.Sleep(time.Second)
		assert.True(t, c.over())
	})
}

// TestHoldsUp: a lane says which topics wait behind its callers, each once, and not its own.
func TestHoldsUp(t *testing.T) {
	run(t, 0, orders+" paused=true", func(t *testing.T, e *fixture) {
		a, b := e.open(""), e.open("")
		a.HoldsUp, b.HoldsUp = []string{orders, busy}, []string{busy, "kafka://acme/shop/b"}
		assert.Empty(t, a.Stats().HoldsUp, "nobody waits")
		e.wait(t.Context(), a, 1, -1)
		assert.Equal(t, []string{"kafka://acme/shop/b", busy}, a.Stats().HoldsUp)
	})
}

// TestActive: a lane whose callers wait is active, also if it holds and wants no permits.
func TestActive(t *testing.T) {
	run(t, 0, orders+" paused=true", func(t *testing.T, e *fixture) {
		h := e.open("")
		time.Sleep(ms)
		assert.Empty(t, statsOf(e, true))
		e.wait(t.Context(), h, 1, -1)
		time.Sleep(ms)
		assert.Len(t, statsOf(e, true), 1)
	})
}
