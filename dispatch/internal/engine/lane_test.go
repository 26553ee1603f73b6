package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

// TestOrder: callers are served in the order they came.
func TestOrder(t *testing.T) {
	for _, sharing := range []string{"fair", "strict", "split sharing.replicas=1"} {
		run(t, 10*ms, orders+" messageRate=20 sharing.mode="+sharing, func(t *testing.T, e *fixture) {
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
			assert.Zero(t, h.State().Waiting)
		})
	}
}

// TestNobodyOvertakes: a permit that is there while callers wait is the first one's.
func TestNobodyOvertakes(t *testing.T) {
	run(t, 0, orders+" messageRate=1/1h\ncluster maxInFlight=0", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		first := e.wait(t.Context(), h, 1, -1)
		assert.True(t, h.Lane.Waited())
		h.Lane.Admission().Only.Untake(1) // the loop has not seen it yet
		_, _, ok := h.Lane.TryAcquire(1)
		assert.False(t, ok)
		h.Lane.Admission().Only.Refuse(0)
		second := e.wait(t.Context(), h, 1, -1)
		time.Sleep(10 * ms)
		assert.True(t, first.over())
		assert.False(t, second.over())
	})
}

// TestSeveralOvertakes is TestNobodyOvertakes for the fast path of several limits.
func TestSeveralOvertakes(t *testing.T) {
	run(t, 0, orders+" messageRate=1/1h\n"+orders+"?subscription=billing messageRate=100", func(t *testing.T, e *fixture) {
		h := e.open("")
		a := h.Lane.Admission()
		g := e.acquire(h, 1, -1)
		first := e.wait(t.Context(), h, 1, -1)
		g.Settle(0, 0) // comes back, and the loop is told
		assert.Zero(t, a.TakeSeveral(1))
		assert.True(t, first.over())
		assert.Zero(t, a.TakeSeveral(1))
	})
}

// A lateContext makes its caller late for the first answer.
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

// TestLateWakeUp: a caller that wakes too late for its strict slot wastes it, and keeps its place
// at the head of the line. What other limits gave it goes back.
func TestLateWakeUp(t *testing.T) {
	policies := orders + " messageRate=2 sharing.mode=strict maxInFlight=5 byteRate=100000 byteBurst=9999\n" +
		"acme/shop messageRate=1000 aggregate=true"
	run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, 10)
		g.Settle(1, 10)
		late := &lateContext{t.Context(), 900 * ms}
		first := e.wait(late, h, 1, 10)
		second := e.wait(t.Context(), h, 1, 10)
		for !second.over() {
			time.Sleep(ms)
		}
		assert.True(t, first.over())
		assert.Greater(t, second.took, first.took)
		assert.Greater(t, first.took, 900*ms)
		assert.EqualValues(t, 2, h.State().InFlight)
		for _, l := range h.State().Limits {
			switch l.Rate {
			case 2:
				assert.GreaterOrEqual(t, l.Lost, int64(1))
			case 1000:
				assert.EqualValues(t, 3, l.Granted-l.Returned)
			default:
				assert.EqualValues(t, 30, l.Granted-l.Returned, "bytes")
			}
		}
	})
}

// TestCancel: a caller that gives up leaves the line, and its demand with it.
func TestCancel(t *testing.T) {
	run(t, 0, orders+" messageRate=1/1h", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		ctx, cancel := context.WithCancel(t.Context())
		first := e.wait(ctx, h, 50, -1)
		second := e.wait(t.Context(), h, 1, -1)
		assert.Equal(t, 2, h.State().Waiting)
		cancel()
		assert.True(t, first.over())
		assert.ErrorIs(t, first.err, context.Canceled)
		assert.ErrorContains(t, first.err, "dispatch: wait for a permit")
		assert.Equal(t, 1, h.State().Waiting)
		h.Lane.Admission().Only.Untake(1)
		_, err := h.Lane.Acquire(ctx, 1, -1)
		assert.ErrorIs(t, err, context.Canceled)
		for _, r := range e.store.asked()[1:] {
			assert.LessOrEqual(t, r.Allocate.Demand, 520.0)
		}
		asked := len(e.store.asked())
		time.Sleep(2 * time.Hour)
		assert.True(t, second.over())
		third := e.wait(t.Context(), h, 1, -1)
		time.Sleep(2 * time.Hour)
		assert.True(t, third.over())
		for _, r := range e.store.asked()[asked:] {
			assert.LessOrEqual(t, r.Allocate.Demand, 10.1, "that of the one caller that is left, a round")
		}
	})
}

// TestCancelGivesASlotBack: a strict slot whose caller has gone is another's while it is the last.
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
		assert.True(t, c.over(), "in the minute that it would have been")
	})
}

// TestCancelWakesAnother: a slot that goes back wakes the caller whose turn it is, of another lane
// of the same process too. The memory store says so on the goroutine of the loop that gives back.
func TestCancelWakesAnother(t *testing.T) {
	for _, rtt := range []time.Duration{0, 10 * ms} {
		run(t, rtt, orders+" messageRate=1/1m sharing.mode=strict sharing.wait=queue sharing.maxReserved=1", func(t *testing.T, e *fixture) {
			a, b := e.open("a"), e.open("b")
			e.acquire(a, 1, -1)
			ctx, cancel := context.WithCancel(t.Context())
			e.wait(ctx, a, 1, -1) // has the next slot
			time.Sleep(time.Second)
			c := e.wait(t.Context(), b, 1, -1) // queues
			time.Sleep(100 * ms)
			assert.True(t, only(b).Queued)
			cancel()
			time.Sleep(50 * ms)
			assert.False(t, only(b).Queued, "it is woken, and gets that slot")
			time.Sleep(time.Minute)
			assert.True(t, c.over())
		})
	}
}

// TestShadow lets callers through at once, and counts what they would have waited for.
func TestShadow(t *testing.T) {
	run(t, 0, orders+" messageRate=10 byteRate=1000 mode=shadow", func(t *testing.T, e *fixture) {
		h := e.open("")
		for range 100 {
			e.acquire(h, 1, 10)
		}
		for range 10 {
			_, _, ok := h.Lane.TryAcquire(1)
			assert.True(t, ok)
		}
		assert.Zero(t, e.since())
		state := h.State()
		assert.True(t, state.Shadow)
		assert.InDelta(t, 110, state.Shadowed, 5)
	})
	run(t, 0, orders+" messageRate=1/1h", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		c := e.wait(t.Context(), h, 3, -1)
		e.apply(orders + " messageRate=1/1h mode=shadow")
		assert.True(t, c.over())
		assert.EqualValues(t, 3, h.State().Shadowed)
	})
}

// TestPaused: nothing passes, nor is it requested; callers pass once the pause ends.
func TestPaused(t *testing.T) {
	for _, rest := range []string{"", " byteRate=1000", " maxInFlight=3", " sharing.mode=strict", " mode=shadow"} {
		run(t, 0, orders+" messageRate=100 paused=true"+rest, func(t *testing.T, e *fixture) {
			h := e.open("")
			h.ReportBacklog(0)
			assert.NotNil(t, h.Lane.Admission(), "the caught-up are paused, too")
			assert.Nil(t, h.Lane.Admission().Only)
			c := e.wait(t.Context(), h, 1, -1)
			_, next, ok := h.Lane.TryAcquire(1)
			assert.False(t, ok)
			assert.Equal(t, time.Second, time.Until(next))
			time.Sleep(time.Second)
			assert.False(t, c.over())
			assert.Equal(t, engine.ReasonPaused, h.State().Reason)
			assert.Empty(t, e.store.asked())
			e.apply(orders + " messageRate=100" + rest)
			time.Sleep(100 * ms)
			assert.True(t, c.over())
		})
	}
}

// TestLifted: callers that wait for a limit go on when it is lifted.
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
}

// TestRetired: what a limit that no longer applies held goes back, and a debt stays for when it
// applies again, in whatever mode.
func TestRetired(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=100 round=1s", func(t *testing.T, e *fixture) {
		h := e.open("")
		for e.since() < 3*time.Second {
			e.acquire(h, 1, -1)
		}
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
		g.Settle(200, 0) // a debt of 199
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
		assert.InDelta(t, 1, (e.since() - from).Seconds(), 0.15, "the mode has changed with a debt")
	})
}

// TestBackSoon: a limit that applies again at once goes on as it was.
func TestBackSoon(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=10", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		before := h.State().Limits[0].Granted
		e.apply("")
		e.apply(orders + " messageRate=10")
		assert.Equal(t, before, h.State().Limits[0].Granted, "the same share")
		e.apply(orders + " messageRate=10 sharing.mode=strict")
		assert.Zero(t, h.State().Limits[0].Granted, "another")
	})
}

// TestBytes: unknown sizes are charged at the average, known ones exactly, and debts are paid.
func TestBytes(t *testing.T) {
	run(t, 0, orders+" byteRate=10240", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, -1)
		assert.EqualValues(t, 1024, g.Size, "nothing is known")
		g.Settle(1, 2048)
		g = e.acquire(h, 1, -1)
		assert.EqualValues(t, 2048, g.Size)
		g.Settle(1, 100)
		g = e.acquire(h, 1, -1)
		assert.EqualValues(t, 2048-(2048-100)/16-1, g.Size, "a sixteenth of the way")
		g.Settle(0, 0)
		g = e.acquire(h, 1, 0)
		assert.EqualValues(t, 1, g.Size, "an empty message")
		g = e.acquire(h, 1, 5*10240)
		from := e.since()
		g = e.acquire(h, 1, 1)
		assert.InDelta(t, 5, (e.since() - from).Seconds(), 0.3)
		g = e.acquire(h, 1000, -1)
		assert.Less(t, g.N, 10, "no more messages than there are bytes for")
	})
}

// TestBytesAndMessages: a message that lacks bytes takes no permit of messages.
func TestBytesAndMessages(t *testing.T) {
	policies := orders + " byteRate=1000 messageRate=1000\n" + orders + "?subscription=billing byteRate=100000000"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		for range 20 {
			e.acquire(h, 1, 500)
		}
		for _, l := range h.State().Limits {
			if l.Reason == "message rate" {
				assert.EqualValues(t, 20, l.Granted-l.Returned)
			} else {
				assert.EqualValues(t, 10000, l.Granted-l.Returned, "rate %v", l.Rate)
			}
		}
		c := e.wait(t.Context(), h, 1, 500)
		assert.Equal(t, "byte rate", h.State().Reason)
		time.Sleep(2 * time.Second)
		assert.True(t, c.over())
	})
	run(t, 0, orders+" byteRate=1048576 messageRate=10", func(t *testing.T, e *fixture) {
		h := e.open("")
		for range 5 {
			g := e.acquire(h, 50, -1)
			assert.EqualValues(t, g.N*1024, g.Size, "of those granted")
			time.Sleep(300 * ms)
		}
		for _, l := range h.State().Limits {
			if l.Reason == "byte rate" {
				var messages int64
				for _, m := range h.State().Limits {
					if m.Reason == "message rate" {
						messages = m.Granted
					}
				}
				assert.Equal(t, messages*1024, l.Granted-l.Returned)
			}
		}
	})
}

// TestSeveral: what one limit grants and the next lacks stays with the first.
func TestSeveral(t *testing.T) {
	run(t, 0, orders+" messageRate=1000\n"+orders+"?subscription=billing messageRate=20", func(t *testing.T, e *fixture) {
		h := e.open("")
		got := int64(0)
		for range 20 {
			got += int64(e.acquire(h, 100, -1).N)
		}
		for range 20 {
			got += h.Lane.Admission().TakeSeveral(100)
			time.Sleep(100 * ms)
			e.empty(h)
			break
		}
		state := h.State()
		assert.Equal(t, state.Limits[1].Granted, state.Limits[0].Granted)
		assert.GreaterOrEqual(t, state.Limits[1].Granted, got)
	})
}

// TestWaitStats count the callers that waited, by reason and by how long.
func TestWaitStats(t *testing.T) {
	run(t, 0, orders+" messageRate=10", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		for range 3 {
			c := e.wait(t.Context(), h, 1, -1)
			assert.Equal(t, "message rate", h.State().Reason)
			for !c.over() {
				time.Sleep(ms)
			}
		}
		state := h.State()
		assert.Equal(t, []engine.Waits{{Reason: "message rate", N: 4}}, state.Waits)
		assert.EqualValues(t, 4, state.WaitTimes.Count)
		n := int64(0)
		for _, k := range state.WaitTimes.Buckets {
			n += k
		}
		assert.Equal(t, state.WaitTimes.Count, n)
		assert.Empty(t, state.Reason)
	})
}
