package sharing

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/policy"
)

// stand makes the client, and its clock, stand still for seconds, as a suspended virtual machine.
func (c *client) stand(seconds float64) {
	end := c.w.now + seconds
	c.behind += seconds
	c.w.until(end)
}

// stop stops the client for seconds. Its clock goes on, as that of a stopped process.
func (c *client) stop(seconds float64) {
	end := c.w.now + seconds
	c.due = max(c.due, end)
	if c.asked != nil {
		c.answerAt = max(c.answerAt, end)
	}
	c.w.until(end)
}

// stale runs the world until the client has an answer that the store gives from now on, and counts
// the permits that it takes by then.
func (c *client) stale() int {
	from := c.w.now
	for c.clock.now < from && c.w.now < from+10 {
		c.w.run(0.0005)
	}
	return c.between(from, c.w.now)
}

// TestStoodStill: after a replica has stood still, it uses what it was allocated before for a
// batch at most, and gives nothing of it back. Its clock shows the pause or does not.
func TestStoodStill(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	for name, pause := range map[string]func(*client, float64){
		"the clock goes on": (*client).stop, "the clock stands still": (*client).stand,
	} {
		t.Run(name, func(t *testing.T) { testStoodStill(t, pause) })
	}
}

func testStoodStill(t *testing.T, pause func(c *client, seconds float64)) {
	const phases = 8 // of its batches
	for name, c := range map[string]struct {
		limit   resolve.Limit
		callers int
		place   int // permits of its place in the pool, until its next heartbeat
	}{
		"fair":                 {limited(policy.Fair, 400), 1, 0},
		"strict":               {strictLimit(20), 1, 0},
		"strict, many callers": {strictLimit(20), 8, 0},
		"groups":               {grouped("eu"), 1, 0},
		"split":                {splitLimit(400, 0), 1, 400 * 2 / 20}, // a twentieth of its TTL
	} {
		t.Run(name, func(t *testing.T) {
			for _, seconds := range []float64{1, 30} {
				for _, rtt := range []float64{0, 0.001, 0.02} {
					for phase := range phases {
						w := newWorld()
						for range 3 {
							one := w.join(c.limit)
							one.callers = c.callers
							one.far(rtt)
						}
						w.run(5 + float64(phase)*0.26/float64(phases))
						one := w.clients[0]
						batch := one.largest()
						pause(one, seconds)
						asked := len(w.requests)
						from := w.now
						away := int(math.Ceil(rtt * c.limit.Rate))
						assert.LessOrEqual(t, one.stale(), batch+away+1+c.place, // the first of the new ones
							"%v s, %v s away, phase %d", seconds, rtt, phase)
						for _, r := range w.requests[asked:] {
							if r.Allocate != nil && r.Allocate.Carry.Seq < w.state.Seq-20 {
								assert.Zero(t, r.Allocate.Returned)
							}
						}
						w.until(from + 1)
						all := 0
						for _, c := range w.clients {
							all += c.between(from, from+1)
						}
						assert.LessOrEqual(t, all, int(c.limit.Rate*1.11)+batch+away+c.place,
							"%v s, %v s away, phase %d", seconds, rtt, phase)
					}
				}
			}
		})
	}
}

// largest is the number of permits in the largest batch, which may be on its way.
func (c *client) largest() int {
	n := int64(1)
	for _, b := range c.batches {
		n = max(n, b.n)
	}
	if c.asked != nil && c.asked.Allocate != nil {
		n = max(n, int64(c.asked.Allocate.Reply.N))
	}
	if c.asked != nil && c.asked.Draw != nil {
		n = max(n, c.asked.Draw.Drawn.N)
	}
	return int(n)
}
