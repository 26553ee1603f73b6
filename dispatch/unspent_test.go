package dispatch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
)

// A replica of a split limit that was idle has the permits of a round or two in addition to its
// rate, not those of all the idle time.
func TestSplitSavesNothingUp(t *testing.T) {
	agreed, fixed := splitting(t, "100/s"), splitting(t, "100/s")
	fixed.Sharing.Replicas = new(int64(1))
	for how, p := range map[string]policy.Policy{"agreed": agreed, "fixed": fixed} {
		fleets(t, how, p, func(t *testing.T, f *fleet) {
			r := f.join(0, "group")
			_, err := r.sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
			time.Sleep(3 * poolTTL)
			for _, idle := range []time.Duration{second, 10 * second, 5 * time.Minute} {
				from := time.Since(f.start)
				for time.Since(f.start) < from+second {
					g, err := r.sub.Acquire(t.Context(), 1000)
					require.NoError(t, err)
					r.record(0, g.N())
				}
				within(t, "in the first tenth of a second", f.between(from, from+100*time.Millisecond), 9, 40)
				within(t, "in the first second", f.between(from, from+second), 99, 130)
				time.Sleep(idle)
			}
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
