package etcdpermits

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// TestClockWithinBounds: whatever time is published, the clock runs on within the bounds of
// schedules.
func TestClockWithinBounds(t *testing.T) {
	for _, published := range []string{"1e11", "99999999999.9", "5e10", "-1e300", "1e300", "NaN", "Inf"} {
		c := newClock()
		c.take([]byte(published))
		later := c.now(time.Now().Add(1e6 * time.Hour))
		r := schedule.Request{Weight: 1, Demand: 10, Want: 1, Round: 0.1, Rate: 10, Nonce: 1}
		_, _, reply := schedule.Allocate(schedule.State{}, schedule.Sub{}, r, later)
		assert.True(t, reply.Sound(r), "%s: %v", published, reply.Now)
	}
}
