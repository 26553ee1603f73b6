package dispatch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A replica that opens a handle for each message, or for each ten, has one replica's share.
func TestAHandleForEachMessage(t *testing.T) {
	t.Parallel()
	for _, messages := range []int{1, 10} {
		attacked(t, fmt.Sprint(messages), perSecond(1000), func(t *testing.T, f *fleet, _ *rand.Rand) {
			r := f.join(0, "group")
			require.NoError(t, r.sub.Close())
			r.wg.Go(func() {
				for r.ctx.Err() == nil {
					sub, err := r.lim.Subscription(topic, "group")
					if !assert.NoError(t, err) {
						return
					}
					for range messages {
						if g, err := sub.Acquire(r.ctx, 1); err == nil {
							r.record(0, g.N())
						}
					}
					assert.NoError(t, sub.Close())
				}
			})
			for i := range 7 {
				f.join(1+i, "group").greedy(1)
			}
			time.Sleep(10 * second)
			within(t, "its share of 125", float64(f.by(0, 2*second, 10*second))/8, 115, 135)
			within(t, "another's", float64(f.by(1, 2*second, 10*second))/8, 115, 135)
			within(t, "requests a message", f.requestsPerMessage(), 0, 0.3)
			f.bounded(t, "from 1 s on", second, time.Since(f.start), 1050, 250*time.Millisecond)
		})
	}
}

// After its last handle is closed, or its removal, a limit sends at most two requests in the next
// second and none after that, whatever preceded.
func TestClosedIsSilent(t *testing.T) {
	t.Parallel()
	requests := func(r *replica) (n int) {
		r.store.Locked(func() { n = r.link.Sent })
		return n
	}
	for name, p := range map[string]policy.Policy{
		"fair":   perSecond(10),
		"shadow": {MessageRate: policy.PerSecond(10), Mode: policy.Shadow},
		"bytes":  {MessageRate: policy.PerSecond(100), ByteRate: policy.PerSecond(10_000)},
		"burst":  {MessageRate: policy.PerSecond(10), Burst: new(int64(100))},
		"strict": strictly(t, "10"),
		"queue": {
			MessageRate: policy.PerSecond(10), Sharing: policy.Sharing{Mode: policy.Strict, Wait: policy.WaitQueue},
		},
		"split":   splitting(t, "10"),
		"groups":  divided(t, "10", "eu", "us"),
		"a light": {MessageRate: policy.PerSecond(10), Reserved: policy.PerSecond(10)},
	} {
		attacked(t, name, p, func(t *testing.T, f *fleet, rng *rand.Rand) {
			for i := range 2 {
				f.joinGroup(10+i, "other", "us")
			}
			r, limits := f.joinGroup(0, "group", "eu"), 1
			if p.ByteRate.Limited() {
				limits = 2
			}
			for range 20 {
				switch rng.IntN(6) {
				case 0, 1: // refused once, or many times
					for range 1 + rng.IntN(20) {
						_, _, _ = r.sub.TryAcquire(1 + rng.IntN(10))
					}
				case 2: // a caller waits, and gives up
					ctx, cancel := context.WithTimeout(r.ctx, time.Duration(rng.IntN(300))*time.Millisecond)
					g, _ := r.sub.Acquire(ctx, 1+rng.IntN(100)) // ends with ctx
					g.Done(rng.IntN(g.N()+2), int64(rng.IntN(5000)))
					cancel()
				case 3: // lost requests
					f.store.Locked(func() { f.store.LoseCalls = float64(rng.IntN(2)) * 0.5 })
				case 4:
					time.Sleep(time.Duration(rng.IntN(40)) * second)
				case 5:
					time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
				}
			}
			f.store.Locked(func() { f.store.LoseCalls = 0 })
			_, _, _ = r.sub.TryAcquire(1)
			var before int
			if rng.IntN(2) == 0 {
				before = requests(r)
				require.NoError(t, r.sub.Close())
			} else {
				before = requests(r)
				f.policies.Set(policy.Single(policy.Policy{}))
			}
			time.Sleep(second)
			soon := requests(r)
			time.Sleep(10 * time.Minute)
			within(t, "requests within a second", soon-before, 0, 2*limits)
			within(t, "requests after it", requests(r)-soon, 0, 0)
		})
	}
}

// Closing gives back all allocated permits, even those of batches that have not started.
func TestReopening(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: dispatch.Fixed(rate(t, "1/h"))})
		require.NoError(t, err)
		got, hours := 0, 24
		if testing.Short() {
			hours = 4
		}
		for range hours * 4 {
			sub, err := lim.Subscription(topic, "group")
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
			for ctx.Err() == nil {
				if _, err := sub.Acquire(ctx, 1); err == nil {
					got++
				}
			}
			cancel()
			require.NoError(t, sub.Close())
		}
		within(t, "at one an hour", got, hours-1, hours+1)
		require.NoError(t, lim.Close())
	})
}

// A debt outlives Close.
func TestDebtOutlivesTheSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, err := dispatch.Open(t.Context(), dispatch.Config{
			Policies: dispatch.Fixed(policy.Policy{ByteRate: policy.PerSecond(100_000)}),
		})
		require.NoError(t, err)
		start := time.Now()
		for range 5 {
			sub, err := lim.Subscription(topic, "group")
			require.NoError(t, err)
			_, err = sub.AcquireSized(t.Context(), 1_000_000)
			require.NoError(t, err)
			require.NoError(t, sub.Close())
			time.Sleep(100 * time.Millisecond)
		}
		within(t, "five megabytes, of which four are paid", time.Since(start), 39*second, 43*second)
		require.NoError(t, lim.Close())
	})
}

// TestReadAhead: what a subscription's consumers read ahead is the sum of what open handles last
// reported.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(1)})
	var subs []*dispatch.Subscription
	for range 2 {
		sub, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		subs = append(subs, sub)
	}
	ahead := func() int64 { return lim.Stats().Subscriptions[0].ReadAhead }
	assert.Zero(t, ahead())
	subs[0].ReportReadAhead(5)
	subs[1].ReportReadAhead(7)
	subs[0].ReportReadAhead(100)
	assert.Equal(t, int64(107), ahead())
	subs[0].ReportReadAhead(-1)
	assert.Equal(t, int64(7), ahead())
	require.NoError(t, subs[1].Close())
	assert.Zero(t, ahead())
	(*dispatch.Subscription)(nil).ReportReadAhead(5)
	now := time.Now().UnixMilli()
	assert.InDelta(t, now, lim.Stats().Time, 60_000)
}
