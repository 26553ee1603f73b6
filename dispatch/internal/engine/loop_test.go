package engine_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/policy"
)

// TestSteps: a caller that always waits costs two and a half steps a permit and a request for two
// permits.
func TestSteps(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=20", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, -1)
		from, asked := g.Taken, len(e.store.asked())
		for range 200 {
			g = e.acquire(h, 1, -1)
		}
		assert.LessOrEqual(t, g.Taken-from, uint64(540),
			"600 if each answer steps its lane, 700 if each caller does")
		assert.LessOrEqual(t, len(e.store.asked())-asked, 110)
		assert.InDelta(t, 10, e.since().Seconds(), 0.3)
	})
}

// TestTouches: while the loop steps within a tick anyway, callers do not wake it.
func TestTouches(t *testing.T) {
	run(t, 0, orders+" messageRate=1000", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquireFor(time.Second, h, -1)
		from := e.acquire(h, 1, -1).Taken
		for range 5000 {
			_, _, _ = h.Lane.TryAcquire(1)
			time.Sleep(200 * time.Microsecond)
		}
		assert.LessOrEqual(t, e.acquire(h, 1, -1).Taken-from, uint64(1100))
	})
}

// busy is another topic. Its callers keep the loop stepping each tick.
const busy = "kafka://acme/shop/busy"

func (e *fixture) openBusy() *handle {
	e.t.Helper()
	id := laneOf("")
	id.Topic, _ = policy.ParseTopic(busy)
	return e.openLane(id)
}

// keepTicking has callers of busy until the engine is closed, or for d.
func (e *fixture) keepTicking(d time.Duration) {
	h := e.openBusy()
	for range 5 {
		go func() {
			for end := time.Now().Add(d); time.Now().Before(end); {
				if _, err := h.Lane.Acquire(e.t.Context(), 1, -1); err != nil {
					return
				}
			}
		}()
	}
	time.Sleep(d / 2)
	synctest.Wait()
}

// TestTryWakesTheLoop: a try for a strict slot takes a request and no tick, whatever the loop does.
func TestTryWakesTheLoop(t *testing.T) {
	policies := orders + " messageRate=10 sharing.mode=strict\n" + busy + " messageRate=1000"
	run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		e.keepTicking(4 * time.Second)
		_, _, _ = h.Lane.TryAcquire(1) // the first answer tells what an answer takes
		for i := range 7 {
			time.Sleep(200*ms + 300*time.Microsecond)
			if i%2 == 0 { // the lane waits for the next tick
				ctx, cancel := context.WithCancel(t.Context())
				c := e.wait(ctx, h, 1, -1)
				cancel()
				assert.True(t, c.over())
			}
			from := time.Now()
			_, _, ok := h.Lane.TryAcquire(1)
			assert.True(t, ok)
			assert.Equal(t, 10*ms, time.Since(from))
		}
		time.Sleep(4 * time.Second)
	})
}

// TestStrictInTime: strict slots are granted when they are due, and not a tick later.
func TestStrictInTime(t *testing.T) {
	run(t, 0, orders+" messageRate=400 sharing.mode=strict", func(t *testing.T, e *fixture) {
		h := e.open("")
		granted := make(chan time.Duration, 1000)
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				for e.since() < 2*time.Second {
					e.acquire(h, 1, -1)
					granted <- e.since()
				}
			})
		}
		wg.Wait()
		close(granted)
		n, last := 0, -time.Second
		for at := range granted {
			assert.GreaterOrEqual(t, at-last, 2300*time.Microsecond)
			n, last = n+1, at
		}
		assert.InDelta(t, 800, n, 10)
	})
}

// TestStrictLongExpiry: the slot after one that a caller has taken is granted when it is due, also
// if slots may be used for longer than a period.
func TestStrictLongExpiry(t *testing.T) {
	policies := orders + " messageRate=10 sharing.mode=strict sharing.permitExpiry=1s"
	for _, rtt := range []time.Duration{0, 10 * ms} {
		run(t, rtt, policies, func(t *testing.T, e *fixture) {
			h := e.open("")
			e.acquire(h, 1, -1)
			var calls []*call
			for range 8 {
				calls = append(calls, e.wait(t.Context(), h, 1, -1))
			}
			time.Sleep(2 * time.Second)
			for i, c := range calls {
				assert.True(t, c.over())
				due := time.Duration(i+1) * 100 * ms
				assert.InDelta(t, due.Seconds(), c.took.Seconds(), 0.011, "caller %d", i)
			}
		})
	}
}
