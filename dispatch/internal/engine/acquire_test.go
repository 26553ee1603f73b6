package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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
