package dispatch_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestGivesBackAfterManyBatches: unused permits go back also after the first batches.
func TestGivesBackAfterManyBatches(t *testing.T) {
	limited(t, perSecond(1000), func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		for range 1000 {
			_, err := sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
		}
		for range 300 {
			g, err := sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
			g.Done(0, 0)
		}
		assert.Equal(t, int64(300), lim.Stats().Subscriptions[0].Limits[0].Returned)
		g, err := sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		time.Sleep(time.Second)
		g.Done(0, 0)
		assert.Equal(t, int64(300), lim.Stats().Subscriptions[0].Limits[0].Returned, "its slot is long over")
	})
}

func TestClosedStaysClosed(t *testing.T) {
	limited(t, perSecond(10), func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		other, err := lim.Subscription(topic, "other")
		require.NoError(t, err)
		other.ReportBacklog(0)
		require.NoError(t, other.Close())
		time.Sleep(6 * time.Second) // its report is stale by now
		_, err = other.Acquire(t.Context(), 1)
		require.ErrorIs(t, err, dispatch.ErrClosed)
		sub.ReportBacklog(0)
		require.NoError(t, lim.Close())
		for _, backlog := range []int64{100_000, 0} {
			sub.ReportBacklog(backlog)
			_, err = sub.Acquire(t.Context(), 1)
			require.ErrorIs(t, err, dispatch.ErrClosed)
		}
	})
}

// TestExemptionEnds: it ends also if the limit was set after the report.
func TestExemptionEnds(t *testing.T) {
	fleets(t, "", policy.Policy{}, func(t *testing.T, f *fleet) {
		r := f.join(0, "group")
		r.sub.ReportBacklog(0)
		f.policies.Set(policy.Single(perSecond(10)))
		synctest.Wait()
		assert.True(t, r.lim.Stats().Subscriptions[0].Exempt)
		time.Sleep(6 * second)
		assert.False(t, r.lim.Stats().Subscriptions[0].Exempt)
	})
}

func TestLateBytesDoNotComeBack(t *testing.T) {
	p := policy.Policy{ByteRate: policy.PerSecond(100_000)}
	limited(t, p, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		g, err := sub.AcquireSized(t.Context(), 300_000)
		require.NoError(t, err)
		_, err = sub.AcquireSized(t.Context(), 1) // the debt is paid
		require.NoError(t, err)
		time.Sleep(time.Second)
		g.Done(0, 0)
		sent, start := 0, time.Now()
		for time.Since(start) < 200*time.Millisecond {
			_, err := sub.AcquireSized(t.Context(), 1000)
			require.NoError(t, err)
			sent += 1000
		}
		within(t, "bytes in 200 ms", sent, 10_000, 45_000)
	})
}

func TestHugeRequests(t *testing.T) {
	limited(t, perSecond(10), func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		g, err := sub.Acquire(t.Context(), math.MaxInt)
		require.NoError(t, err)
		g.Done(g.N()+5, math.MaxInt64)
		g, err = sub.Acquire(t.Context(), math.MaxInt)
		require.NoError(t, err)
		within(t, "permits", g.N(), 1, 10)
		for _, n := range []int{0, -1, math.MinInt} {
			g, err := sub.Acquire(t.Context(), n)
			require.NoError(t, err)
			assert.Zero(t, g.N())
			g, _, ok := sub.TryAcquire(n)
			assert.True(t, ok)
			assert.Zero(t, g.N())
		}
	})
	limited(t, policy.Policy{}, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		g, err := sub.Acquire(t.Context(), -3)
		require.NoError(t, err)
		assert.Zero(t, g.N())
	})
}

// TestBytesOfUnknownSize: a caller that gives no sizes gets as many messages as the byte limit
// allows.
func TestBytesOfUnknownSize(t *testing.T) {
	p := policy.Policy{ByteRate: policy.PerSecond(100_000)}
	limited(t, p, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		got, start := 0, time.Now()
		for time.Since(start) < 10*time.Second {
			g, err := sub.Acquire(t.Context(), 100_000)
			require.NoError(t, err)
			got += g.N()
			g.Done(g.N(), int64(g.N())*1000)
		}
		within(t, "messages of 1000 bytes in 10 s", got, 950, 1060)
	})
}

func TestLossBySubscription(t *testing.T) {
	fleets(t, "", perSecond(1000), func(t *testing.T, f *fleet) {
		tp, err := policy.ParseTopic(topic)
		require.NoError(t, err)
		set, err := policy.NewSet([]policy.Entry{
			{Scope: policy.ClusterScope(), Settings: perSecond(1000)},
			{Scope: policy.SubscriptionScope(tp, "careful"), Settings: policy.Policy{OnOutage: policy.OutageStop}},
		})
		require.NoError(t, err)
		f.policies.Set(set)
		f.join(0, "careful").greedy(1)
		f.join(1, "usual").greedy(1)
		time.Sleep(2 * second)
		f.store.Locked(func() { f.joined[0].link.Cut, f.joined[1].link.Cut = true, true })
		time.Sleep(3 * second)
		within(t, "stop", f.by(0, 3*second, 5*second), 0, 0)
		within(t, "share", f.by(1, 3*second, 5*second), 900, 1100)
	})
}

func TestPauseWinsOverShadow(t *testing.T) {
	p := perSecond(10)
	p.Mode, p.Paused = policy.Shadow, new(true)
	limited(t, p, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := sub.Acquire(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// TestDebtOutlivesItsLimit: removing a limit and setting it again does not cancel a debt.
func TestDebtOutlivesItsLimit(t *testing.T) {
	fleets(t, "", perSecond(1000), func(t *testing.T, f *fleet) {
		r := f.join(0, "group")
		g, err := r.sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		g.Done(1001, 0)
		f.policies.Set(policy.Single(policy.Policy{}))
		time.Sleep(20 * time.Millisecond)
		f.policies.Set(policy.Single(perSecond(1000)))
		synctest.Wait()
		start := time.Now()
		_, err = r.sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		within(t, "wait", time.Since(start), 800*time.Millisecond, 1200*time.Millisecond)
	})
}

func TestBadCluster(t *testing.T) {
	_, err := dispatch.Open(t.Context(), dispatch.Config{Cluster: "a b"})
	require.ErrorContains(t, err, "cluster")
}
