package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

// TestOrder: callers are served in the order in which they came.
func TestOrder(t *testing.T) {
	for _, sharing := range []string{"fair", "strict", "split sharing.replicas=1"} {
		policies := orders + " messageRate=20 sharing.mode=" + sharing
		run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
			h := e.open("")
			e.acquire(h, 1, -1)
			var calls []*call
			for range 20 {
				calls = append(calls, e.wait(t.Context(), h, 1, -1))
			}
			served := 0
			for e.since() < 3*time.Second {
				time.Sleep(ms)
				for i, c := range calls {
					if i == served && c.over() {
						served++
					}
					assert.Equal(t, i < served, c.over(), "caller %d of %d served", i, served)
				}
			}
			assert.Equal(t, 20, served, sharing)
			assert.Zero(t, h.Stats().Waiting)
		})
	}
}

// TestFirstInLine: a permit that comes while callers wait is for the first of them.
func TestFirstInLine(t *testing.T) {
	run(t, 0, orders+" messageRate=1/1h", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		first := e.wait(t.Context(), h, 1, -1)
		assert.True(t, h.Lane.Waited())
		h.Lane.Admission().Only.Untake(1) // a permit that the loop has not seen
		_, _, ok := h.Lane.TryAcquire(1)
		assert.False(t, ok)
		h.Lane.Admission().Only.Refuse(0)
		second := e.wait(t.Context(), h, 1, -1)
		time.Sleep(10 * ms)
		assert.True(t, first.over())
		assert.False(t, second.over())
	})
}

// TestFirstInLineOfSeveral is TestFirstInLine for the fast path of several limits.
func TestFirstInLineOfSeveral(t *testing.T) {
	policies := orders + " messageRate=1/1h\n" + billing + " messageRate=100"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		a := h.Lane.Admission()
		g := e.acquire(h, 1, -1)
		first := e.wait(t.Context(), h, 1, -1)
		g.Settle(0, 0)
		assert.Zero(t, h.Lane.TakeSeveral(a, 1))
		assert.True(t, first.over())
		assert.Zero(t, h.Lane.TakeSeveral(a, 1))
	})
}

// A lateContext delays its caller by late when the caller first looks whether it is done.
type lateContext struct {
	context.Context
	late time.Duration
}

func (c *lateContext) Done() <-chan struct{} {
	d := c.late
	c.late = 0
	time.Sleep(d)
	return c.Context.Done()
}

// TestLateWakeUp: a caller that wakes too late for its strict slot wastes the slot, and keeps its
// place in the queue. Permits of other limits go back.
func TestLateWakeUp(t *testing.T) {
	policies := orders + " messageRate=2 sharing.mode=strict maxInFlight=5" +
		" byteRate=100000 byteBurst=9999\n" + "acme/shop messageRate=1000 aggregate=true"
	run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, 10)
		g.Settle(1, 10)
		late := &lateContext{t.Context(), 900 * ms}
		first := e.wait(late, h, 1, 10)
		time.Sleep(300 * ms)
		lost := limitOf(t, h, "message rate", 2).Lost
		second := e.wait(t.Context(), h, 1, 10)
		for !second.over() {
			time.Sleep(ms)
		}
		assert.True(t, first.over())
		assert.Greater(t, second.took, first.took-300*ms)
		assert.Greater(t, first.took, 900*ms)
		assert.EqualValues(t, 2, h.Stats().InFlight)
		assert.EqualValues(t, 1, limitOf(t, h, "message rate", 2).Lost-lost)
		shop := limitOf(t, h, "namespace's message rate", 1000)
		assert.EqualValues(t, 3, shop.Granted-shop.Returned)
		bytes := limitOf(t, h, "byte rate", 100000)
		assert.EqualValues(t, 30, bytes.Granted-bytes.Returned)
	})
}

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

// TestCancel: a caller that gives up leaves the queue, and is no demand from then on.
func TestCancel(t *testing.T) {
	run(t, 0, orders+" messageRate=1/1h", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		ctx, cancel := context.WithCancel(t.Context())
		first := e.wait(ctx, h, 50, -1)
		second := e.wait(t.Context(), h, 1, -1)
		assert.Equal(t, 2, h.Stats().Waiting)
		cancel()
		assert.True(t, first.over())
		assert.ErrorIs(t, first.err, context.Canceled)
		assert.ErrorContains(t, first.err, "dispatch: wait for a permit")
		assert.Equal(t, 1, h.Stats().Waiting)
		h.Lane.Admission().Only.Untake(1)
		_, err := h.Lane.Acquire(ctx, 1, -1)
		assert.ErrorIs(t, err, context.Canceled)
		time.Sleep(2 * time.Hour)
		assert.True(t, second.over())
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

// TestGrantedAndCancelled: permits granted at the moment in which their caller gives up go back.
func TestGrantedAndCancelled(t *testing.T) {
	run(t, 0, orders+" messageRate=10 burst=100", func(t *testing.T, e *fixture) {
		h := e.open("")
		granted, cancelled := int64(0), 0
		for range 60 { // the caller sees the grant or the cancellation, at random
			e.empty(h)
			before := only(h)
			ctx, cancel := context.WithCancel(t.Context())
			c := e.wait(&lateContext{ctx, time.Second}, h, 1, -1)
			time.Sleep(900 * ms)
			cancel()
			time.Sleep(200 * ms)
			assert.True(t, c.over())
			after := only(h)
			if c.err != nil {
				cancelled++
				assert.EqualValues(t, 1, after.Returned-before.Returned)
			} else {
				granted++
				assert.Equal(t, before.Returned, after.Returned)
			}
		}
		assert.Positive(t, granted)
		assert.Positive(t, cancelled)
	})
}

// TestCancelGivesASlotBack: the last strict slot goes back if its caller gives up.
func TestCancelGivesASlotBack(t *testing.T) {
	run(t, 0, orders+" messageRate=1/1m sharing.mode=strict", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		ctx, cancel := context.WithCancel(t.Context())
		e.wait(ctx, h, 1, -1)
		time.Sleep(time.Second)
		cancel()
		time.Sleep(10 * ms)
		asked := e.store.asked()
		assert.EqualValues(t, 1, asked[len(asked)-1].Allocate.Returned)
		c := e.wait(t.Context(), h, 1, -1)
		time.Sleep(time.Minute)
		assert.True(t, c.over(), "the slot is at the same time as before")
	})
}

// TestCancelWakesAnother: a slot that goes back wakes the first share in the queue, of another
// lane of the same process too. The memory store wakes it on the goroutine of the loop.
func TestCancelWakesAnother(t *testing.T) {
	policies := orders + " messageRate=1/1m sharing.mode=strict sharing.wait=queue" +
		" sharing.maxReserved=1"
	for _, rtt := range []time.Duration{0, 10 * ms} {
		run(t, rtt, policies, func(t *testing.T, e *fixture) {
			a, b := e.open("a"), e.open("b")
			e.acquire(a, 1, -1)
			ctx, cancel := context.WithCancel(t.Context())
			e.wait(ctx, a, 1, -1) // has the next slot
			time.Sleep(time.Second)
			c := e.wait(t.Context(), b, 1, -1) // is in the queue
			time.Sleep(100 * ms)
			assert.True(t, only(b).Queued)
			cancel()
			time.Sleep(50 * ms)
			assert.False(t, only(b).Queued, "it is woken, and gets that slot")
			time.Sleep(time.Minute)
			assert.True(t, c.over())
			assert.Equal(t, 2, e.Expected())
			b.Close()
			assert.Equal(t, 1, e.Expected(), "shares of closed lanes are forgotten")
			e.apply("")
			assert.Zero(t, e.Expected(), "so are those of limits that no longer apply")
		})
	}
}

// TestPaused: nothing passes during a pause, and nothing is requested. Callers pass once it ends.
func TestPaused(t *testing.T) {
	others := []string{"", " byteRate=1000", " maxInFlight=3", " sharing.mode=strict", " mode=shadow"}
	for _, other := range others {
		run(t, 0, orders+" messageRate=100 paused=true"+other, func(t *testing.T, e *fixture) {
			h := e.open("")
			h.ReportBacklog(0)
			assert.NotNil(t, h.Lane.Admission(), "caught-up subscriptions are paused too")
			assert.Nil(t, h.Lane.Admission().Only)
			c := e.wait(t.Context(), h, 1, -1)
			_, next, ok := h.Lane.TryAcquire(1)
			assert.False(t, ok)
			assert.Equal(t, time.Second, time.Until(next))
			time.Sleep(time.Second)
			assert.False(t, c.over())
			assert.Equal(t, engine.ReasonPaused, h.Stats().Reason)
			assert.Len(t, e.Stats(true, 9), 1, "a caller waits")
			assert.Empty(t, e.store.asked())
			e.apply(orders + " messageRate=100" + other)
			time.Sleep(100 * ms)
			assert.True(t, c.over())
		})
	}
}

// TestPausedWithPermits: permits that are held when a pause begins are not granted.
func TestPausedWithPermits(t *testing.T) {
	run(t, 0, orders+" messageRate=100 byteRate=1000000", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquireFor(time.Second, h, -1)
		time.Sleep(10 * ms)
		assert.Positive(t, only(h).Held)
		e.apply(orders + " messageRate=100 byteRate=1000000 paused=true")
		assert.False(t, e.wait(t.Context(), h, 1, -1).over())
		_, _, ok := h.Lane.TryAcquire(1)
		assert.False(t, ok)
	})
}

// TestLifted: callers that wait for a limit pass in the moment in which it is lifted, however busy
// the loop is.
func TestLifted(t *testing.T) {
	run(t, 0, orders+" messageRate=1/1h", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		c := e.wait(t.Context(), h, 5, -1)
		e.apply("")
		assert.True(t, c.over())
		assert.Equal(t, 5, c.grant.N)
		assert.Nil(t, c.grant.Admission)
	})
	run(t, 0, orders+" messageRate=2000 byteRate=1000", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, 1)
		e.acquire(h, 1, 1000)
		c := e.wait(t.Context(), h, 5, -1)
		for range 20 { // messages are released each tick; a second of bytes is owed
			time.Sleep(300 * time.Microsecond)
			e.apply(orders + " messageRate=2000 byteRate=1000")
			assert.False(t, c.over())
		}
		at := e.since()
		e.apply("")
		assert.True(t, c.over())
		assert.Equal(t, at, e.since())
	})
}

// TestRetired: permits of a limit that no longer applies go back. Its debt stays until it applies
// again, in whatever mode.
func TestRetired(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=100 round=1s", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquireFor(3*time.Second, h, -1)
		asked := len(e.store.asked())
		e.apply("")
		time.Sleep(100 * ms)
		if assert.Len(t, e.store.asked(), asked+1) {
			last := e.store.asked()[asked].Allocate
			assert.Zero(t, last.Want)
			assert.Greater(t, last.Returned, 20.0)
		}

		e.apply(orders + " messageRate=100 round=1s")
		g := e.acquire(h, 1, -1)
		g.Settle(200, 0) // a debt of 199 messages
		e.apply("")
		time.Sleep(time.Minute)
		e.apply(orders + " messageRate=100 sharing.mode=split sharing.replicas=1")
		from := e.since()
		e.acquire(h, 1, -1)
		assert.InDelta(t, 2, (e.since() - from).Seconds(), 0.1)
		g = e.acquire(h, 1, -1)
		g.Settle(101, 0)
		e.apply(orders + " messageRate=100")
		from = e.since()
		e.acquire(h, 1, -1)
		assert.InDelta(t, 1, (e.since() - from).Seconds(), 0.15, "the mode changed during a debt")
	})
}

// TestRetiredWhilePending: permits that arrive after their limit was removed go back too.
func TestRetiredWhilePending(t *testing.T) {
	run(t, 100*ms, orders+" messageRate=100", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.wait(t.Context(), h, 50, -1)
		time.Sleep(50 * ms)
		e.apply("")
		time.Sleep(time.Second)
		asked := e.store.asked()
		assert.Positive(t, asked[len(asked)-1].Allocate.Returned)
	})
}

// TestRetiredAreDropped: a share whose limit no longer applies is forgotten once it has given back
// what it held, in each mode.
func TestRetiredAreDropped(t *testing.T) {
	modes := []string{
		"fair", "strict", "split", "split sharing.replicas=1", "groups sharing.groups=eu",
	}
	for _, mode := range modes {
		policies := orders + " messageRate=100 sharing.mode=" + mode
		run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
			h := e.open("")
			for range 100 {
				e.acquire(h, 1, -1)
			}
			e.apply("")
			time.Sleep(time.Second)
			e.apply(policies)
			assert.Zero(t, only(h).Granted, mode)
		})
	}
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

// TestBytes: unknown sizes are charged at the average and known ones exactly. Debts are paid.
func TestBytes(t *testing.T) {
	run(t, 0, orders+" byteRate=10240", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, -1)
		assert.EqualValues(t, 1024, g.Size, "no size is known")
		g.Settle(1, 2048)
		g = e.acquire(h, 1, -1)
		assert.EqualValues(t, 2048, g.Size)
		g.Settle(1, 100)
		g = e.acquire(h, 1, -1)
		assert.EqualValues(t, 2048-(2048-100)/16-1, g.Size, "a sixteenth of the way")
		average := float64(g.Size)
		g.Settle(2, 0)
		g = e.acquire(h, 1, -1)
		assert.InDelta(t, average*15/16*15/16, g.Size, 2, "two sixteenths, for two messages")
		g.Settle(0, 0)
		g = e.acquire(h, 1, 0)
		assert.EqualValues(t, 1, g.Size, "an empty message")
		e.acquire(h, 1, 5*10240)
		from, asked := e.since(), len(e.store.asked())
		e.acquire(h, 1, 1)
		assert.InDelta(t, 5, (e.since() - from).Seconds(), 0.3)
		demand := 0.0
		for _, r := range e.store.asked()[asked:] {
			demand = max(demand, r.Allocate.Demand)
		}
		assert.GreaterOrEqual(t, demand, 500000.0, "the debt, in a round")
		g = e.acquire(h, 1000, -1)
		assert.Less(t, g.N, 10, "no more messages than there are bytes for")
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

// TestBytesAndMessages: a message that lacks bytes takes no permit of messages, and the other way
// round.
func TestBytesAndMessages(t *testing.T) {
	policies := orders + " byteRate=1000 messageRate=1000\n" + billing + " byteRate=100000000"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		for range 20 {
			e.acquire(h, 1, 500)
		}
		messages := limitOf(t, h, "message rate", 1000)
		assert.EqualValues(t, 20, messages.Granted-messages.Returned)
		for reason, rate := range map[string]float64{"byte rate": 1000, "subscription's byte rate": 1e8} {
			bytes := limitOf(t, h, reason, rate)
			assert.EqualValues(t, 10000, bytes.Granted-bytes.Returned, reason)
		}
		c := e.wait(t.Context(), h, 1, 500)
		assert.Equal(t, "byte rate", h.Stats().Reason)
		time.Sleep(2 * time.Second)
		assert.True(t, c.over())
	})
	policies = orders + " byteRate=1048576 byteBurst=1048576 messageRate=10"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		for range 20 {
			g := e.acquire(h, 50, -1)
			assert.Less(t, g.N, 50)
			assert.EqualValues(t, g.N*1024, g.Size, "the bytes of the messages granted")
			time.Sleep(300 * ms)
		}
		messages, bytes := limitOf(t, h, "message rate", 10), limitOf(t, h, "byte rate", 1048576)
		assert.Equal(t, messages.Granted*1024, bytes.Granted-bytes.Returned)
	})
}

// TestSeveral: permits that one limit has and the next one lacks stay with the first.
func TestSeveral(t *testing.T) {
	policies := orders + " messageRate=1000\n" + billing + " messageRate=20"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		got := int64(0)
		for range 20 {
			got += int64(e.acquire(h, 100, -1).N)
		}
		got += h.Lane.TakeSeveral(h.Lane.Admission(), 100)
		stats := h.Stats()
		assert.Equal(t, stats.Limits[1].Granted, stats.Limits[0].Granted)
		assert.GreaterOrEqual(t, stats.Limits[1].Granted, got)
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
