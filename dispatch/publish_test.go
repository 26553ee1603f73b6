package dispatch_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestPublishesAThousand: a status record has the first 1,000 subscriptions by name that are not
// idle.
func TestPublishesAThousand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		lim, err := dispatch.Open(t.Context(), dispatch.Config{
			Permits: store, Cluster: "c",
			Policies: dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(20)}),
		})
		require.NoError(t, err)
		for i := range 1003 {
			sub, err := lim.Subscription(fmt.Sprintf("kafka://public/default/topic-%04d", 1002-i), "group")
			require.NoError(t, err)
			if i != 1002 { // topic-0000 is idle
				_, err = sub.Acquire(t.Context(), 1)
				require.NoError(t, err)
			}
		}
		time.Sleep(1500 * time.Millisecond)
		records, err := store.Published(t.Context(), "c")
		require.NoError(t, err)
		require.Len(t, records, 1)
		var s dispatch.Stats
		require.NoError(t, json.Unmarshal(records[0], &s))
		require.Len(t, s.Subscriptions, 1000)
		assert.Equal(t, "kafka://public/default/topic-0001", s.Subscriptions[0].Topic)
		assert.Equal(t, "kafka://public/default/topic-1000", s.Subscriptions[999].Topic)
		require.NoError(t, lim.Close())
	})
}
