package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/policy"
)

// limited runs f with a Limiter in a bubble.
func limited(t *testing.T, p policy.Policy, f func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: dispatch.Fixed(p)})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		f(t, lim, sub)
		require.NoError(t, lim.Close())
		require.NoError(t, lim.Close(), "a second time")
	})
}

func TestNilSubscriptionLimitsNothing(t *testing.T) {
	var sub *dispatch.Subscription
	g, err := sub.Acquire(t.Context(), 1000)
	require.NoError(t, err)
	assert.Equal(t, 1000, g.N())
	g.Done(1000, 1)
	_, _, ok := sub.TryAcquire(1)
	assert.True(t, ok)
	_, err = sub.AcquireSized(t.Context(), 10)
	require.NoError(t, err)
	sub.ReportBacklog(1)
	require.NoError(t, sub.Close())
}

func TestCanceledWaitTakesNothing(t *testing.T) {
	limited(t, perSecond(1), func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		_, err := sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		cause := errors.New("rebalance")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			time.Sleep(400 * time.Millisecond)
			cancel(cause)
		}()
		_, err = sub.Acquire(ctx, 1)
		require.ErrorIs(t, err, cause)
		start := time.Now()
		_, err = sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		assert.Less(t, time.Since(start), 700*time.Millisecond, "the permit of the canceled wait is there")
	})
}

func TestFirstComeFirstServed(t *testing.T) {
	limited(t, perSecond(100), func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				_, err := sub.Acquire(t.Context(), 1)
				assert.NoError(t, err)
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			})
			synctest.Wait()
		}
		wg.Wait()
		assert.IsIncreasing(t, order)
	})
}

func TestDone(t *testing.T) {
	limited(t, perSecond(100), func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		granted := func() int64 {
			l := lim.Stats().Subscriptions[0].Limits[0]
			return l.Granted - l.Returned
		}
		time.Sleep(time.Second)
		g, err := sub.Acquire(t.Context(), 5)
		require.NoError(t, err)
		n := int64(g.N())
		assert.Equal(t, n, granted())
		g.Done(0, 0)
		assert.Equal(t, int64(0), granted(), "what was not used goes back")
		g.Done(0, 0)
		assert.Equal(t, int64(0), granted(), "once only")

		g, err = sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		g.Done(51, 0) // fifty more than granted: a debt of half a second
		start := time.Now()
		_, err = sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		assert.InDelta(t, 0.5, time.Since(start).Seconds(), 0.1)
	})
}

// TestSplitGrant: the parts of a Grant are settled apart, with their exact bytes, and what is left
// goes back. A part is in flight until Done, however few bytes it has.
func TestSplitGrant(t *testing.T) {
	perSecond := func(n int64) policy.Rate { return policy.PerSecond(n) }
	inFlight := new(int64(100))
	for name, p := range map[string]policy.Policy{
		"messages":      {MessageRate: perSecond(10_000)},
		"and in flight": {MessageRate: perSecond(10_000), MaxInFlight: inFlight},
		"bytes":         {ByteRate: perSecond(1_000_000)},
		"all":           {MessageRate: perSecond(10_000), ByteRate: perSecond(1_000_000), MaxInFlight: inFlight},
	} {
		t.Run(name, func(t *testing.T) {
			limited(t, p, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
				acquire := func() (dispatch.SubscriptionStats, dispatch.Grant) {
					before := lim.Stats().Subscriptions[0]
					g, err := sub.Acquire(t.Context(), 10)
					require.NoError(t, err)
					return before, g
				}
				before, g := acquire()
				for g.N() < 4 { // while it learns the size of messages
					g.Done(g.N(), 100*int64(g.N()))
					time.Sleep(5 * time.Millisecond)
					before, g = acquire()
				}
				n := g.N()
				one, two, none := g.Split(1, 0), g.Split(2, 250), g.Split(0, 0)
				assert.Equal(t, []int{1, 2, 0, n - 3}, []int{one.N(), two.N(), none.N(), g.N()})
				g.Done(0, 0)
				one.Done(1, 0)
				two.Done(2, 250)
				none.Done(0, 0)
				used := lim.Stats().Subscriptions[0]
				for i, l := range used.Limits {
					want := int64(3)
					if strings.HasSuffix(l.Key, ":bytes") {
						want = 250
					}
					was := before.Limits[i]
					assert.Equal(t, want, l.Granted-l.Returned+l.Owed-was.Granted+was.Returned-was.Owed, l.Key)
				}
				assert.Zero(t, used.InFlight)
			})
		})
	}
}

func TestTryAcquire(t *testing.T) {
	limited(t, perSecond(10), func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		_, next, ok := sub.TryAcquire(1)
		assert.False(t, ok, "nothing is allocated yet")
		assert.True(t, next.After(time.Now()))
		got := 0
		for start := time.Now(); time.Since(start) < 10*time.Second; {
			if _, next, ok := sub.TryAcquire(1); ok {
				got++
			} else {
				time.Sleep(time.Until(next))
			}
		}
		within(t, "permits of 100", got, 90, 102)
	})
	for _, c := range []struct{ permits, min, max int }{ // a minute
		{600, 14, 29}, // the first attempt is refused: nothing is allocated yet
		{15, 12, 16},
	} {
		p := policy.Policy{MessageRate: policy.Rate{Permits: int64(c.permits), Period: time.Minute}}
		limited(t, p, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
			got := 0
			for range 30 { // a job every two seconds, which is skipped rather than delayed
				ran, err := sub.TryDo(t.Context(), func(context.Context) error { return nil })
				require.NoError(t, err)
				if ran {
					got++
				}
				time.Sleep(2 * time.Second)
			}
			within(t, "runs of 30", got, c.min, c.max)
		})
	}
}

func TestDoAndThrottled(t *testing.T) {
	limited(t, perSecond(10), func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		broken := errors.New("broken")
		require.ErrorIs(t, sub.Do(t.Context(), func(context.Context) error { return broken }), broken)
		double := dispatch.Throttled(sub, func(_ context.Context, n int) (int, error) { return 2 * n, nil })
		start := time.Now()
		for i := range 20 {
			got, err := double(t.Context(), i)
			require.NoError(t, err)
			assert.Equal(t, 2*i, got)
		}
		assert.InDelta(t, 2, time.Since(start).Seconds(), 0.2)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := double(ctx, 1)
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestHandlesShare(t *testing.T) {
	limited(t, perSecond(100), func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		other, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		var wg sync.WaitGroup
		for _, s := range []*dispatch.Subscription{sub, other} {
			wg.Go(func() {
				for range 100 {
					_, err := s.Acquire(t.Context(), 1)
					assert.NoError(t, err)
				}
			})
		}
		start := time.Now()
		wg.Wait()
		assert.InDelta(t, 2, time.Since(start).Seconds(), 0.1)
		assert.Len(t, lim.Stats().Subscriptions, 1)
		require.NoError(t, other.Close())
		_, err = sub.Acquire(t.Context(), 1)
		require.NoError(t, err, "the other handle is still open")
	})
}

func TestClose(t *testing.T) {
	limited(t, perSecond(1), func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		waiting, err := lim.Subscription(topic, "other")
		require.NoError(t, err)
		for _, s := range []*dispatch.Subscription{sub, waiting} {
			for range 3 {
				go func() {
					for {
						if _, err := s.Acquire(t.Context(), 1); err != nil {
							assert.ErrorIs(t, err, dispatch.ErrClosed)
							return
						}
					}
				}()
			}
		}
		time.Sleep(5 * time.Second)
		require.NoError(t, waiting.Close())
		require.NoError(t, waiting.Close())
		synctest.Wait()
		_, err = waiting.Acquire(t.Context(), 1)
		require.ErrorIs(t, err, dispatch.ErrClosed)
		require.NoError(t, lim.Close())
		_, err = sub.Acquire(t.Context(), 1)
		require.ErrorIs(t, err, dispatch.ErrClosed)
		_, err = lim.Subscription(topic, "third")
		require.ErrorIs(t, err, dispatch.ErrClosed)
	})
}

// TestCloseGivesBack: when a replica ends, the others get its permits at once.
func TestCloseGivesBack(t *testing.T) {
	fleets(t, "", perSecond(10), func(t *testing.T, f *fleet) {
		f.join(0, "group").greedy(1)
		time.Sleep(3 * second)
		f.joined[0].leave()
		f.join(1, "group").greedy(1)
		time.Sleep(2 * second)
		within(t, "2 s after the change of hands", f.by(1, 3*second, 5*second), 19, 22)
	})
}

func TestBadNames(t *testing.T) {
	lim, err := dispatch.Open(t.Context(), dispatch.Config{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, lim.Close()) }()
	_, err = lim.Subscription("orders", "")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "topic", "every fault at once")
	assert.Contains(t, err.Error(), "subscription")
}

func TestCaughtUp(t *testing.T) {
	limited(t, perSecond(10), func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		exempt := func() bool { return lim.Stats().Subscriptions[0].Exempt }
		for _, c := range []struct {
			backlog int64
			exempt  bool
		}{
			{-1, false}, {1000, false}, {101, false},
			{100, true}, {150, true}, {200, true}, // caught up until it is over twice the threshold
			{201, false}, {150, false}, {0, true},
		} {
			sub.ReportBacklog(c.backlog)
			assert.Equal(t, c.exempt, exempt(), "backlog %d", c.backlog)
		}
		for range 1000 {
			_, err := sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
		}
		assert.Zero(t, lim.Stats().Subscriptions[0].Limits[0].Granted, "nothing is charged")
		assert.True(t, lim.Stats().Subscriptions[0].Limits[0].Bypassed)

		time.Sleep(4900 * time.Millisecond)
		assert.True(t, exempt())
		time.Sleep(200 * time.Millisecond)
		assert.False(t, exempt(), "a report counts for five seconds")

		sub.ReportBacklog(0)
		other, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		assert.False(t, exempt(), "the new handle's backlog is not known")
		other.ReportBacklog(5)
		assert.True(t, exempt(), "caught up when every handle is")
		other.ReportBacklog(5000)
		assert.False(t, exempt())
		require.NoError(t, other.Close())
		assert.True(t, exempt())
	})
	always := perSecond(10)
	always.CaughtUp.Throttle = new(true)
	limited(t, always, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		sub.ReportBacklog(0)
		s := lim.Stats().Subscriptions[0]
		assert.True(t, s.CaughtUp)
		assert.False(t, s.Exempt)
		assert.False(t, s.Limits[0].Bypassed)
	})
}

func TestWaitersGoWhenCaughtUp(t *testing.T) {
	p := policy.Policy{MessageRate: policy.Rate{Permits: 1, Period: time.Hour}}
	limited(t, p, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		_, err := sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			_, err := sub.Acquire(t.Context(), 1)
			assert.NoError(t, err)
			close(done)
		}()
		time.Sleep(time.Second)
		sub.ReportBacklog(0)
		<-done
	})
}

func TestShadow(t *testing.T) {
	p := perSecond(10)
	p.Mode = policy.Shadow
	limited(t, p, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		for range 1000 {
			_, err := sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
			time.Sleep(10 * time.Millisecond) // 100 a second
		}
		shadowed := int(lim.Stats().Subscriptions[0].Shadowed[dispatch.ReasonMessages])
		within(t, "would have waited of 1000", shadowed, 850, 950)
	})
}

func TestPause(t *testing.T) {
	fleets(t, "", perSecond(1000), func(t *testing.T, f *fleet) {
		f.join(0, "group").greedy(1)
		time.Sleep(second)
		paused := perSecond(1000)
		paused.Paused = new(true)
		f.policies.Set(policy.Single(paused))
		time.Sleep(5 * second)
		within(t, "while paused", f.between(1100*time.Millisecond, 6*second), 0, 0)
		stats := f.joined[0].lim.Stats().Subscriptions[0]
		assert.Equal(t, dispatch.ReasonPaused, stats.Reason)
		f.joined[0].sub.ReportBacklog(0)
		time.Sleep(100 * time.Millisecond)
		within(t, "caught up and paused", f.between(6*second, 6100*time.Millisecond), 0, 0)
		f.joined[0].sub.ReportBacklog(-1)
		f.policies.Set(policy.Single(perSecond(1000)))
		time.Sleep(second)
		within(t, "the second after", f.between(6100*time.Millisecond, 7100*time.Millisecond), 900, 1050)
	})
}

// TestLimitAppearsAndGoes: a limit is set and removed while callers wait.
func TestLimitAppearsAndGoes(t *testing.T) {
	fleets(t, "", policy.Policy{}, func(t *testing.T, f *fleet) {
		f.join(0, "group").poisson(2000, 1)
		time.Sleep(second)
		f.policies.Set(policy.Single(perSecond(100)))
		time.Sleep(2 * second)
		within(t, "a second of the limit", f.between(1500*time.Millisecond, 2500*time.Millisecond), 95, 105)
		f.policies.Set(policy.Single(policy.Policy{}))
		time.Sleep(10 * time.Second)
		assert.True(t, f.joined[0].lim.Stats().Subscriptions[0].Exempt)
		within(t, "when all is let go", f.between(12*second, 13*second), 1900, 2100)
	})
}

func TestReasonsAndWaits(t *testing.T) {
	p := perSecond(5)
	p.ByteRate = policy.PerSecond(1_000_000)
	limited(t, p, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		for range 11 {
			_, err := sub.AcquireSized(t.Context(), 10)
			require.NoError(t, err)
		}
		s := lim.Stats().Subscriptions[0]
		assert.GreaterOrEqual(t, s.Waits[dispatch.ReasonMessages], int64(9))
		assert.InDelta(t, 2, s.WaitTimes.Sum.Seconds(), 0.4)
		assert.Equal(t, int64(11), s.Limits[0].Granted)
		assert.Equal(t, int64(110), s.Limits[1].Granted)
	})
}

// TestTieIsLoggedOnce: of patterns that tie, the first in order wins. The tie is logged once, when
// a topic matches both.
func TestTieIsLoggedOnce(t *testing.T) {
	set, err := policy.NewSet([]policy.Entry{
		{Scope: policy.PatternScope("orders"), Settings: perSecond(7)},
		{Scope: policy.PatternScope("public"), Settings: perSecond(8)},
	})
	require.NoError(t, err)
	var log strings.Builder
	source := new(permitstest.Policies)
	source.Set(set)
	lim, err := dispatch.Open(t.Context(), dispatch.Config{
		Policies: source, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	require.NoError(t, err)
	_, err = lim.Subscription("kafka://public/default/audits", "group")
	require.NoError(t, err)
	assert.Empty(t, log.String())
	for _, name := range []string{"group", "other"} {
		_, err = lim.Subscription("kafka://public/default/orders", name)
		require.NoError(t, err)
	}
	rates := map[string]float64{"kafka://public/default/audits": 8, "kafka://public/default/orders": 7}
	for _, s := range lim.Stats().Subscriptions {
		assert.InDelta(t, rates[s.Topic], s.Limits[0].Rate, 0)
	}
	require.NoError(t, lim.Close())
	assert.Equal(t, 1, strings.Count(log.String(), "two patterns tie"), log.String())
	assert.Contains(t, log.String(), "wins=pattern:orders loses=pattern:public topic=kafka://public/default/orders")
}

type iterSource func(context.Context) iter.Seq2[policy.Snapshot, error]

func (s iterSource) Snapshots(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
	return s(ctx)
}

func ExampleSubscription_Do() {
	ctx := context.Background()
	lim, err := dispatch.Open(ctx, dispatch.Config{
		Policies: dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(100)}),
		Permits:  memory.New(),
	})
	if err != nil {
		panic(err)
	}
	sub, err := lim.Subscription("kafka://public/default/orders", "billing")
	if err != nil {
		panic(err)
	}
	err = sub.Do(ctx, func(context.Context) error {
		fmt.Println("called when its permit is there")
		return nil
	})
	fmt.Println(err, lim.Close())
	// Output:
	// called when its permit is there
	// <nil> <nil>
}

// TestMessageRate: the lowest limit counts, byte limits by the size of a message. Limits in shadow
// mode and missing ones do not count.
func TestMessageRate(t *testing.T) {
	p := perSecond(500)
	limited(t, p, func(t *testing.T, _ *dispatch.Limiter, sub *dispatch.Subscription) {
		assert.InDelta(t, 500, sub.Stats().MessageRate(1024), 0)
	})
	p.ByteRate = policy.PerSecond(102_400)
	limited(t, p, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		assert.InDelta(t, 100, sub.Stats().MessageRate(1024), 0)
		assert.InDelta(t, 500, sub.Stats().MessageRate(100), 0)
		assert.Equal(t, lim.Stats().Subscriptions[0], sub.Stats())
	})
	p.Mode = policy.Shadow
	limited(t, p, func(t *testing.T, _ *dispatch.Limiter, sub *dispatch.Subscription) {
		assert.True(t, math.IsInf(sub.Stats().MessageRate(1024), 1))
	})
	var none *dispatch.Subscription
	assert.True(t, math.IsInf(none.Stats().MessageRate(1024), 1))
	aggregate := dispatch.SubscriptionStats{
		Limits: []dispatch.LimitStats{{Reason: dispatch.ReasonNamespaceBytes, Rate: 2048}},
	}
	assert.InDelta(t, 2, aggregate.MessageRate(1024), 0)
}
