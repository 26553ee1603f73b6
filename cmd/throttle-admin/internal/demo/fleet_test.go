package demo

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestJoinTooLate: if not all consumers receive messages, the error tells which groups and replicas
// did what.
func TestJoinTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, err := dispatch.Open(t.Context(), dispatch.Config{
			Policies: dispatch.Fixed(policy.Policy{}), Permits: memory.New(),
		})
		require.NoError(t, err)
		f := &fleet{
			limiters: []*dispatch.Limiter{lim},
			groups:   []*group{{name: "billing", had: map[int]bool{}}, {name: "alerts", had: map[int]bool{}}},
		}
		for number := range replicas * consumersEach {
			f.groups[0].note(0, int64(number), time.Now(), 1+number)
		}
		f.groups[1].note(0, 0, time.Now(), 1)
		err = f.join(t.Context())
		for _, what := range []string{
			"within 20s", "billing: 4 messages, received by 4 of 4", "alerts: 1 messages, received by 1 of 4",
			"replica 1: 0 requests to the permit store, 0 failed",
		} {
			assert.ErrorContains(t, err, what)
		}
		require.NoError(t, lim.Close())
	})
}
