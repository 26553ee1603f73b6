package dispatch_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// TestRestlessLimit: of a limit that changes again and again, what it allowed in all is dispatched,
// and never much more in between.
func TestRestlessLimit(t *testing.T) {
	t.Parallel()
	for how, max := range appetites {
		for every, least := range map[time.Duration]float64{
			30 * time.Millisecond: 0.95, 100 * time.Millisecond: 0.98, time.Second: 0.99,
		} {
			attacked(t, fmt.Sprint(every, ", ", how), perSecond(1000), func(t *testing.T, f *fleet, rng *rand.Rand) {
				for i := range 8 {
					f.join(i, "group").greedy(max)
				}
				time.Sleep(2 * second)
				from, allowed, most := time.Since(f.start), 0.0, 0.0
				lowest := 0.0 // of what was dispatched less what was allowed
				for at := from; at < from+20*second; at += every {
					rate := 100 + rng.Int64N(1901)
					f.policies.Set(policy.Single(perSecond(rate)))
					time.Sleep(every)
					allowed += float64(rate) * every.Seconds()
					ahead := float64(f.between(from, at+every)) - allowed
					lowest = math.Min(lowest, ahead)
					most = math.Max(most, ahead-lowest)
				}
				got := float64(f.between(from, time.Since(f.start)))
				within(t, "of what was allowed", got/allowed, least, 1.005)
				within(t, "ahead", most, 0, 0.125*2000)
				within(t, "requests a message", f.requestsPerMessage(), 0, 0.4)
			})
		}
	}
}

// TestRestlessLimitFarAway: a limit that changes while requests are on their way is not exceeded in
// all, and meanwhile by no more than replicas hold of the highest.
func TestRestlessLimitFarAway(t *testing.T) {
	t.Parallel()
	steps := map[string]func(i int, rng *rand.Rand) int64{
		"in turn":   func(i int, _ *rand.Rand) int64 { return []int64{100, 2000}[i%2] },
		"at random": func(_ int, rng *rand.Rand) int64 { return 100 + rng.Int64N(1901) },
	}
	for name, step := range steps {
		for _, rtt := range []time.Duration{20 * time.Millisecond, 60 * time.Millisecond} {
			for _, every := range []time.Duration{30 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond} {
				for _, replicas := range []int{2, 8} {
					how := fmt.Sprintf("%s each %s, %d replicas, %s away", name, every, replicas, rtt)
					attacked(t, how, perSecond(1000), func(t *testing.T, f *fleet, rng *rand.Rand) {
						f.store.Locked(func() { f.store.RTT = func() time.Duration { return rtt } })
						for i := range replicas {
							f.join(i, "group").greedy(1 << 20)
						}
						time.Sleep(2 * second)
						from := time.Since(f.start)
						allowed, lowest, most := 0.0, 0.0, 0.0
						for i := range int(20 * second / every) {
							rate := step(i, rng)
							f.policies.Set(policy.Single(perSecond(rate)))
							time.Sleep(every)
							allowed += float64(rate) * every.Seconds()
							ahead := float64(f.between(from, time.Since(f.start))) - allowed
							lowest = math.Min(lowest, ahead)
							most = math.Max(most, ahead-lowest)
						}
						within(t, "of what was allowed", float64(f.between(from, time.Since(f.start)))/allowed, 0, 1.005)
						within(t, "ahead", most, 0, 0.125*2000)
					})
				}
			}
		}
	}
}

// TestRestlessGroups: a change of the terms opens no permits again.
func TestRestlessGroups(t *testing.T) {
	for _, every := range []time.Duration{50 * time.Millisecond, 250 * time.Millisecond, 1100 * time.Millisecond} {
		terms := [2]policy.Policy{divided(t, "1000/s", "eu", "us"), divided(t, "1001/s", "eu", "us")}
		fleets(t, every.String(), terms[0], func(t *testing.T, f *fleet) {
			for i := range 8 {
				f.joinGroup(i, "group", []string{"eu", "us"}[i%2]).greedy(1)
			}
			time.Sleep(5 * second)
			for i := 0; time.Since(f.start) < 65*second; i++ {
				f.policies.Set(policy.Single(terms[i%2]))
				time.Sleep(every)
			}
			within(t, "a minute", f.between(5*second, 65*second), 59_700, 60*1001+50)
		})
	}
}
