package dispatch_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
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
