package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

// TestHinderedAsks: a strict limit is asked for one slot although another limit has no permit: it
// is there when that has one.
func TestHinderedAsks(t *testing.T) {
	policies := "tenant:acme messageRate=1/10s\n" + orders + " messageRate=10 sharing.mode=strict"
	run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		asked := len(e.store.asked())
		c := e.wait(t.Context(), h, 1, -1)
		time.Sleep(2 * time.Second)
		assert.False(t, c.over())
		slots := 0
		for _, r := range e.store.asked()[asked:] {
			if r.Allocate.Strict && r.Allocate.Want > 0 {
				slots++
			}
		}
		assert.Positive(t, slots)
	})
}

// TestDemandOfWaiting: callers that were served or that gave up are no demand.
func TestDemandOfWaiting(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=100", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquireFor(5*time.Second, h, -1)
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), 3*ms)
			c := e.wait(ctx, h, 10, -1)
			time.Sleep(20 * ms)
			assert.True(t, c.over())
			cancel()
		}
		asked := len(e.store.asked())
		e.acquireFor(5*time.Second, h, -1)
		for _, r := range e.store.asked()[asked:] {
			assert.LessOrEqual(t, r.Allocate.Demand, 250.0, "one caller, at 100/s")
		}
	})
}

// TestBackSoon: a limit that applies again before it has given anything back keeps its share.
func TestBackSoon(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=10", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		before := only(h).Granted
		e.apply("")
		e.apply(orders + " messageRate=10")
		assert.Equal(t, before, only(h).Granted, "the same share")
		e.apply(orders + " messageRate=10 sharing.mode=strict")
		assert.Zero(t, only(h).Granted, "another share")
	})
}

// TestDemandOfBytes: callers that wait for bytes show the bytes that they want.
func TestDemandOfBytes(t *testing.T) {
	run(t, 0, orders+" byteRate=10240", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, 1)
		e.empty(h)
		asked := len(e.store.asked())
		e.wait(t.Context(), h, 1, 5000)
		time.Sleep(300 * ms)
		demand := 0.0
		for _, r := range e.store.asked()[asked:] {
			demand = max(demand, r.Allocate.Demand)
		}
		assert.GreaterOrEqual(t, demand, 50000.0)
	})
}

// TestStrictAndOthers: strict slots are requested for callers only as far as other limits have
// permits for them.
func TestStrictAndOthers(t *testing.T) {
	policies := orders + " messageRate=10 sharing.mode=strict\n" +
		billing + " messageRate=1/1h sharing.mode=fair"
	run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		for range 5 {
			e.wait(t.Context(), h, 1, -1)
		}
		for range 50 {
			time.Sleep(20 * ms)
			assert.LessOrEqual(t, limitOf(t, h, "message rate", 10).Held, int64(1))
		}
	})
}

// TestExpiredSlot: a strict slot that is over is not granted, and the next one is waited for.
func TestExpiredSlot(t *testing.T) {
	run(t, 0, orders+" messageRate=10 sharing.mode=strict", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		time.Sleep(time.Second)
		synctest.Wait()
		messages, _ := h.Lane.Admission().Shares()
		messages[0].Untake(1) // a slot that the loop has come to too late
		c := e.wait(t.Context(), h, 1, -1)
		assert.True(t, c.over())
		assert.EqualValues(t, 2, only(h).Allocations, "it got another one")
		assert.EqualValues(t, 1, only(h).Lost)
	})
}

// TestWaitStats counts the callers that waited, by reason and by length.
func TestWaitStats(t *testing.T) {
	run(t, 0, orders+" messageRate=10", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		took := time.Duration(0)
		for range 3 {
			c := e.wait(t.Context(), h, 1, -1)
			assert.Equal(t, "message rate", h.Stats().Reason)
			for !c.over() {
				time.Sleep(ms)
			}
			took += c.took
		}
		stats := h.Stats()
		assert.Equal(t, []engine.Waits{{Reason: "message rate", N: 4}}, stats.Waits)
		assert.EqualValues(t, 4, stats.WaitTimes.Count)
		assert.Equal(t, took, stats.WaitTimes.Sum, "the first caller did not wait")
		n := int64(0)
		for _, k := range stats.WaitTimes.Buckets {
			n += k
		}
		assert.Equal(t, stats.WaitTimes.Count, n)
		assert.Empty(t, stats.Reason)
	})
}
