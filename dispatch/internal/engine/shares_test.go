package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

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
