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

// Lost requests and replies are not an outage.
func TestLostRequestsAreNoOutage(t *testing.T) {
	t.Parallel()
	for how, max := range appetites {
		for _, lost := range []float64{0.01, 0.05} {
			attacked(t, fmt.Sprintf("%v, %s", lost, how), perSecond(1000), func(t *testing.T, f *fleet, _ *rand.Rand) {
				f.store.Locked(func() { f.store.LoseCalls = lost })
				for i := range 8 {
					f.join(i, "group").greedy(max)
				}
				time.Sleep(60 * second)
				f.bounded(t, "from 1 s on", second, 60*second, 1100, 250*time.Millisecond)
				within(t, "total", float64(f.between(second, 60*second))/59, 900, 1005)
			})
		}
		attacked(t, "dropped, lost and doubled, "+how, perSecond(1000), func(t *testing.T, f *fleet, _ *rand.Rand) {
			f.store.Locked(func() { f.store.LoseCalls, f.store.LoseReplies, f.store.Duplicate = 0.05, 0.05, 0.05 })
			for i := range 8 {
				f.join(i, "group").greedy(max)
			}
			time.Sleep(20 * second)
			f.bounded(t, "from the start", 0, 20*second, 1100, 250*time.Millisecond)
		})
	}
}

// A replica that starts while the permit store is unavailable has the limit divided by the last
// number of replicas, or a thousandth of it. It has the limit as soon as the store is available.
func TestUnavailableAtTheStart(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{false, true} {
		fleets(t, fmt.Sprintf("counted before: %v", known), perSecond(1000), func(t *testing.T, f *fleet) {
			f.cache = ""
			if known {
				f.cache = t.TempDir()
			}
			for i := range 4 {
				f.join(i, "group").greedy(1)
			}
			time.Sleep(40 * second)
			for _, r := range f.joined {
				r.leave()
			}
			f.store.Locked(func() { f.store.Down = true })
			for i := range 4 {
				f.join(10+i, "group").greedy(1)
			}
			start := time.Since(f.start)
			time.Sleep(10 * second)
			if known {
				within(t, "without it", f.between(start+second, start+10*second), 8500, 9100)
			} else {
				within(t, "without it", f.between(start, start+10*second), 4, 45)
			}
			f.store.Locked(func() { f.store.Down = false })
			back := time.Since(f.start)
			time.Sleep(5 * second)
			within(t, "the first second with it", f.between(back, back+second), 800, 1250)
			within(t, "the next four", f.between(back+second, back+5*second), 3900, 4100)
		})
	}
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

// While the permit store is unavailable for seconds, or has lost the schedule, replicas with
// `share` go on at the limit. See TestAccuracyOutages for a real Redis.
func TestOutages(t *testing.T) {
	t.Parallel()
	freeze := func(f *fleet) {
		f.store.Locked(func() { f.store.Frozen = time.Now().Add(2 * second) })
		time.Sleep(2 * second)
	}
	lose := func(f *fleet) { f.store.Locked(func() { clear(f.store.Limits) }) }
	for name, fault := range map[string]func(f *fleet){
		"frozen for 2 s": freeze,
		"frozen for 2 s every 5 s": func(f *fleet) {
			for range 4 {
				freeze(f)
				time.Sleep(3 * second)
			}
		},
		"down for 3 s, back empty": func(f *fleet) {
			f.store.Locked(func() { f.store.Down = true })
			time.Sleep(3 * second)
			f.store.Locked(func() { f.store.Down = false })
			lose(f)
		},
		"lost five times, each 300 ms": func(f *fleet) {
			for range 5 {
				lose(f)
				time.Sleep(300 * time.Millisecond)
			}
		},
	} {
		for how, max := range appetites {
			for _, rate := range []int64{100, 1000} {
				for _, replicas := range []int{1, 4, 32} {
					what := fmt.Sprintf("%s, %d/s of %d, %s", name, rate, replicas, how)
					attacked(t, what, perSecond(rate), func(t *testing.T, f *fleet, _ *rand.Rand) {
						for i := range replicas {
							f.join(i, "group").greedy(max)
						}
						time.Sleep(3 * second)
						from := time.Since(f.start)
						fault(f)
						time.Sleep(second)
						end := time.Since(f.start)
						time.Sleep(2 * second)
						part := func(n int, d time.Duration) float64 {
							return float64(n) / float64(rate) / d.Seconds()
						}
						most, least := 1.1, 0.95
						if replicas > 4 { // batches are large until all replicas are counted again
							most, least = 1.15, 0.92
						}
						within(t, "any second", part(f.window(second, 2*second), second), 0, most+2/float64(rate))
						within(t, "meanwhile", part(f.between(from, end), end-from), least, 1.05)
					})
				}
			}
		}
	}
}

// A replica that alone does not reach the permit store for a moment goes on at its share, and pays
// that back.
func TestShortCuts(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{2, 4} {
		for _, ms := range []int{100, 200, 300, 500} {
			cut := time.Duration(ms) * time.Millisecond
			name := fmt.Sprintf("one of %d, %v", replicas, cut)
			attacked(t, name, perSecond(1000), func(t *testing.T, f *fleet, rng *rand.Rand) {
				for i := range replicas {
					f.join(i, "group").greedy(1)
				}
				time.Sleep(2 * second)
				from := time.Since(f.start)
				for range 5 {
					time.Sleep(2*second + time.Duration(rng.Int64N(int64(200*time.Millisecond))))
					for _, yes := range []bool{true, false} {
						f.store.Locked(func() { f.joined[0].link.Cut = yes })
						time.Sleep(cut)
					}
				}
				time.Sleep(2 * second)
				all := time.Since(f.start) - from
				most := 250 * time.Millisecond // 140 ms were seen
				if cut > 300*time.Millisecond {
					most = cut * 6 / 10
				}
				within(t, "excess", f.excess(1000, second), 0, most)
				within(t, "all", float64(f.between(from, from+all))/all.Seconds(), 995, 1005)
			})
		}
	}
}
