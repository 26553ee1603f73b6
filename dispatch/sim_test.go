package dispatch_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

func TestSaturated(t *testing.T) {
	for _, max := range []int{1 << 20, 1} {
		for _, c := range []struct {
			rate     int64
			replicas int
		}{{1000, 8}, {1000, 1}, {10000, 8}, {10, 8}, {100000, 8}, {10, 50}, {100, 50}} {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1, policy.Policy{MessageRate: policy.PerSecond(c.rate)})
				for i := range c.replicas {
					f.join(i, "group").greedy(max)
				}
				time.Sleep(10 * time.Second)
				f.end()
				t.Logf("max %d rate %d x %d: %v; 1-10 s %d; 3-10s first replica %d, last %d", max, c.rate, c.replicas, f, f.between(time.Second, 10*time.Second), f.by(0, 3*time.Second, 10*time.Second), f.by(c.replicas-1, 3*time.Second, 10*time.Second))
			})
		}
	}
}
