package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

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
			assert.Len(t, statsOf(e, true), 1, "a caller waits")
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
