package engine_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

// TestInFlight: no more messages are out than the policy says, with and without other limits.
func TestInFlight(t *testing.T) {
	for _, rest := range []string{"", " messageRate=1000", " byteRate=100000", " messageRate=1000 sharing.mode=strict"} {
		run(t, 0, orders+" maxInFlight=3"+rest, func(t *testing.T, e *fixture) {
			h := e.open("")
			h.ReportBacklog(0) // in flight is for the caught-up, too
			out := []engine.Grant{}
			for n := 0; n < 3; {
				g := e.acquire(h, 2, -1)
				n += g.N
				out = append(out, g)
			}
			assert.EqualValues(t, 3, h.State().InFlight)
			c := e.wait(t.Context(), h, 5, -1)
			time.Sleep(100 * ms)
			assert.False(t, c.over())
			assert.Equal(t, engine.ReasonInFlight, h.State().Reason)
			_, _, ok := h.Lane.TryAcquire(1)
			assert.False(t, ok)
			n := out[0].N
			out[0].Settle(n, 100)
			time.Sleep(10 * ms)
			assert.True(t, c.over())
			assert.LessOrEqual(t, c.grant.N, n)
			c.grant.Settle(c.grant.N, 100)
			for _, g := range out[1:] {
				g.Settle(0, 0)
			}
			assert.Zero(t, h.State().InFlight)
		})
	}
}

// TestInFlightTakesTurns: two lanes of a subscription that always want messages have as many.
func TestInFlightTakesTurns(t *testing.T) {
	for _, rest := range []string{"", " messageRate=100", " messageRate=100 sharing.mode=strict"} {
		run(t, 0, orders+" maxInFlight=1"+rest, func(t *testing.T, e *fixture) {
			var mu sync.Mutex // for the race detector: one message is out at a time
			var order []string
			work := func(tag string, callers int) {
				h := e.open(tag)
				for range callers {
					go func() {
						for e.since() < 10*time.Second {
							g, err := h.Lane.Acquire(t.Context(), 1, -1)
							if err != nil {
								return
							}
							mu.Lock()
							order = append(order, tag)
							mu.Unlock()
							time.Sleep(20 * ms)
							g.Settle(1, 0)
						}
					}()
				}
			}
			work("a", 5)
			work("b", 1)
			work("c", 1)
			time.Sleep(11 * time.Second)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			assert.InDelta(t, 500, len(order), 30, rest)
			n := map[string]int{}
			for _, tag := range order {
				n[tag]++
			}
			for tag, k := range n {
				assert.InDelta(t, len(order)/3, k, float64(len(order))/30, "lane %s: %s", tag, rest)
			}
		})
	}
}

// TestInFlightKeepsMessages: permits that may not be used, since others are in flight, stay where
// they are, and none are requested for callers that must wait.
func TestInFlightKeepsPermits(t *testing.T) {
	run(t, 0, orders+" maxInFlight=2 messageRate=1000", func(t *testing.T, e *fixture) {
		a, b := e.open("a"), e.open("b")
		g := e.acquire(a, 2, -1)
		for g.N < 2 {
			more := e.acquire(a, 2-g.N, -1)
			g.N += more.N
		}
		asked := len(e.store.asked())
		calls := []*call{e.wait(t.Context(), b, 100, -1), e.wait(t.Context(), a, 100, -1)}
		time.Sleep(5 * time.Second)
		assert.LessOrEqual(t, len(e.store.asked()), asked+4, "nobody may use them")
		g.Settle(2, 0)
		time.Sleep(20 * ms)
		for _, c := range calls {
			if c.over() {
				c.grant.Settle(c.grant.N, 0)
			}
			time.Sleep(20 * ms)
		}
		assert.True(t, calls[0].over())
		assert.True(t, calls[1].over())
		for _, h := range []*engine.Handle{a, b} {
			l := only(h)
			assert.LessOrEqual(t, l.Granted-l.Returned, int64(4))
		}
	})
}

// TestInFlightIsForgotten with the last handle of a subscription.
func TestInFlightIsForgotten(t *testing.T) {
	run(t, 0, orders+" maxInFlight=1", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1) // and never settled
		h.Close()
		h = e.open("")
		c := e.wait(t.Context(), h, 1, -1)
		assert.True(t, c.over())
	})
}
