package receiver_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/adapters/internal/receiver"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// subscribe returns a subscription with a limit, or one that is paused.
func subscribe(t *testing.T, paused bool) *dispatch.Subscription {
	lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: dispatch.Fixed(policy.Policy{
		MessageRate: policy.PerSecond(1000), Paused: &paused,
	})})
	require.NoError(t, err)
	sub, err := lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lim.Close()) })
	return sub
}

func TestAcquireEndsWithItsReasons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := subscribe(t, true)
		var r receiver.Receiver[string]
		r.Open()
		acquire := func(ctx context.Context) <-chan error {
			ended := make(chan error, 1)
			require.NoError(t, r.Lock(ctx))
			require.True(t, r.Receiving())
			go func() {
				_, err := r.Acquire(ctx, r.Current(), sub, 1)
				r.Unlock()
				ended <- err
			}()
			synctest.Wait()
			require.False(t, r.Receiving(), "it waits for a permit, not for a message")
			return ended
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, <-acquire(ctx), context.DeadlineExceeded)

		for _, ctx := range []context.Context{t.Context(), context.Background()} {
			ended := acquire(ctx)
			r.Next()
			require.ErrorIs(t, <-ended, receiver.ErrMoved)
		}

		ended := acquire(t.Context())
		other := make(chan error, 1)
		go func() { other <- r.Lock(context.Background()) }()
		synctest.Wait()
		r.Close()
		require.ErrorIs(t, <-ended, receiver.ErrClosing)
		if err := <-other; err == nil { // Unlock came first
			r.Unlock()
		} else {
			require.ErrorIs(t, err, receiver.ErrClosing)
		}
		_, err := r.Acquire(t.Context(), r.Current(), sub, 1)
		require.ErrorIs(t, err, receiver.ErrClosing)
	})
}

func TestAcquireWaitsForAPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := subscribe(t, false)
		var r receiver.Receiver[string]
		r.Open()
		defer r.Close()
		require.NoError(t, r.Lock(t.Context()))
		begin := time.Now()
		for range 500 {
			grant, err := r.Acquire(t.Context(), r.Current(), sub, 1)
			require.NoError(t, err)
			require.True(t, grant.Limited())
		}
		took := time.Since(begin)
		require.GreaterOrEqual(t, took, 300*time.Millisecond)
		require.LessOrEqual(t, took, 700*time.Millisecond)

		tries, granted := 0, 0
		for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond / 4) {
			tries++
			if _, ok := receiver.TryAcquire(sub, 1); ok {
				granted++
			}
		}
		require.Equal(t, 400, tries, "a try takes no time")
		require.LessOrEqual(t, granted, 300)
	})
}

func TestAMessageIsKeptUntilItIsDropped(t *testing.T) {
	var r receiver.Receiver[*int]
	r.Open()
	defer r.Close()
	require.NoError(t, r.Lock(t.Context()))
	require.False(t, r.Keeps())
	r.Keep(new(1))
	require.True(t, r.Keeps())
	require.Equal(t, 1, *r.Kept())
	r.Drop()
	require.False(t, r.Keeps())
	require.Nil(t, r.Kept(), "nothing refers to it")
	r.Drop()
}

// The context of a loop that calls with the same context each time is joined once.
func TestJoinIsKept(t *testing.T) {
	var r receiver.Receiver[int]
	r.Open()
	require.NoError(t, r.Lock(t.Context()))
	require.Same(t, r.Current(), r.Join(context.Background(), r.Current()))
	first := r.Join(t.Context(), r.Current())
	require.Equal(t, first, r.Join(t.Context(), r.Current()))
	require.NoError(t, first.Err())
	r.Next()
	require.Eventually(t, func() bool { return first.Err() != nil }, throttletest.Patience, time.Millisecond)
	second := r.Join(t.Context(), r.Current())
	require.NoError(t, second.Err())
	r.Close()
	require.Eventually(t, func() bool { return second.Err() != nil }, throttletest.Patience, time.Millisecond)
}
