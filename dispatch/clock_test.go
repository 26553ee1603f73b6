package dispatch_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// The store's clock that steps to and fro, or once.
func TestSteppingClock(t *testing.T) {
	t.Parallel()
	for how, max := range appetites {
		attacked(t, "100 ms to and fro, "+how, perSecond(1000), func(t *testing.T, f *fleet, _ *rand.Rand) {
			for i := range 8 {
				f.join(i, "group").greedy(max)
			}
			time.Sleep(2 * second)
			for i := range 40 {
				f.store.Do(func() { f.store.Skew = time.Duration(i%2*2-1) * 50 * time.Millisecond })
				time.Sleep(300 * time.Millisecond)
			}
			f.bounded(t, "from 1 s on", second, time.Since(f.start), 1050, 250*time.Millisecond)
			within(t, "total", float64(f.between(2*second, 14*second))/12, 970, 1010)
		})
		for _, step := range []time.Duration{5 * second, -5 * second} {
			attacked(t, fmt.Sprintf("%v once, %s", step, how), perSecond(1000), func(t *testing.T, f *fleet, _ *rand.Rand) {
				for i := range 8 {
					f.join(i, "group").greedy(max)
				}
				time.Sleep(3 * second)
				f.store.Do(func() { f.store.Skew += step })
				time.Sleep(3 * second)
				f.bounded(t, "from 1 s on", second, time.Since(f.start), 1050, 250*time.Millisecond)
				within(t, "total", float64(f.between(2*second, 6*second))/4, 970, 1010)
			})
		}
	}
}
