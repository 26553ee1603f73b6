package scale

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/window"
)

// TestThousandReplicas: 1,000 replicas with a connection each share ten limits on one Redis; 250
// without THROTTLE_LONG. No limit is exceeded while they join or later, and each is used in full.
func TestThousandReplicas(t *testing.T) {
	const joining = 5 * time.Second
	replicas, lowest := 250, int64(8)
	if permitstest.Long() {
		replicas, lowest = 1000, 20
	}
	f := fleet{
		job: job{Each: joining / time.Duration(replicas), Timed: true}, processes: 4, replicas: replicas,
		settle: joining + 4*time.Second, measure: 8 * time.Second,
	}
	for i := range int64(10) {
		f.Rates = append(f.Rates, lowest*(i+1))
	}
	loosely.Hold(t, func(loose assert.TestingT) {
		r := f.run(t)
		least, most, closest := 1.0, 0.0, 0.0
		for limit, grants := range r.Grants {
			rate, n := float64(f.Rates[limit]), 0
			for _, d := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
				bound := rate*(d+250*time.Millisecond+r.Late).Seconds() + 1
				got := float64(window.Max(d, grants))
				closest = max(closest, got/bound)
				assert.LessOrEqual(t, got, bound, "%v/s, %v, timers late by %v", rate, d, r.Late)
			}
			for _, g := range grants {
				if g.At >= f.settle && g.At < f.settle+f.measure {
					n += g.N
				}
			}
			part := float64(n) / rate / f.measure.Seconds()
			least = min(least, part)
			most = max(most, float64(window.Max(time.Second, grants))/rate)
		}
		t.Logf("%.1f %% of each limit or more, %.1f %% in any second, %.2f of the bound, "+
			"timers late by %v, %.0f connections, %.0f requests/s", 100*least, 100*most, closest, r.Late,
			r.redis.connections, float64(r.Requests)/r.seconds)
		assert.GreaterOrEqual(loose, least, 0.97)
		assert.GreaterOrEqual(loose, r.redis.connections, float64(replicas))
		assert.LessOrEqual(loose, r.redis.connections, float64(2*replicas))
	})
}
