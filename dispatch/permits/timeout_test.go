package permits_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

const ms = time.Millisecond

// call makes a call that takes d, if the time-out allows.
func call(ctx context.Context, timeout *permits.Timeout, d time.Duration) (late bool) {
	ctx, done := timeout.Bound(ctx)
	defer done()
	select {
	case <-time.After(d):
		return false
	case <-ctx.Done():
		return true
	}
}

func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timeout := permits.NewTimeout(200 * ms)
		assert.False(t, call(t.Context(), timeout, ms))
		assert.Equal(t, 200*ms, timeout.Current(), "no shorter than at first")
		for range 3 {
			assert.Equal(t, 200*ms, timeout.Current(), "one or two late calls may be an accident")
			assert.True(t, call(t.Context(), timeout, 300*ms))
		}
		assert.Equal(t, 400*ms, timeout.Current(), "twice the time that was too short")
		assert.False(t, call(t.Context(), timeout, 300*ms))
		assert.Equal(t, 1200*ms, timeout.Current(), "four times what a call takes")
		for range 9 {
			call(t.Context(), timeout, time.Minute)
		}
		assert.Equal(t, permits.MaxTimeout, timeout.Current(), "at most")
		for range 100 {
			call(t.Context(), timeout, ms)
		}
		assert.Equal(t, 200*ms, timeout.Current(), "the store is near again")

		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		assert.True(t, call(ctx, timeout, time.Second))
		assert.Equal(t, 200*ms, timeout.Current(), "its caller gave up")

		long := permits.NewTimeout(5 * time.Second)
		call(t.Context(), long, time.Minute)
		assert.Equal(t, 5*time.Second, long.Current(), "it begins with more than the most")
	})
}

// TestTimeoutOfCallsAtOnce: calls that end together count once.
func TestTimeoutOfCallsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timeout := permits.NewTimeout(200 * ms)
		for range 2 {
			for range 8 {
				go call(t.Context(), timeout, time.Second)
			}
			time.Sleep(201 * ms)
		}
		assert.Equal(t, 200*ms, timeout.Current())
		assert.True(t, call(t.Context(), timeout, time.Second))
		assert.Equal(t, 400*ms, timeout.Current())
		time.Sleep(time.Second)
	})
}
