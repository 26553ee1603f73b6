package dispatch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/policy"
)

func rate(t testing.TB, text string) policy.Policy {
	t.Helper()
	r, err := policy.ParseRate(text)
	require.NoError(t, err)
	return policy.Policy{MessageRate: r}
}

// A raised limit is in force at once, even if the next slot of the low limit was far away.
func TestRaiseOfALowRate(t *testing.T) {
	for _, low := range []string{"1/h", "1/6s", "10/s"} {
		fleets(t, low, rate(t, low), func(t *testing.T, f *fleet) {
			f.join(0, "group").greedy(1)
			time.Sleep(10*second + 50*time.Millisecond)
			f.policies.Set(policy.Single(perSecond(1000)))
			changed := time.Since(f.start)
			time.Sleep(second)
			within(t, "the first 100 ms", f.between(changed, changed+100*time.Millisecond), 80, 110)
			within(t, "the first second", f.between(changed, changed+second), 970, 1010)
		})
	}
}

// After a deep cut, no permits of the old line are dispatched in addition to the new one.
func TestDeepCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to string
		minutes  int // of messages, in ten
	}{{"10000", "10", 6000}, {"1000000", "10", 6000}, {"1000", "1/6s", 100}} {
		for _, replicas := range []int{1, 8} {
			name := fmt.Sprintf("%s to %s, %d replicas", c.from, c.to, replicas)
			fleets(t, name, rate(t, c.from), func(t *testing.T, f *fleet) {
				for i := range replicas {
					f.join(i, "group").greedy(1000)
				}
				time.Sleep(2 * second)
				f.policies.Set(policy.Single(rate(t, c.to)))
				changed := time.Since(f.start)
				time.Sleep(600 * second)
				within(t, "ten minutes", f.between(changed+second/10, changed+600*second),
					c.minutes*98/100, c.minutes*101/100+replicas)
			})
		}
	}
}

// After a deep cut, nobody waits for the slots of a crashed replica; nor if the state is lost.
func TestLostAfterADeepCut(t *testing.T) {
	fleets(t, "", perSecond(1000), func(t *testing.T, f *fleet) {
		f.join(0, "group").greedy(1)
		crashed := f.join(1, "group")
		crashed.greedy(1)
		time.Sleep(2 * second)
		crashed.crash()
		f.policies.Set(policy.Single(perSecond(10)))
		time.Sleep(100 * time.Millisecond)
		f.store.Locked(func() { clear(f.store.Limits) })
		lost := time.Since(f.start)
		time.Sleep(4 * second)
		within(t, "the first second", f.between(lost, lost+second), 8, 11)
		within(t, "two seconds, a little later", f.between(lost+3*second/2, lost+7*second/2), 18, 22)
	})
}

// While the permit store is unavailable, a share follows the limit.
func TestCutWhileThePermitStoreIsAway(t *testing.T) {
	fleets(t, "", perSecond(1000), func(t *testing.T, f *fleet) {
		for i := range 8 {
			f.join(i, "group").greedy(1)
		}
		time.Sleep(3 * second)
		f.store.Locked(func() {
			for _, r := range f.joined {
				r.link.Cut = true
			}
		})
		time.Sleep(3 * second)
		f.policies.Set(policy.Single(perSecond(100)))
		changed := time.Since(f.start)
		time.Sleep(5 * second)
		for range 4 {
			changed += second
			within(t, "a second", f.between(changed, changed+second), 90, 110)
		}
	})
}

// When a permit store is available again, a hundred replicas do not send requests all at once.
func TestManyReturn(t *testing.T) {
	t.Parallel()
	for _, down := range []bool{false, true} {
		fleets(t, fmt.Sprintf("refuses %v", down), perSecond(10_000), func(t *testing.T, f *fleet) {
			for i := range 100 {
				f.join(i, "group").greedy(1 << 20)
			}
			time.Sleep(2 * second)
			away := func(yes bool) {
				f.store.Locked(func() {
					f.store.Down = yes && down
					for _, r := range f.joined {
						r.link.Cut = yes && !down
					}
				})
			}
			away(true)
			time.Sleep(5 * second)
			away(false)
			back := time.Since(f.start)
			f.store.Locked(func() { f.store.Calls = nil })
			time.Sleep(2 * second)
			var calls []time.Time
			f.store.Locked(func() { calls = slices.Clone(f.store.Calls[:100]) })
			highest := 0
			for i, at := range calls {
				n := 0
				for _, other := range calls[i:] {
					if other.Sub(at) <= 50*time.Millisecond {
						n++
					}
				}
				highest = max(highest, n)
			}
			within(t, "calls in the same 50 ms", highest, 5, 60)
			within(t, "dispatched in the second of the return", f.between(back, back+second), 7500, 12_500)
			within(t, "dispatched in the next", f.between(back+second, back+2*second), 9500, 10500)
		})
	}
}

// Partial partitions: replicas that are cut off continue at their share, and the others share the
// whole limit. Together they never dispatch more than twice the limit, and the excess is paid back,
// up to two seconds of it. With `stop` they never exceed the limit.
func TestPartialPartition(t *testing.T) {
	t.Parallel()
	for _, loss := range []policy.OnOutage{policy.OutageShare, policy.OutageStop} {
		for _, cut := range []int{1, 4, 7, 8} {
			p := perSecond(1000)
			p.OnOutage = loss
			fleets(t, fmt.Sprintf("%s, %d of 8 cut off", loss, cut), p, func(t *testing.T, f *fleet) {
				for i := range 8 {
					f.join(i, "group").greedy(1)
				}
				time.Sleep(2 * second)
				f.store.Locked(func() {
					for _, r := range f.joined[:cut] {
						r.link.Cut = true
					}
				})
				from := time.Since(f.start) + second
				time.Sleep(11 * second)
				all := f.between(from, from+10*second) / 10
				highest, lowest := 1010+125*cut, 980
				if loss == policy.OutageStop {
					highest = 1010
				}
				if cut == 8 {
					highest, lowest = 1010, 0
				}
				within(t, "a second, without the permit store for some", all, lowest, min(highest, 2000))
				within(t, "any second", f.window(second, 0), 0, min(highest*11/10, 2000))
				f.store.Locked(func() {
					for _, r := range f.joined[:cut] {
						r.link.Cut = false
					}
				})
				back := time.Since(f.start)
				time.Sleep(6 * second)
				lowest = 970
				if loss == policy.OutageShare && cut < 8 { // replicas that were cut off pay back
					lowest = 1000 - 125*cut
				}
				within(t, "a second, while the excess is paid back", f.between(back+second, back+3*second)/2,
					lowest, 1010)
				within(t, "a second, with it again", f.between(back+3*second, back+6*second)/3, 970, 1010)
			})
		}
	}
}

// Demand that rises in an outage: a replica's last share is what the others left of the limit when
// their demand was light. All replicas together still dispatch at most twice the limit.
func TestDemandRisesInAnOutage(t *testing.T) {
	fleets(t, "", perSecond(1000), func(t *testing.T, f *fleet) {
		for i := range 8 {
			f.join(i, "group").poisson(20, 1)
		}
		time.Sleep(4 * second)
		f.store.Locked(func() {
			for _, r := range f.joined {
				r.link.Cut = true
			}
		})
		time.Sleep(second)
		for _, r := range f.joined {
			r.greedy(1)
		}
		time.Sleep(10 * second)
		within(t, "any second", f.window(second, 4*second), 0, 2000)
	})
}

// A replica does not use an old share when the permit store becomes unavailable: other replicas
// have got it since.
func TestAnOldShareIsForgotten(t *testing.T) {
	fleets(t, "", perSecond(1000), func(t *testing.T, f *fleet) {
		for i := range 8 { // one after the other has the whole limit
			r := f.join(i, "group")
			ctx, cancel := context.WithTimeout(f.ctx, 2*second)
			for ctx.Err() == nil {
				_, _ = r.sub.Acquire(ctx, 1) // ends with ctx
			}
			cancel()
			time.Sleep(2 * second)
		}
		f.store.Locked(func() {
			for _, r := range f.joined {
				r.link.Cut = true
			}
		})
		for _, r := range f.joined {
			r.greedy(1)
		}
		time.Sleep(5 * second)
		within(t, "in five seconds", f.window(5*second, 30*second), 8*40, 5*1000)
	})
}

// A schedule with slots far ahead is kept while it is in use.
func TestLowRatesOutliveTheKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate     string
		replicas int
		period   time.Duration
	}{{"1/h", 4, time.Hour}, {"1/1m", 50, time.Minute}} {
		t.Run(c.rate, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				permits := memory.New()
				ctx, cancel := context.WithCancel(t.Context())
				f := newFleet(t, 1, policy.Policy{})
				var lims []*dispatch.Limiter
				for i := range c.replicas {
					lim, err := dispatch.Open(ctx, dispatch.Config{
						Policies: dispatch.Fixed(rate(t, c.rate)), Permits: permits,
						Rand: rand.New(rand.NewPCG(uint64(i), 7)),
					})
					require.NoError(t, err)
					lims = append(lims, lim)
					sub, err := lim.Subscription(topic, "group")
					require.NoError(t, err)
					f.wg.Go(func() {
						for {
							if _, err := sub.Acquire(ctx, 1); err != nil {
								return
							}
							f.record(i, 1)
						}
					})
				}
				time.Sleep(10 * c.period)
				within(t, "10 periods", f.between(0, 10*c.period), 9, 11)
				within(t, "any 5 periods", f.window(5*c.period, 0), 4, 6)
				cancel()
				for _, lim := range lims {
					require.NoError(t, lim.Close())
				}
				f.end()
			})
		})
	}
}

// A limit that delays a message does not waste the permits of its other limits.
func TestTwoLimitsWasteNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		topic, sub string
		replicas   int
		all        int // in 100 s
	}{{"10", "1/6s", 1, 1000}, {"10", "1/6s", 4, 1000}, {"100", "1", 1, 10_000}, {"1000", "10", 4, 100_000}} {
		name := fmt.Sprintf("%s, %s, %d replicas", c.topic, c.sub, c.replicas)
		fleets(t, name, policy.Policy{}, func(t *testing.T, f *fleet) {
			scope, err := policy.ParseScope(topic + "?subscription=slow")
			require.NoError(t, err)
			set, err := policy.NewSet([]policy.Entry{
				{Settings: rate(t, c.topic)},
				{Scope: scope, Settings: rate(t, c.sub)},
			})
			require.NoError(t, err)
			f.policies.Set(set)
			for i := range c.replicas {
				f.join(i, "slow").greedy(1)
			}
			f.join(100, "greedy").greedy(1)
			time.Sleep(120 * second)
			within(t, "100 s", f.between(20*second, 120*second), c.all*99/100, c.all*101/100)
		})
	}
	fleets(t, "two low ones", policy.Policy{}, func(t *testing.T, f *fleet) {
		scope, err := policy.ParseScope(topic + "?subscription=slow")
		require.NoError(t, err)
		set, err := policy.NewSet([]policy.Entry{
			{Settings: rate(t, "1/1m")},
			{Scope: scope, Settings: rate(t, "1/7s")},
		})
		require.NoError(t, err)
		f.policies.Set(set)
		f.join(0, "slow").greedy(1)
		time.Sleep(time.Hour)
		within(t, "an hour", f.between(0, time.Hour), 59, 61)
	})
}

// Each waiting caller is served in turn, whatever callers came before it.
func TestTheSecondInLine(t *testing.T) {
	for _, r := range []int64{10, 100, 1000} {
		synctest.Test(t, func(t *testing.T) {
			lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: dispatch.Fixed(perSecond(r))})
			require.NoError(t, err)
			sub, err := lim.Subscription(topic, "group")
			require.NoError(t, err)
			worst := time.Duration(0)
			for i := range 200 {
				for ok := true; ok; {
					_, _, ok = sub.TryAcquire(1)
				}
				done := make(chan time.Duration, 2)
				for range 2 {
					go func() {
						began := time.Now()
						_, err := sub.Acquire(t.Context(), 1)
						assert.NoError(t, err)
						done <- time.Since(began)
					}()
				}
				for range 2 {
					worst = max(worst, <-done)
				}
				time.Sleep(time.Duration(i*3) * time.Millisecond)
			}
			within(t, "the longest wait", worst, 0, 3*time.Second/time.Duration(r)+4*time.Millisecond)
			require.NoError(t, lim.Close())
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

// A caller that polls with a timeout gets what a bucket with one token would give it: its slot goes
// back when it gives up.
func TestPollingWithATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: dispatch.Fixed(rate(t, "1/6s"))})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		got := 0
		for range 120 {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if _, err := sub.Acquire(ctx, 1); err == nil {
				got++
			}
			cancel()
			time.Sleep(5*second - time.Since(began))
		}
		within(t, "ten minutes", got, 60, 101)
		require.NoError(t, lim.Close())
	})
}

// The first refusals also have the time of the next permit.
func TestARefusalTellsWhenToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: dispatch.Fixed(perSecond(1000))})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		refused := 0
		for range 3 {
			_, next, ok := sub.TryAcquire(1)
			if ok { // the permit that the first call requested has been allocated meanwhile
				break
			}
			refused++
			round := 100*time.Millisecond + time.Microsecond // just after the loop's step of then
			within(t, "from now", time.Until(next), time.Millisecond, round)
		}
		assert.NotZero(t, refused, "the first comes before anything is allocated")
		require.NoError(t, lim.Close())
	})
}

// A store that is frozen when the process starts does not run many old requests afterwards.
func TestFrozenAtTheStart(t *testing.T) {
	fleets(t, "", perSecond(1000), func(t *testing.T, f *fleet) {
		f.store.Locked(func() { f.store.Frozen = time.Now().Add(120 * second) })
		for i := range 8 {
			f.join(i, "group").greedy(1)
		}
		time.Sleep(130 * second)
		within(t, "the first second", f.between(120*second, 121*second), 300, 1100)
		within(t, "the next nine", f.between(121*second, 130*second), 8700, 9200)
	})
}

// refusing is a permit store that fails the requests of one limit.
type refusing struct {
	*memory.Store
	limit string
}

func (l refusing) Do(ctx context.Context, requests []*permits.Request) {
	l.Store.Do(ctx, requests)
	for _, r := range requests {
		if strings.Contains(r.Key, l.limit) {
			r.Err = errors.New("state of version 2")
		}
	}
}

// TestOneFaultyLimit: failed requests of a single limit are not an outage of the permit store, and
// are logged once.
func TestOneFaultyLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		lim, err := dispatch.Open(t.Context(), dispatch.Config{
			Policies: dispatch.Fixed(perSecond(1000)), Permits: refusing{memory.New(), "orders-2"},
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*second)
		defer cancel()
		for _, name := range []string{topic, topic + "-2"} {
			sub, err := lim.Subscription(name, "group")
			require.NoError(t, err)
			go func() {
				for ctx.Err() == nil {
					_, _ = sub.Acquire(ctx, 1) // ends with ctx
				}
			}()
			time.Sleep(second / 10) // the other limit answers first
		}
		time.Sleep(10 * second)
		synctest.Wait()
		assert.False(t, lim.Stats().Permits.Unavailable)
		require.NoError(t, lim.Close())
		assert.Equal(t, 1, strings.Count(log.String(), "requests for a limit fail"), log.String())
		assert.Zero(t, strings.Count(log.String(), "is unavailable"), log.String())
	})
}
