package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

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
		assert.Empty(t, e.Stats(true, 9))
		e.wait(t.Context(), h, 1, -1)
		time.Sleep(ms)
		assert.Len(t, e.Stats(true, 9), 1)
	})
}
