package dispatch_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
)

// TestNothingWasted: while one consumer has demand above the limit, the whole limit is dispatched,
// whatever replicas join and leave.
func TestNothingWasted(t *testing.T) {
	t.Parallel()
	for _, seed := range permitstest.Seeds(t, permitstest.Quarter(25), 120) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, seed, perSecond(1000))
			rng := rand.New(rand.NewPCG(seed, 4))
			f.join(1000, "group 0").greedy(1 + rng.IntN(2)*1000) // always there
			var others []*replica
			for i := range 10 {
				if n := len(others); n > 1 && rng.IntN(2) == 0 {
					others[n-1].leave()
					others = others[:n-1]
				} else {
					r := f.join(i, fmt.Sprint("group ", rng.IntN(3)))
					if rng.IntN(4) == 0 {
						r.poisson(5+rng.Float64()*200, rng.Uint64())
					} else {
						r.greedy([]int{1, 1, 1 << 20}[rng.IntN(3)])
					}
					others = append(others, r)
				}
				time.Sleep(time.Duration(rng.Int64N(int64(second))))
			}
			time.Sleep(second) // to settle
			from := time.Since(f.start)
			time.Sleep(5 * second)
			got := f.between(from, from+5*second)
			f.end()
			assert.GreaterOrEqual(t, got, 4850, "seed %d: replay with THROTTLE_SEED=%d", seed, seed)
			assert.LessOrEqual(t, got, 5250, "seed %d", seed)
		})
	}
}

// TestFair: subscriptions with demand above their share get the same, however many replicas they
// have. So do the replicas of each.
func TestFair(t *testing.T) {
	t.Parallel()
	for _, seed := range permitstest.Seeds(t, permitstest.Quarter(20), 80) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			f := newFleet(t, seed, perSecond(1000))
			groups := 2 + rng.IntN(3)
			members := make([][]*replica, groups)
			id := 0
			for g := range groups {
				for range 1 + rng.IntN(4) {
					r := f.join(id, fmt.Sprint("group ", g))
					r.greedy([]int{1, 50, 1 << 20}[rng.IntN(3)])
					members[g] = append(members[g], r)
					id++
					time.Sleep(time.Duration(rng.Int64N(int64(200 * time.Millisecond))))
				}
			}
			time.Sleep(2 * second)
			from := time.Since(f.start)
			time.Sleep(10 * second)
			f.end()
			for g, replicas := range members {
				share := 10_000.0 / float64(groups*len(replicas))
				for _, r := range replicas {
					assert.InEpsilon(t, share, f.by(r.id, from, from+10*second), 0.08,
						"seed %d: replica %d of group %d of %d", seed, r.id, g, groups)
				}
			}
		})
	}
}
