package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

// TestShadow: shadow mode lets callers pass at once, and counts those that would have waited as
// demand.
func TestShadow(t *testing.T) {
	policies := orders + " messageRate=10 byteRate=1000 mode=shadow"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		time.Sleep(ms)
		e.acquire(h, 50, 2000)
		e.acquire(h, 50, 2000)
		time.Sleep(4 * ms)
		want := map[string]float64{}
		for _, r := range e.store.asked() {
			want[r.Key] = max(want[r.Key], r.Allocate.Want)
		}
		assert.GreaterOrEqual(t, want[limitOf(t, h, "message rate", 10).Key], 50.0)
		assert.GreaterOrEqual(t, want[limitOf(t, h, "byte rate", 1000).Key], 2000.0)

		before := limitOf(t, h, "message rate", 10).Shadowed
		for range 100 {
			e.acquire(h, 1, 10)
		}
		for range 10 {
			_, _, ok := h.Lane.TryAcquire(1)
			assert.True(t, ok)
		}
		assert.Equal(t, 5*ms, e.since())
		assert.InDelta(t, 110, limitOf(t, h, "message rate", 10).Shadowed-before, 5)
		assert.True(t, only(h).Shadow)
	})
	run(t, 0, orders+" messageRate=1/1h", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		c := e.wait(t.Context(), h, 3, -1)
		e.apply(orders + " messageRate=1/1h mode=shadow")
		assert.True(t, c.over())
		assert.EqualValues(t, 3, only(h).Shadowed)
	})
}

// TestShadowBesideEnforced: a limit in shadow mode holds nobody up, and lifts no other one. What it
// would hold up is counted, also of bytes and of messages in flight.
func TestShadowBesideEnforced(t *testing.T) {
	policies := "tenant:acme messageRate=50\n" + orders + " messageRate=10 byteRate=1000 maxInFlight=1 mode=shadow"
	for _, sharing := range []string{"", " sharing.mode=strict", " sharing.mode=split", " caughtUp.throttle=true"} {
		run(t, 0, policies+sharing, func(t *testing.T, e *fixture) {
			h := e.open("")
			time.Sleep(5 * time.Second) // a pool of one
			from, grants := e.since(), []engine.Grant{}
			for range 100 {
				g := e.acquire(h, 1, 100)
				assert.Equal(t, 1, g.N)
				grants = append(grants, g)
			}
			assert.InDelta(t, 2, (e.since() - from).Seconds(), 0.1, "50 a second")
			assert.InDelta(t, 80, limitOf(t, h, "message rate", 10).Shadowed, 6)
			assert.InDelta(t, 80, limitOf(t, h, "byte rate", 1000).Shadowed, 12)
			assert.EqualValues(t, 99, h.Stats().Beyond, "in flight")
			assert.Zero(t, limitOf(t, h, "tenant's message rate", 50).Shadowed)
			for i := range grants {
				grants[i].Settle(1, 100)
			}
			assert.Zero(t, h.Stats().InFlight)
			passed := 0
			for ok := true; ok; passed++ {
				_, _, ok = h.Lane.TryAcquire(1)
			}
			assert.Less(t, passed, 10, "the tenant's limit")
		})
	}
}

// passing returns how many of the next calls pass at once.
func passing(h *handle) (n int) {
	for {
		if _, _, ok := h.Lane.TryAcquire(1); !ok {
			return n
		}
		n++
	}
}

// TestPreviewLeavesNothing: whatever was given back or used beyond what was granted in shadow mode,
// the limit is in force as soon as its mode is enforce, neither above its rate nor below it.
func TestPreviewLeavesNothing(t *testing.T) {
	for _, limit := range []string{"messageRate=1/1h", "messageRate=10", "byteRate=1000"} {
		for _, unsettled := range []time.Duration{0, 50 * ms, time.Minute} {
			for _, used := range []int{0, 1, 5} {
				run(t, 0, orders+" mode=shadow "+limit, func(t *testing.T, e *fixture) {
					h := e.open("")
					time.Sleep(time.Second)
					var grants []engine.Grant
					for range 1000 {
						grants = append(grants, e.acquire(h, 1, 100))
					}
					time.Sleep(unsettled)
					for i := range grants {
						grants[i].Settle(used, int64(used)*100)
					}
					time.Sleep(50 * ms)
					e.apply(orders + " mode=enforce " + limit)
					assert.LessOrEqual(t, passing(h), 2)
					if limit != "messageRate=1/1h" {
						from := e.since()
						e.acquire(h, 1, 100)
						e.acquire(h, 1, 100)
						assert.Less(t, e.since()-from, 2*time.Second)
					}
				})
			}
		}
	}
}

// TestShadowDebt: a message of which only one byte was there owes the rest, as if the limit were
// enforced, and those after it owe nothing.
func TestShadowDebt(t *testing.T) {
	run(t, 0, orders+" byteRate=1000 mode=shadow", func(t *testing.T, e *fixture) {
		h := e.open("")
		var grants []engine.Grant
		for range 100 {
			grants = append(grants, e.acquire(h, 1, -1))
		}
		for i := range grants {
			grants[i].Settle(1, 10_000)
		}
		e.apply(orders + " byteRate=1000")
		from := e.since()
		e.acquire(h, 1, 10)
		assert.Less(t, e.since()-from, 11*time.Second)
	})
}

// TestShadowCounts: messages of a batch are counted with the bytes that they have, those that a
// poll asked for and did not deliver are not counted, and no count falls.
func TestShadowCounts(t *testing.T) {
	policies := "tenant:acme messageRate=100\n" + orders + " byteRate=1000 mode=shadow"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		time.Sleep(time.Second)
		from, sent, last := e.since(), 0, limitOf(t, h, "byte rate", 1000)
		for e.since()-from < 10*time.Second {
			g := e.acquire(h, 100, -1)
			sent += g.N
			g.Settle(g.N, int64(g.N)*1024)
			now := limitOf(t, h, "byte rate", 1000)
			assert.GreaterOrEqual(t, now.Granted, last.Granted)
			assert.GreaterOrEqual(t, now.Shadowed, last.Shadowed)
			last = now
		}
		assert.InDelta(t, sent-10, last.Shadowed, 20, "of %d", sent)
	})
	run(t, 0, orders+" messageRate=10 mode=shadow", func(t *testing.T, e *fixture) {
		h := e.open("")
		for range 100 {
			g, _, ok := h.Lane.TryAcquire(500)
			assert.True(t, ok)
			g.Settle(0, 0)
			time.Sleep(500 * ms)
		}
		assert.LessOrEqual(t, only(h).Shadowed, int64(500), "one batch, until it is given back")
		assert.Less(t, only(h).Use, 20.0)
	})
}

// TestShadowInFlight: messages that would be too many in flight are not counted as in flight, nor
// is a part of them.
func TestShadowInFlight(t *testing.T) {
	run(t, 0, orders+" maxInFlight=3 mode=shadow", func(t *testing.T, e *fixture) {
		h := e.open("")
		a, b := e.acquire(h, 2, -1), e.acquire(h, 5, -1)
		assert.EqualValues(t, 2, h.Stats().InFlight)
		assert.EqualValues(t, 4, h.Stats().Beyond)
		a.Settle(2, 0)
		if b.Admission != nil {
			b.Settle(5, 0)
		}
		assert.Zero(t, h.Stats().InFlight)
	})
}

// TestShadowStale: permits of a grant that is too old to give them back are not unused ones, which
// later messages would use.
func TestShadowStale(t *testing.T) {
	run(t, 0, orders+" messageRate=10 mode=shadow", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 50, -1)
		for range 50 { // batches start meanwhile
			time.Sleep(100 * ms)
			e.acquire(h, 1, -1)
		}
		g.Settle(0, 0)
		before := only(h).Shadowed
		for range 30 {
			e.acquire(h, 1, -1)
		}
		assert.InDelta(t, 30, only(h).Shadowed-before, 10)
	})
}

// TestShadowHold: a limit in shadow mode that could not take back what was held does not keep
// others from it.
func TestShadowHold(t *testing.T) {
	for _, beside := range []string{"", orders + " messageRate=1000 sharing.mode=split mode=shadow"} {
		run(t, 0, "tenant:acme messageRate=50\n"+beside, func(t *testing.T, e *fixture) {
			h := e.open("")
			time.Sleep(5 * time.Second) // a pool of one
			for range 50 {
				e.acquire(h, 1, -1)
			}
			g := e.acquire(h, 1, -1)
			g.Hold(3 * time.Second)
			for range 50 {
				e.acquire(h, 1, -1)
			}
			g.Settle(0, 0)
			assert.EqualValues(t, 1, limitOf(t, h, "tenant's message rate", 50).Returned)
		})
	}
}

// TestShadowOrder: State has the limits in the order in which they apply, whatever their modes.
func TestShadowOrder(t *testing.T) {
	policies := "tenant:acme messageRate=50 mode=shadow\n" + orders + " messageRate=10 byteRate=1000"
	for _, mode := range []string{"", " mode=shadow"} {
		run(t, 0, policies+mode, func(t *testing.T, e *fixture) {
			var got []string
			for _, l := range e.open("").Stats().Limits {
				got = append(got, l.Reason)
			}
			assert.Equal(t, []string{"message rate", "tenant's message rate", "byte rate"}, got)
		})
	}
}
