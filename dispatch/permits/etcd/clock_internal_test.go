package etcdpermits

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// TestClockWithinBounds: whatever time is published, the clock runs on within the bounds of
// schedules.
func TestClockWithinBounds(t *testing.T) {
	for _, published := range []string{"1e11", "99999999999.9", "5e10", "-1e300", "1e300", "NaN", "Inf"} {
		c := newClock()
		c.take([]byte(published))
		later := c.now(time.Now().Add(1e6 * time.Hour))
		r := schedule.Request{Weight: 1, Demand: 10, Want: 1, Round: 0.1, Rate: 10, Nonce: 1}
		_, _, reply := schedule.Allocate(schedule.State{}, schedule.Sub{}, r, later)
		assert.True(t, reply.Sound(r), "%s: %v", published, reply.Now)
	}
}

// TestClockRefused: a request of a user who may not read the clock does not wait for its time-out.
// One that comes when the user may read it waits until the clock is known.
func TestClockRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		awaits := func() (taken time.Duration, err error) {
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err = c.await(ctx)
			return time.Since(start), err
		}
		_, err := awaits()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		unreachable := errors.New("no route")
		time.AfterFunc(time.Second, func() { c.failed(unreachable) })
		taken, err := awaits()
		require.ErrorIs(t, err, unreachable)
		assert.Equal(t, time.Minute, taken, "it may become reachable")

		denied := errors.New("etcdserver: permission denied")
		time.AfterFunc(time.Second, func() { c.failed(denied) })
		taken, err = awaits()
		require.ErrorIs(t, err, denied)
		assert.Equal(t, time.Second, taken)
		taken, err = awaits()
		require.ErrorIs(t, err, denied)
		assert.Zero(t, taken)

		c.failed(nil)
		time.AfterFunc(time.Second, func() { close(c.synced) })
		taken, err = awaits()
		require.NoError(t, err)
		assert.Equal(t, time.Second, taken)
		c.failed(denied)
		_, err = awaits()
		assert.NoError(t, err, "it runs on by this process's clock")
	})
}
