package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

// TestSettle: unused permits go back as long as the grant is younger than two batches. Messages
// beyond those granted are a debt in any case.
func TestSettle(t *testing.T) {
	run(t, 0, orders+" messageRate=10", func(t *testing.T, e *fixture) {
		h := e.open("")
		old := e.acquire(h, 1, -1)
		g := e.acquire(h, 1, -1)
		g.Settle(0, 0)
		assert.EqualValues(t, 1, only(h).Returned)
		for range 30 {
			e.acquire(h, 1, -1)
		}
		again := old
		old.Settle(0, 0)
		assert.EqualValues(t, 1, only(h).Returned, "too old")
		again.Settle(5, 0)
		assert.EqualValues(t, 4, only(h).Owed)
		g = e.acquire(h, 1, -1)
		g.Settle(-7, 0)
		assert.EqualValues(t, 2, only(h).Returned, "no more than granted")
	})
}

// TestSettleBytes: unused bytes of an old grant shorten a debt, and are not available again.
func TestSettleBytes(t *testing.T) {
	run(t, 0, orders+" byteRate=1000", func(t *testing.T, e *fixture) {
		h := e.open("")
		old := e.acquire(h, 1, 50)
		for range 30 {
			e.acquire(h, 1, 50)
		}
		again := old
		e.acquire(h, 1, 5000)
		granted, owed := only(h).Granted, only(h).Owed
		old.Settle(1, 20)
		assert.Zero(t, only(h).Returned)
		assert.EqualValues(t, 30, granted-only(h).Granted, "forgiven")
		again.Settle(1, 80)
		assert.EqualValues(t, 30, only(h).Owed-owed)
	})
}

// TestSettleServes: permits that go back serve waiting callers.
func TestSettleServes(t *testing.T) {
	run(t, 0, orders+" messageRate=1/1h", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, -1)
		time.Sleep(50 * ms)
		c := e.wait(t.Context(), h, 1, -1)
		time.Sleep(50 * ms)
		g.Settle(0, 0)
		time.Sleep(2 * ms)
		assert.True(t, c.over())
	})
}

// TestHold: unused permits of a held grant go back for the time that Hold was first called with,
// 3 s at most. If no caller takes them, they go back to the store.
func TestHold(t *testing.T) {
	for _, c := range []struct {
		hold  []time.Duration
		after time.Duration
		back  bool
	}{
		{nil, time.Second, false},
		{[]time.Duration{2 * time.Second}, 1900 * ms, true},
		{[]time.Duration{2 * time.Second}, 2100 * ms, false},
		{[]time.Duration{time.Minute}, 2900 * ms, true},
		{[]time.Duration{time.Minute}, 3100 * ms, false},
		{[]time.Duration{500 * ms, 2 * time.Second}, time.Second, false},
	} {
		run(t, 0, orders+" messageRate=1000 byteRate=1000000", func(t *testing.T, e *fixture) {
			h := e.open("")
			e.acquireFor(time.Second, h, 100)
			time.Sleep(10 * ms)
			g := e.acquire(h, 8, 800)
			for _, d := range c.hold {
				g.Hold(d)
			}
			e.acquireFor(c.after-500*ms, h, 100)
			time.Sleep(500 * ms)
			before, asked := h.Stats().Limits, len(e.store.asked())
			g.Settle(0, 0)
			want := []int64{0, 0}
			if c.back {
				want = []int64{8, 800}
			}
			var returned []int64
			for i, l := range h.Stats().Limits {
				returned = append(returned, l.Returned-before[i].Returned)
			}
			assert.Equal(t, want, returned, "%+v", c)
			time.Sleep(time.Second)
			back := 0.0
			for _, r := range e.store.asked()[asked:] {
				back += r.Allocate.Returned
			}
			assert.EqualValues(t, want[0]+want[1], back, "to the store")
		})
	}
}

// TestCloseAfterHold: permits that a held grant gave back just before Close go back to the store.
func TestCloseAfterHold(t *testing.T) {
	policies := orders + " messageRate=1000\n" + busy + " messageRate=1000"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquireFor(time.Second, h, -1)
		time.Sleep(10 * ms)
		g := e.acquire(h, 8, -1)
		g.Hold(3 * time.Second)
		key := only(h).Key
		e.keepTicking(2 * time.Second)
		asked := len(e.store.asked())
		g.Settle(0, 0)
		e.close()
		back := 0.0
		for _, r := range e.store.asked()[asked:] {
			if r.Key == key {
				back += r.Allocate.Returned
			}
		}
		assert.EqualValues(t, 8, back)
		time.Sleep(2 * time.Second)
	})
}

// TestHoldOfOtherModes: Hold has no effect on grants of other modes than fair, whose permits
// expire.
func TestHoldOfOtherModes(t *testing.T) {
	for sharing, holds := range map[string]bool{
		"fair": true, "strict": false,
		"split sharing.replicas=1": false, "groups sharing.groups=eu,us": false,
	} {
		run(t, 0, orders+" messageRate=10 sharing.mode="+sharing, func(t *testing.T, e *fixture) {
			h := e.open("")
			g := e.acquire(h, 1, -1)
			was := g.Taken
			g.Hold(time.Second)
			assert.Equal(t, holds, g.Taken != was, sharing)
			var none engine.Grant
			none.Hold(time.Second)
			assert.Zero(t, none.Taken)
		})
	}
}

// TestUnusedStrictSlot: the next caller gets a strict slot that was not used while its time lasts.
func TestUnusedStrictSlot(t *testing.T) {
	run(t, 0, orders+" messageRate=10 sharing.mode=strict", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, -1)
		c := e.wait(t.Context(), h, 1, -1)
		time.Sleep(ms / 2)
		g.Settle(0, 0)
		time.Sleep(ms / 2)
		assert.True(t, c.over(), "the next caller has the slot")
		assert.Zero(t, only(h).Lost)
		assert.EqualValues(t, 1, only(h).Returned)
		assert.EqualValues(t, 2, only(h).Granted, "twice the same slot")

		late := e.acquire(h, 1, -1)
		c = e.wait(t.Context(), h, 1, -1)
		time.Sleep(10 * ms)
		late.Settle(0, 0)
		time.Sleep(10 * ms)
		assert.False(t, c.over(), "its time is over")
		assert.EqualValues(t, 1, only(h).Lost)
		time.Sleep(100 * ms)
		assert.True(t, c.over())
	})
}

// TestUnusedStrictSlots: messages that turn out to be expired use no slots: those that come in time
// are passed on from caller to caller, and at last back to the line.
func TestUnusedStrictSlots(t *testing.T) {
	run(t, ms, orders+" messageRate=50 sharing.mode=strict", func(t *testing.T, e *fixture) {
		h := e.open("")
		from := time.Now()
		for range 500 {
			g := e.acquire(h, 1, -1)
			g.Settle(0, 0)
		}
		assert.LessOrEqual(t, time.Since(from), time.Second)
		assert.LessOrEqual(t, only(h).Granted-only(h).Returned, int64(10))
		time.Sleep(20 * ms)
		other := e.open("other")
		from = time.Now()
		e.acquire(other, 1, -1)
		assert.LessOrEqual(t, time.Since(from), 20*ms)
		assert.Zero(t, only(h).Held)
	})
}

// TestMaxPermits: no call asks for more than MaxPermits, and no grant owes more.
func TestMaxPermits(t *testing.T) {
	run(t, 0, orders+" messageRate=10", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1<<40, -1)
		assert.Equal(t, 1, g.N)
		g.Settle(1<<40, 0)
		assert.EqualValues(t, engine.MaxPermits-1, only(h).Owed)
		e.apply("")
		assert.Equal(t, engine.MaxPermits, e.acquire(h, 1<<40, -1).N)
		g, _, ok := h.Lane.TryAcquire(1 << 40)
		assert.True(t, ok)
		assert.Equal(t, engine.MaxPermits, g.N)
	})
}
