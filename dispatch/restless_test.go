package dispatch_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// restless changes the limit again and again for 20 s. It returns what part of what the limit
// allowed was dispatched in all, and how many messages more than that in between.
func (f *fleet) restless(every time.Duration, rate func(i int) int64) (part, ahead float64) {
	time.Sleep(2 * second)
	from, allowed, lowest := time.Since(f.start), 0.0, 0.0 // lowest: dispatched, less allowed
	dispatched := func() float64 { return float64(f.between(from, time.Since(f.start))) }
	for i := range int(20 * second / every) {
		limit := rate(i)
		f.policies.Set(policy.Single(perSecond(limit)))
		time.Sleep(every)
		allowed += float64(limit) * every.Seconds()
		now := dispatched() - allowed
		lowest = math.Min(lowest, now)
		ahead = math.Max(ahead, now-lowest)
	}
	return dispatched() / allowed, ahead
}

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
				part, ahead := f.restless(every, func(int) int64 { return 100 + rng.Int64N(1901) })
				within(t, "of what was allowed", part, least, 1.005)
				within(t, "ahead", ahead, 0, 0.125*2000)
				within(t, "requests a message", f.requestsPerMessage(), 0, 0.4)
			})
		}
	}
}

// TestRestlessLimitFarAway: a limit that changes while requests are on their way is exceeded by no
// more than a quarter second of the highest rate. Each change misplaces up to a round trip's
// permits, early or late, and of a random sequence these add up as steps of a random walk: in 60
// runs of each case, 73 to 323 permits were ahead at the worst. The least parts are those of these
// runs, with a margin.
func TestRestlessLimitFarAway(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		away, every    time.Duration
		inTurn, random float64 // least part that is dispatched
	}{
		{20 * ms, 30 * ms, 0.2, 0.93}, {20 * ms, 100 * ms, 0.6, 0.95}, {20 * ms, 300 * ms, 0.85, 0.96},
		{60 * ms, 30 * ms, 0.17, 0.66}, {60 * ms, 100 * ms, 0.35, 0.7}, {60 * ms, 300 * ms, 0.53, 0.85},
	} {
		for _, replicas := range []int{2, 8} {
			for _, inTurn := range []bool{false, true} {
				how := fmt.Sprintf("%d replicas, %s away, each %s, in turn: %v", replicas, c.away, c.every, inTurn)
				attacked(t, how, perSecond(1000), func(t *testing.T, f *fleet, rng *rand.Rand) {
					f.store.Locked(func() { f.store.RTT = func() time.Duration { return c.away } })
					for i := range replicas {
						f.join(i, "group").greedy(1 << 20)
					}
					least, rate := c.random, func(int) int64 { return 100 + rng.Int64N(1901) }
					if inTurn {
						least, rate = c.inTurn, func(i int) int64 { return []int64{100, 2000}[i%2] }
					}
					part, ahead := f.restless(c.every, rate)
					within(t, "of what was allowed", part, least, 1.02)
					within(t, "ahead", ahead, 0, 0.25*2000)
				})
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
