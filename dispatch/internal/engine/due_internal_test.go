package engine

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestDueOrder: the lane that is due first is first in the heap, after any changes.
func TestDueOrder(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	var due dueLanes
	assert.Equal(t, math.Inf(1), due.next())
	lanes := make([]*Lane, 50)
	for i := range lanes {
		lanes[i] = &Lane{place: -1, due: math.Inf(1)}
	}
	for range 2000 {
		l := lanes[rng.IntN(len(lanes))]
		at := float64(rng.IntN(100))
		if rng.IntN(4) == 0 {
			at = math.Inf(1)
		}
		due.set(l, at)
		first, n := math.Inf(1), 0
		for _, l := range lanes {
			if first = min(first, l.due); l.due < math.Inf(1) {
				n++
			}
		}
		ok := assert.Equal(t, first, due.next(), "seed %d", seed)
		if !assert.Len(t, due, n, "seed %d", seed) || !ok {
			return
		}
	}
	for last := 0.0; len(due) > 0; {
		l := due[0].lane
		assert.LessOrEqual(t, last, l.due, "seed %d", seed)
		last = l.due
		due.set(l, math.Inf(1))
		due.set(l, math.Inf(1))
	}
}
