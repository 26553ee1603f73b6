package dispatch_test

import (
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

// Permits for a caller that was refused are kept until it returns: they do not expire, and are not
// requested again and again.
func TestAPatientPollerIsServed(t *testing.T) {
	for _, every := range []time.Duration{5 * second, 20 * second} {
		fleets(t, every.String(), perSecond(10), func(t *testing.T, f *fleet) {
			r := f.join(0, "group")
			const polls, max = 40, 5
			got := 0
			for range polls {
				g, _, _ := r.sub.TryAcquire(max)
				got += g.N()
				time.Sleep(every)
			}
			within(t, "permits", got, polls*max*2/5, polls*max)
			requests := 0
			f.store.Locked(func() { requests = f.store.Requests })
			within(t, "requests a permit", float64(requests)/float64(got), 0, 1.7)
		})
	}
}
