package dispatch_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// TestManyJoin: replicas that join at once have their credit one after the other.
func TestManyJoin(t *testing.T) {
	t.Parallel()
	for how, max := range appetites {
		for _, n := range []int{100, 500} {
			fleets(t, fmt.Sprint(n, ", ", how), perSecond(1000), func(t *testing.T, f *fleet) {
				for i := range 8 {
					f.join(i, "group").greedy(max)
				}
				time.Sleep(3 * second)
				for i := range n {
					f.join(8+i, "group").greedy(max)
					time.Sleep(50 * time.Millisecond / time.Duration(n))
				}
				time.Sleep(5 * second)
				within(t, "all", f.between(second, 8*second), 6860, 7100)
				within(t, "any second", f.window(second, second), 0, 1070)
			})
		}
	}
}

// TestRestlessWeights: replicas whose shares change again and again are not taken for quiet ones.
func TestRestlessWeights(t *testing.T) {
	t.Parallel()
	for how, max := range appetites {
		for _, subscriptions := range []int{2, 4, 8} {
			attacked(t, fmt.Sprint(subscriptions, ", ", how), perSecond(1000), func(t *testing.T, f *fleet, rng *rand.Rand) {
				for i := range 8 {
					f.join(i, fmt.Sprint("subscription ", i%subscriptions)).greedy(max)
				}
				time.Sleep(2 * second)
				from := time.Since(f.start)
				for range 50 {
					weights := map[string]policy.Policy{}
					for i := range subscriptions {
						weights[fmt.Sprint("subscription ", i)] = policy.Policy{Weight: new(0.1 + 10*rng.Float64())}
					}
					f.policies.Set(weighed(t, weights))
					time.Sleep(200 * time.Millisecond)
				}
				within(t, "all", f.between(from, from+10*second), 9800, 10_200)
				within(t, "any second", f.window(second, from), 0, 1055)
			})
		}
	}
}
