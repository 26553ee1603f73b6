package dispatch_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// The store's clock steps forward and back, or once.
func TestSteppingClock(t *testing.T) {
	t.Parallel()
	for how, max := range appetites {
		attacked(t, "100 ms to and fro, "+how, perSecond(1000), func(t *testing.T, f *fleet, _ *rand.Rand) {
			for i := range 8 {
				f.join(i, "group").greedy(max)
			}
			time.Sleep(2 * second)
			for i := range 40 {
				f.store.Locked(func() { f.store.Skew = time.Duration(i%2*2-1) * 50 * time.Millisecond })
				time.Sleep(300 * time.Millisecond)
			}
			f.bounded(t, "from 1 s on", second, time.Since(f.start), 1050, 250*time.Millisecond)
			within(t, "total", float64(f.between(2*second, 14*second))/12, 970, 1010)
		})
		for _, step := range []time.Duration{5 * second, -5 * second} {
			name := fmt.Sprintf("%v once, %s", step, how)
			attacked(t, name, perSecond(1000), func(t *testing.T, f *fleet, _ *rand.Rand) {
				for i := range 8 {
					f.join(i, "group").greedy(max)
				}
				time.Sleep(3 * second)
				f.store.Locked(func() { f.store.Skew += step })
				time.Sleep(3 * second)
				f.bounded(t, "from 1 s on", second, time.Since(f.start), 1050, 250*time.Millisecond)
				within(t, "total", float64(f.between(2*second, 6*second))/4, 970, 1010)
			})
		}
	}
}

// The store's clock makes several random steps a second.
func TestWalkingClock(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{30 * time.Millisecond, 100 * time.Millisecond} {
		attacked(t, step.String(), perSecond(1000), func(t *testing.T, f *fleet, rng *rand.Rand) {
			for i := range 8 {
				f.join(i, "group").greedy(1 << 20)
			}
			time.Sleep(2 * second)
			for range 60 {
				f.store.Locked(func() { f.store.Skew += step * time.Duration(1-2*rng.IntN(2)) })
				time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
			}
			end := time.Since(f.start)
			// The bounds of the design: several steps may come between two requests.
			f.bounded(t, "from 1 s on", second, end, 1250, 250*time.Millisecond)
			within(t, "total", float64(f.between(2*second, end))/(end-2*second).Seconds(), 900, 1010)
		})
	}
}

// TestJumpingRoundTrips: the permit store is near and far in turn: at random for each request, and
// for longer.
func TestJumpingRoundTrips(t *testing.T) {
	t.Parallel()
	for how, max := range appetites {
		for _, replicas := range []int{2, 8} {
			for every, most := range map[time.Duration]int{
				0: 1170, 300 * time.Millisecond: 1170, second: 1040, 4 * second: 1140,
			} {
				name := fmt.Sprintf("%d replicas, every %v, %s", replicas, every, how)
				attacked(t, name, perSecond(1000), func(t *testing.T, f *fleet, rng *rand.Rand) {
					f.store.Locked(func() {
						f.store.RTT = func() time.Duration {
							far := rng.IntN(2) == 0
							if every > 0 {
								far = time.Since(f.start)/every%2 == 1
							}
							if far {
								return 150 * time.Millisecond
							}
							return 500 * time.Microsecond
						}
					})
					for i := range replicas {
						f.join(i, "group").greedy(max)
					}
					time.Sleep(22 * second)
					within(t, "any second", f.window(second, 2*second), 0, most)
					within(t, "total", float64(f.between(2*second, 22*second))/20, 950, 1005)
				})
			}
		}
	}
}

// Slow requests look like a clock that steps forward. The line that they move is moved back, with
// one replica and with many.
func TestSlowRequestsMoveNothing(t *testing.T) {
	t.Parallel()
	for how, max := range appetites {
		for _, replicas := range []int{1, 8} {
			name := fmt.Sprintf("%d replicas, %s", replicas, how)
			attacked(t, name, perSecond(1000), func(t *testing.T, f *fleet, rng *rand.Rand) {
				f.store.Locked(func() {
					usual := f.store.RTT
					f.store.RTT = func() time.Duration {
						if rng.IntN(20) == 0 {
							return time.Duration(30+rng.IntN(120)) * time.Millisecond
						}
						return usual()
					}
				})
				for i := range replicas {
					f.join(i, "group").greedy(max)
				}
				time.Sleep(62 * second)
				f.bounded(t, "from 1 s on", second, time.Since(f.start), 1150, 250*time.Millisecond)
				within(t, "total", float64(f.between(2*second, 62*second))/60, 930, 1005)
			})
		}
		title := "frozen for less than the time-out, " + how
		attacked(t, title, perSecond(1000), func(t *testing.T, f *fleet, _ *rand.Rand) {
			for i := range 8 {
				f.join(i, "group").greedy(max)
			}
			time.Sleep(2 * second)
			var most []int // in any second, after each freeze
			for range 10 {
				from := time.Since(f.start)
				f.store.Locked(func() { f.store.Frozen = time.Now().Add(150 * time.Millisecond) })
				time.Sleep(second)
				most = append(most, f.window(second, from-second/2))
			}
			slices.Sort(most)
			within(t, "any second after a freeze, median", most[5], 0, 1040)
			f.bounded(t, "from 1 s on", second, time.Since(f.start), 1100, 250*time.Millisecond)
			within(t, "total", float64(f.between(2*second, 12*second))/10, 970, 1005)
		})
	}
}

// Split and groups use the store's clock as it is: a step costs a second or two, and dispatches a
// bounded number in excess.
func TestSteppingClockSplitAndGroups(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]policy.Policy{
		"split":  splitting(t, "1000/s"),
		"groups": divided(t, "1000/s", "eu", "us"),
	} {
		for _, step := range []time.Duration{
			100 * time.Millisecond, -100 * time.Millisecond, 5 * second, -5 * second, time.Hour, -time.Hour,
		} {
			attacked(t, fmt.Sprintf("%s, %v", name, step), p, func(t *testing.T, f *fleet, _ *rand.Rand) {
				for i := range 8 {
					f.joinGroup(i, "group", []string{"eu", "us"}[i%2]).greedy(1 << 20)
				}
				time.Sleep(4 * poolTTL)
				before := time.Since(f.start)
				f.store.Locked(func() { f.store.Skew += step })
				time.Sleep(10 * second)
				within(t, "any second", f.window(second, before), 0, 1250)
				within(t, "any three seconds", f.window(3*second, before), 0, 3250)
				within(t, "lowest", f.between(before, before+3*second), 1000, 3250)
				within(t, "after it", f.between(before+7*second, before+10*second), 2900, 3100)
			})
		}
	}
}
