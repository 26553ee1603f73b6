package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

// TestSettle: what was not used of a grant goes back until it is older than two batches; more than
// granted is a debt in any case.
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

// TestSettleBytes is TestSettle for bytes, of which an old grant's shorten a debt.
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

// TestSettleServes: who waits is served with what comes back.
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

// TestHold: a grant that is held gives back what was not used for as long as it said, 3 s at most,
// and the first call counts. What no caller uses then goes to the store.
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
			work := func(d time.Duration) {
				for end := time.Now().Add(d); time.Now().Before(end); {
					e.acquire(h, 1, 100)
				}
			}
			work(time.Second)
			time.Sleep(10 * ms)
			g := e.acquire(h, 8, 800)
			for _, d := range c.hold {
				g.Hold(d)
			}
			work(c.after - 500*ms)
			time.Sleep(500 * ms)
			before, asked := h.State().Limits, len(e.store.asked())
			g.Settle(0, 0)
			want := []int64{0, 0}
			if c.back {
				want = []int64{8, 800}
			}
			var returned []int64
			for i, l := range h.State().Limits {
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

// TestHoldOfOtherModes does nothing: their slots expire.
func TestHoldOfOtherModes(t *testing.T) {
	for sharing, holds := range map[string]bool{"fair": true, "strict": false, "split sharing.replicas=1": false, "groups sharing.groups=eu,us": false} {
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

// TestStrictGrantIsWasted: a slot that was not used is over.
func TestStrictGrantIsWasted(t *testing.T) {
	run(t, 0, orders+" messageRate=10 sharing.mode=strict", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, -1)
		c := e.wait(t.Context(), h, 1, -1)
		g.Settle(0, 0)
		time.Sleep(10 * ms)
		assert.False(t, c.over())
		assert.EqualValues(t, 1, only(h).Lost)
		assert.Zero(t, only(h).Returned)
		time.Sleep(100 * ms)
		assert.True(t, c.over())
	})
}
