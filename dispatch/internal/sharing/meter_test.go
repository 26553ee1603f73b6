package sharing

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMeter(t *testing.T) {
	for _, period := range []float64{0.001, 0.02, 0.5, 2, 6, 20} {
		var m meter
		assert.Zero(t, m.rate(1))
		now, most := 7.0, 0.0
		for ; now < 7+40*max(period, 1); now += period {
			m.add(1, now)
			most = max(most, m.rate(now), m.rate(now+period/2))
		}
		assert.InEpsilon(t, 1/period, m.rate(now), 0.35, "every %v s", period)
		assert.LessOrEqual(t, most, 1/period*1.07, "every %v s", period)
		assert.Less(t, m.rate(now+100), 0.15*max(1, 1/period/10), "after a pause")
	}
}

// TestMeterWindows: a window starts with the first permit taken, and ends after a minute.
func TestMeterWindows(t *testing.T) {
	var m meter
	m.add(0, 1)
	m.add(1, 5)
	m.add(9, 5.9)
	assert.InDelta(t, 10, m.rate(5.9), 1e-9)

	m = meter{}
	m.add(1, 0)
	for now := 300.0; now <= 370; now += 10 {
		m.add(1, now)
	}
	assert.InDelta(t, 0.1, m.rate(370), 0.01)
}
