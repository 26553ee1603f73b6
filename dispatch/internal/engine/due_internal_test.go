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
	var heap dueLanes
	assert.Equal(t, math.Inf(1), heap.next())
	lanes := make([]*Lane, 50)
	for i := range lanes {
		lanes[i] = &Lane{due: dueTime{at: math.Inf(1), place: -1}}
	}
	for range 2000 {
		l := lanes[rng.IntN(len(lanes))]
		at := float64(rng.IntN(100))
		if rng.IntN(4) == 0 {
			at = math.Inf(1)
		}
		heap.set(l, at)
		first, n := math.Inf(1), 0
		for _, l := range lanes {
			first = min(first, l.due.at)
			if l.due.at < math.Inf(1) {
				n++
			}
		}
		ok := assert.Equal(t, first, heap.next(), "seed %d", seed)
		if !assert.Len(t, heap, n, "seed %d", seed) || !ok {
			return
		}
	}
	for last := 0.0; len(heap) > 0; {
		l := heap[0].lane
		assert.LessOrEqual(t, last, l.due.at, "seed %d", seed)
		last = l.due.at
		heap.set(l, math.Inf(1))
		heap.set(l, math.Inf(1))
	}
}
