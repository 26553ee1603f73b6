package scale

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
)

// divided are the modes in which replicas divide a limit.
var divided = []policy.Sharing{{Mode: policy.Split}, {Mode: policy.Groups, Groups: []string{"eu", "us"}}}

// TestPools: thirty replicas divide one limit, and never use more than it.
func TestPools(t *testing.T) {
	const rate, replicas = 1000, 30
	for _, sharing := range divided {
		t.Run(string(sharing.Mode), func(t *testing.T) {
			t.Parallel()
			f := fleet{
				job: job{Rates: []int64{rate}, Sharing: sharing}, processes: 2, replicas: replicas,
				measure: 12 * time.Second, patient: true,
			}
			grants := f.run(t).Grants[0]
			assert.NotEmpty(t, grants)
			// A group may use the permits of a period at once.
			assert.NoError(t, window.WithinRate(rate, time.Second, replicas, grants))
		})
	}
}

// TestAccuracyPools: a hundred replicas divide one limit, although each of their heartbeats and
// draws replaces the same record in Redis.
func TestAccuracyPools(t *testing.T) {
	for _, sharing := range divided {
		t.Run(string(sharing.Mode), func(t *testing.T) {
			accuracy.Measure(t, func(m *accuracy.M) {
				const rate, replicas = 1000, 100
				f := fleet{
					job:       job{Rates: []int64{rate}, Sharing: sharing},
					processes: 2, replicas: replicas, settle: 10 * time.Second, measure: 5 * time.Second,
				}
				r := f.run(t)
				served := map[int]bool{}
				for _, g := range r.Grants[0] {
					served[g.Source] = true
				}
				m.AtLeast("replicas served", float64(len(served)), replicas)
				m.AtLeast("used, %", f.used(r, 0), 80)
				if sharing.Mode == policy.Split {
					m.AtMost("any second, %", 100*float64(window.Max(time.Second, r.Grants[0]))/rate, 100+10+1)
				}
			})
		})
	}
}

// used is what was granted of a limit during the measurement, in percent.
func (f fleet) used(r result, limit int) float64 {
	n := 0
	for _, g := range r.Grants[limit] {
		if g.At >= f.settle && g.At < f.settle+f.measure {
			n += g.N
		}
	}
	return 100 * float64(n) / float64(f.Rates[limit]) / f.measure.Seconds()
}
