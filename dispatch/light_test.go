package dispatch_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/policy"
)

// attacked runs a scenario in virtual time, once for each seed: one, or with THROTTLE_LONG four
// others.
func attacked(t *testing.T, name string, p policy.Policy, run func(t *testing.T, f *fleet, rng *rand.Rand)) {
	t.Run(name, func(t *testing.T) {
		for _, seed := range permitstest.Seeds(t, 1, 5) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, seed+1, p)
				run(t, f, rand.New(rand.NewPCG(seed, 11)))
				f.end()
			})
		}
	})
}

// excess returns the most permits dispatched above rate x d in any interval d from a time on, as
// time at that rate.
func (f *fleet) excess(rate float64, from time.Duration) time.Duration {
	ahead, lowest, worst, started := 0.0, 0.0, 0.0, false
	var last time.Duration
	for _, e := range f.dispatched.Events() {
		if e.At < from {
			continue
		}
		if started {
			ahead -= rate * (e.At - last).Seconds()
		}
		started, last = true, e.At
		lowest = min(lowest, ahead)
		ahead += float64(e.N)
		worst = max(worst, ahead-lowest)
	}
	return time.Duration(worst / rate * float64(time.Second))
}

// bounded checks the guarantees of a limit of 1000/s from a time on: no second above perSecond, no
// interval more than 250 ms ahead, and in total at most 100.5 % and the permits of one round trip.
func (f *fleet) bounded(t *testing.T, what string, from, to time.Duration, perSecond int, excess time.Duration) {
	t.Helper()
	within(t, what+": any second", f.window(second, from), 0, perSecond)
	within(t, what+": excess", f.excess(1000, from), 0, excess)
	t.Logf("%s: total %.2f %%", what, float64(f.between(from, to))/10/(to-from).Seconds())
}

// weighed puts subscriptions' weights and minimums in force.
func weighed(t testing.TB, policies map[string]policy.Policy) *policy.Set {
	t.Helper()
	entries := []policy.Entry{{Scope: policy.ClusterScope(), Settings: perSecond(1000)}}
	tp, err := policy.ParseTopic(topic)
	require.NoError(t, err)
	for name, p := range policies {
		entries = append(entries, policy.Entry{Scope: policy.SubscriptionScope(tp, name), Settings: p})
	}
	set, err := policy.NewSet(entries)
	require.NoError(t, err)
	return set
}

// TestLightShares: a light share gets neither less nor more than its part, beside one heavy
// subscription and beside ten, down to a permit in two seconds.
func TestLightShares(t *testing.T) {
	t.Parallel()
	for how, max := range appetites {
		for _, rate := range []int64{10, 100, 1000, 10_000} {
			for _, heavy := range []int{1, 2, 10} {
				for _, part := range []float64{2, 10, 30, 100, 300, 1000} {
					share := float64(rate) / part
					weight := math.Max(0.1, 0.1*float64(heavy)/(part-1)) // 0.1 is the least
					each := weight * (part - 1) / float64(heavy)
					slow := rate > 1000 && max == 1 && heavy > 1 // 150,000 calls for each seed
					if share < 0.5 || each > 10 || slow {
						continue
					}
					name := fmt.Sprintf("1/%v of %d/s beside %d, %s", part, rate, heavy, how)
					attacked(t, name, policy.Policy{}, func(t *testing.T, f *fleet, _ *rand.Rand) {
						policies := map[string]policy.Policy{topic: perSecond(rate)}
						policies[topic+"?subscription=light"] = policy.Policy{Weight: &weight}
						for i := range heavy {
							policies[fmt.Sprint(topic, "?subscription=heavy-", i)] = policy.Policy{Weight: &each}
						}
						f.policies.Set(set(t, policies))
						for i := range heavy {
							f.join(i, fmt.Sprint("heavy-", i)).greedy(max)
						}
						f.join(100, "light").greedy(max)
						from, seconds := 5*second, math.Max(10, 60/share)
						end := from + time.Duration(seconds*float64(second))
						time.Sleep(end)
						within(t, "of the share", float64(f.by(100, from, end))/seconds/share, 0.9, 1.1)
						all := float64(rate) * seconds
						within(t, "all", f.between(from, end), int(0.98*all), int(1.01*all)+1)
					})
				}
			}
		}
	}
}

func reserves(n int64) policy.Policy { return policy.Policy{Reserved: policy.PerSecond(n)} }

// comeAndGo has ten replicas join one after the other, each for a while. They end by a clean stop,
// by a crash, or as a consumer without messages.
func (f *fleet) comeAndGo(rng *rand.Rand, max int, subscriptions ...string) {
	for i := range 10 {
		time.Sleep(time.Duration(100+rng.IntN(1500)) * time.Millisecond)
		r := f.join(100+i, subscriptions[rng.IntN(len(subscriptions))])
		r.greedy(max)
		time.Sleep(time.Duration(100+rng.IntN(1900)) * time.Millisecond)
		switch rng.IntN(3) {
		case 0:
			r.leave()
		case 1:
			r.crash()
		case 2:
			r.stop()
			time.Sleep(time.Duration(100+rng.IntN(900)) * time.Millisecond)
			again := *r // the callers that end still read r's
			again.ctx, again.stop = context.WithCancel(f.ctx)
			again.greedy(max)
			time.Sleep(time.Duration(100+rng.IntN(900)) * time.Millisecond)
			again.stop()
		}
	}
}

// Minimums that add up to the limit or more do not change the round, nor the bounds.
func TestMinimumsThatTakeAll(t *testing.T) {
	t.Parallel()
	for how, max := range appetites {
		name := "600 and 400 beside one that comes and goes, " + how
		attacked(t, name, perSecond(1000), func(t *testing.T, f *fleet, rng *rand.Rand) {
			f.policies.Set(weighed(t, map[string]policy.Policy{"a": reserves(600), "b": reserves(400)}))
			for i := range 4 {
				f.join(i, "a").greedy(max)
				f.join(4+i, "b").greedy(max)
			}
			f.comeAndGo(rng, max, "c")
			end := time.Since(f.start)
			f.bounded(t, "from 1 s on", second, end, 1050, 250*time.Millisecond)
			a, b, c := 0, 0, 0
			for i := range 4 {
				a += f.by(i, 2*second, end)
				b += f.by(4+i, 2*second, end)
			}
			for i := range 10 {
				c += f.by(100+i, 2*second, end)
			}
			secs := (end - 2*second).Seconds()
			within(t, "a's share of 600", float64(a)/secs, 582, 618)
			within(t, "b's share of 400", float64(b)/secs, 388, 412)
			within(t, "c's, which has no minimum", float64(c)/secs, 0.1, 10)
		})
		attacked(t, "800, 400 and 400, "+how, perSecond(1000), func(t *testing.T, f *fleet, rng *rand.Rand) {
			f.policies.Set(weighed(t, map[string]policy.Policy{
				"a": reserves(800),
				"b": reserves(400),
				"c": reserves(400),
			}))
			for i := range 2 {
				f.join(i, "a").greedy(max)
				f.join(2+i, "b").greedy(max)
				f.join(4+i, "c").greedy(max)
			}
			time.Sleep(10 * second)
			share := func(i int) float64 {
				return float64(f.by(i, 2*second, 10*second)+f.by(i+1, 2*second, 10*second)) / 8
			}
			within(t, "a's share of 500", share(0), 485, 515)
			within(t, "b's share of 250", share(2), 242, 258)
			within(t, "c's share of 250", share(4), 242, 258)
			f.comeAndGo(rng, max, "a", "b", "c", "d")
			f.bounded(t, "from 1 s on", second, time.Since(f.start), 1050, 250*time.Millisecond)
		})
	}
}

// A light consumer that comes and goes does not change the pace of the heavy ones.
func TestALightOneComesAndGoes(t *testing.T) {
	t.Parallel()
	light, heavy := 0.1, 10.0
	for how, max := range appetites {
		attacked(t, how, perSecond(1000), func(t *testing.T, f *fleet, rng *rand.Rand) {
			policies := map[string]policy.Policy{"light": {Weight: new(light)}}
			for i := range 8 {
				policies[fmt.Sprint("heavy ", i)] = policy.Policy{Weight: new(heavy)}
			}
			f.policies.Set(weighed(t, policies))
			for i := range 8 {
				f.join(i, fmt.Sprint("heavy ", i)).greedy(max)
			}
			f.comeAndGo(rng, max, "light")
			end := time.Since(f.start)
			f.bounded(t, "from 1 s on", second, end, 1050, 250*time.Millisecond)
			within(t, "rate", float64(f.between(second, end))/(end-second).Seconds(), 985, 1006)
		})
	}
}

// In an outage with minimums that take the whole limit, a subscription without a minimum gets next
// to nothing, not a part of the limit.
func TestMinimumsInAnOutage(t *testing.T) {
	fleets(t, "", perSecond(1000), func(t *testing.T, f *fleet) {
		f.policies.Set(weighed(t, map[string]policy.Policy{"a": reserves(600), "b": reserves(400)}))
		for i := range 2 {
			f.join(i, "a").greedy(1)
			f.join(2+i, "b").greedy(1)
			f.join(4+i, "c").greedy(1)
		}
		time.Sleep(15 * second)
		f.store.Locked(func() { f.store.Down = true })
		time.Sleep(10 * second)
		within(t, "a second of the outage", float64(f.between(17*second, 25*second))/8, 900, 1010)
		f.store.Locked(func() { f.store.Down = false })
		back := time.Since(f.start)
		time.Sleep(5 * second)
		within(t, "a second after it", float64(f.between(back+second, back+5*second))/4, 950, 1010)
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
