package sharing

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestALateLoop releases what is overdue by no more than a round, and of a limit that busy answers
// lower by no more than a fifth of it.
func TestALateLoop(t *testing.T) {
	for rule, released := range map[busy.Mode]int64{busy.None: 10, busy.ByFraction: 2, busy.ByCount: 2} {
		limit := resolve.Limit{Pace: resolve.Pace{Mode: policy.Fair, Rate: 100, Round: 0.1, Rule: busy.Rule{Mode: rule}}}
		s := New(&Env{Rand: rand.New(rand.NewPCG(1, 1))}, limit, 0)
		s.Mode.Advance(Time{Now: 0, Step: 1}, Demand{})
		s.add(30, 0.0675, 0.01, 0, 10, limit.Round)
		s.Mode.Advance(Time{Now: 0.3125, Step: 2, Late: 0.25}, Demand{})
		assert.Equal(t, released, s.Available(), "rule %d", rule)
		assert.Equal(t, 25-released, s.lost, "rule %d", rule)
		s.Mode.Advance(Time{Now: 0.3325, Step: 3}, Demand{})
		assert.Equal(t, released+2, s.Available(), "in time, all of it")
	}
}
