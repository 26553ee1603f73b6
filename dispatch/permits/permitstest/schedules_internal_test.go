package permitstest

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/none"
)

// TestFindsADeadStore: with each seed, a store that grants nothing does not pass.
func TestFindsADeadStore(t *testing.T) {
	b := Backend{Open: func(*testing.T) dispatch.PermitStore { return none.Store{} }}
	for _, m := range modes {
		for seed := range uint64(3) {
			assert.Contains(t, b.try(t, m, seed, m.draw(seed, b)), "after all faults, 0 of ", "%s, seed %d", m.name,
				seed)
		}
	}
}
