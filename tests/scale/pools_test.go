package scale

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/window"
)

// TestLargePools: many replicas divide one limit, although each of their heartbeats and draws
// replaces the same record in Redis.
func TestLargePools(t *testing.T) {
	replicas := 50
	if permitstest.Long() {
		replicas = 100
	}
	for _, sharing := range []policy.Sharing{
		{Mode: policy.Split}, {Mode: policy.Groups, Groups: []string{"eu", "us"}},
	} {
		f := fleet{
			job:       job{Rates: []int64{1000}, Sharing: sharing, Timed: true},
			processes: 2, replicas: replicas, settle: 10 * time.Second, measure: 5 * time.Second,
		}
		loosely.Hold(t, func(loose assert.TestingT) {
			r := f.run(t)
			n := 0
			for _, g := range r.Grants[0] {
				if g.At >= f.settle && g.At < f.settle+f.measure {
					n += g.N
				}
			}
			part := float64(n) / 1000 / f.measure.Seconds()
			t.Logf("%s, %d replicas: %.1f %%, %.0f requests/s", sharing.Mode, replicas, 100*part,
				float64(r.Requests)/r.seconds)
			assert.GreaterOrEqual(loose, part, 0.8)
			if sharing.Mode == policy.Split {
				got := window.Max(time.Second, r.Grants[0])
				assert.LessOrEqual(t, float64(got), 1000*(1+r.Late.Seconds())+float64(replicas))
			}
		})
	}
}
