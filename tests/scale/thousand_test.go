package scale

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// ten is a fleet of ten limits; their rates are lowest, 2*lowest and so on.
func ten(replicas int, lowest int64, joining, settle, measure time.Duration) fleet {
	f := fleet{
		job: job{Each: joining / time.Duration(replicas)}, processes: 4, replicas: replicas,
		settle: joining + settle, measure: measure,
	}
	for i := range int64(10) {
		f.Rates = append(f.Rates, lowest*(i+1))
	}
	return f
}

// TestManyReplicas: a hundred replicas join and get permits of ten limits, and never more than
// these allow.
func TestManyReplicas(t *testing.T) {
	f := ten(100, 8, 2*time.Second, 0, throttletest.Patience)
	f.Leave = 16 // of the slowest limit in eight seconds
	f.patient = true
	r := f.run(t)
	for limit, grants := range r.Grants {
		assert.GreaterOrEqual(t, len(grants), f.processes*f.Leave)
		assert.NoError(t, window.WithinRate(float64(f.Rates[limit]), 250*time.Millisecond, 1, grants))
	}
}

// TestAccuracyThousandReplicas: a thousand replicas with a connection each join in five seconds and
// share ten limits on one Redis.
func TestAccuracyThousandReplicas(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		const replicas = 1000
		f := ten(replicas, 20, 5*time.Second, 4*time.Second, 8*time.Second)
		r := f.run(t)
		var used, most []float64
		closest := 0.0 // to rate x (d + 0.25 s)
		for limit, grants := range r.Grants {
			rate := float64(f.Rates[limit])
			used = append(used, f.used(r, limit))
			most = append(most, 100*float64(window.Max(time.Second, grants))/rate)
			for _, d := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
				bound := rate*(d+250*time.Millisecond).Seconds() + 1
				closest = max(closest, float64(window.Max(d, grants))/bound)
			}
		}
		m.AtLeast("used of the limit with the least, %", slices.Min(used), 97)
		m.AtMost("any second of the limit with the most, %", slices.Max(most), 125)
		m.AtMost("any 0.1, 1 or 10 s of what they may have, %", 100*closest, 100)
		m.Within("connections a replica", r.redis.connections/replicas, 1, 2)
	})
}
