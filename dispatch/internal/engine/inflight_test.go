package engine_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

// TestInFlight: no more messages are in flight than the policy says, with or without other limits.
func TestInFlight(t *testing.T) {
	for _, other := range []string{
		"", " messageRate=1000", " byteRate=100000", " messageRate=1000 sharing.mode=strict",
	} {
		run(t, 0, orders+" maxInFlight=3"+other, func(t *testing.T, e *fixture) {
			h := e.open("")
			assert.Nil(t, h.Lane.Admission().Only, "callers must not look at one limit only")
			h.ReportBacklog(0) // caught-up subscriptions do not bypass maxInFlight
			var granted []engine.Grant
			for n := 0; n < 3; {
				g := e.acquire(h, 2, -1)
				assert.Positive(t, g.Size, "Done has something to settle")
				n += g.N
				granted = append(granted, g)
			}
			assert.EqualValues(t, 3, h.Stats().InFlight)
			c := e.wait(t.Context(), h, 5, -1)
			time.Sleep(100 * ms)
			assert.False(t, c.over())
			assert.Equal(t, engine.ReasonInFlight, h.Stats().Reason)
			_, _, ok := h.Lane.TryAcquire(1)
			assert.False(t, ok)
			n := granted[0].N
			granted[0].Settle(n, 100)
			time.Sleep(10 * ms)
			assert.True(t, c.over())
			assert.LessOrEqual(t, c.grant.N, n)
			c.grant.Settle(c.grant.N, 100)
			for _, g := range granted[1:] {
				g.Settle(0, 0)
			}
			assert.Zero(t, h.Stats().InFlight)
		})
	}
}

// TestInFlightTakesTurns: lanes of a subscription that always have callers have the same number of
// messages in flight, also if a permit takes a request.
func TestInFlightTakesTurns(t *testing.T) {
	for _, rtt := range []time.Duration{0, 15 * ms} {
		for _, other := range []string{
			"", " messageRate=100", " messageRate=100 sharing.mode=strict", " byteRate=1000000",
		} {
			run(t, rtt, orders+" maxInFlight=1"+other, func(t *testing.T, e *fixture) {
				handles := []*handle{e.open("a"), e.open("b"), e.open("c")}
				var n [3]atomic.Int64
				for range 20 { // whose turn is next is partly chance, and stays so while all lanes have callers
					start := time.Now()
					var wg sync.WaitGroup
					for lane, callers := range []int{5, 1, 1} {
						h := handles[lane]
						for range callers {
							wg.Go(func() {
								for time.Since(start) < 3*time.Second {
									g := e.acquire(h, 1, 100)
									n[lane].Add(1)
									time.Sleep(20 * ms)
									g.Settle(1, 100)
								}
							})
						}
					}
					wg.Wait()
				}
				all := float64(n[0].Load() + n[1].Load() + n[2].Load())
				assert.Greater(t, all, 1620.0, "20 ms each, and a request before it")
				for lane := range n {
					assert.InDelta(t, all/3, n[lane].Load(), all/20, "lane %d%s, rtt %v", lane, other, rtt)
				}
			})
		}
	}
}

// TestInFlightNewcomer: a lane that has no permit yet gets its turn beside another one whose
// callers always wait, and have permits.
func TestInFlightNewcomer(t *testing.T) {
	run(t, 15*ms, orders+" maxInFlight=1 messageRate=1000", func(t *testing.T, e *fixture) {
		a, b := e.open("a"), e.open("b")
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				for e.since() < 3*time.Second {
					g := e.acquire(a, 1, -1)
					time.Sleep(5 * ms)
					g.Settle(1, 0)
				}
			})
		}
		time.Sleep(time.Second)
		c := e.wait(t.Context(), b, 1, -1)
		<-c.done
		assert.Less(t, c.took, 200*ms)
		c.grant.Settle(1, 0)
		wg.Wait()
	})
}

// TestInFlightServesOthers: a message that is done serves the callers of another lane at once,
// however busy the loop is.
func TestInFlightServesOthers(t *testing.T) {
	policies := orders + " maxInFlight=1\n" + busy + " messageRate=1000"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		a, b := e.open("a"), e.open("b")
		e.keepTicking(2 * time.Second)
		for range 10 {
			time.Sleep(300 * time.Microsecond)
			g := e.acquire(a, 1, -1)
			c := e.wait(t.Context(), b, 1, -1)
			from := time.Now()
			g.Settle(1, 0)
			assert.True(t, c.over())
			assert.Zero(t, time.Since(from))
			c.grant.Settle(1, 0)
		}
		time.Sleep(2 * time.Second)
	})
}

// TestInFlightWasted: a strict slot that its caller comes to too late frees its place in flight
// for another lane.
func TestInFlightWasted(t *testing.T) {
	policies := orders + " maxInFlight=1 messageRate=2 sharing.mode=strict"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		a, b := e.open("a"), e.open("b")
		g := e.acquire(a, 1, -1)
		g.Settle(1, 0)
		late := e.wait(&lateContext{t.Context(), time.Second}, a, 1, -1)
		time.Sleep(600 * ms)
		other := e.wait(t.Context(), b, 1, -1)
		time.Sleep(1200 * ms)
		assert.True(t, other.over())
		other.grant.Settle(1, 0)
		time.Sleep(time.Second)
		assert.True(t, late.over())
	})
}

// TestInFlightKeepsPermits: callers that wait for messages in flight request no permits.
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
		assert.LessOrEqual(t, len(e.store.asked()), asked+4)
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
		for _, h := range []*handle{a, b} {
			l := only(h)
			assert.LessOrEqual(t, l.Granted-l.Returned, int64(4))
		}
	})
}

// TestInFlightIsForgotten: messages in flight are forgotten with the last handle of a subscription.
func TestInFlightIsForgotten(t *testing.T) {
	run(t, 0, orders+" maxInFlight=1", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1) // never settled
		h.Close()
		h = e.open("")
		c := e.wait(t.Context(), h, 1, -1)
		assert.True(t, c.over())
	})
}
