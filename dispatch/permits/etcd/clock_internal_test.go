package etcdpermits

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

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

// TestClockFollows: a process publishes its time as soon as another one has fallen behind, and else
// after a second without another's.
func TestClockFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		changes, published := make(chan clientv3.WatchResponse), make(chan time.Time, 10)
		publish := func(...clientv3.Cmp) bool { published <- time.Now(); return true }
		isOwn := func(text []byte) bool { return strings.HasSuffix(string(text), "e0") }
		isReady := false
		go c.follow(ctx, changes, publish, isOwn, func() { isReady = true })
		after := func(behind time.Duration, suffix string) time.Duration {
			start := time.Now()
			text := fmt.Sprintf("%.9f%s", c.now(start)-behind.Seconds(), suffix)
			changes <- clientv3.WatchResponse{Events: []*clientv3.Event{
				{Kv: &mvccpb.KeyValue{Value: []byte(text)}},
			}}
			return (<-published).Sub(start)
		}
		for range 10 {
			d := after(2*behind, "")
			assert.GreaterOrEqual(t, d, behind)
			assert.Less(t, d, 2*behind)
			assert.False(t, isReady, "what is behind is not the clock of all")
		}
		for range 10 {
			assert.GreaterOrEqual(t, after(2*behind, "e0"), quiet, "its own time, that comes late")
			time.Sleep(quiet - behind)
			d := after(0, "")
			assert.GreaterOrEqual(t, d, quiet)
			assert.Less(t, d, 2*quiet)
		}
		assert.True(t, isReady)
		cancel()
		synctest.Wait()
	})
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
