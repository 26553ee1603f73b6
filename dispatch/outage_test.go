package dispatch_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// Lost requests and replies are no outage.
func TestLostRequestsAreNoOutage(t *testing.T) {
	t.Parallel()
	for how, max := range appetites {
		for _, lost := range []float64{0.01, 0.05} {
			attacked(t, fmt.Sprintf("%v, %s", lost, how), perSecond(1000), func(t *testing.T, f *fleet, _ *rand.Rand) {
				f.store.Do(func() { f.store.LoseCalls = lost })
				for i := range 8 {
					f.join(i, "group").greedy(max)
				}
				time.Sleep(60 * second)
				f.bounded(t, "from 1 s on", second, 60*second, 1050, 250*time.Millisecond)
				within(t, "total", float64(f.between(second, 60*second))/59, 900, 1005)
			})
		}
		attacked(t, "dropped, lost and doubled, "+how, perSecond(1000), func(t *testing.T, f *fleet, _ *rand.Rand) {
			f.store.Do(func() { f.store.LoseCalls, f.store.LoseReplies, f.store.Duplicate = 0.05, 0.05, 0.05 })
			for i := range 8 {
				f.join(i, "group").greedy(max)
			}
			time.Sleep(20 * second)
			f.bounded(t, "from the start", 0, 20*second, 1100, 250*time.Millisecond)
		})
	}
}
