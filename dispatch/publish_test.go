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

// TestIdleReplicasAreCounted: a replica whose subscriptions are idle is counted as long as it runs,
// with a request every ten seconds; one without limits is not.
func TestIdleReplicasAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		counted := func() int {
			records, err := store.Published(t.Context(), "c")
			require.NoError(t, err)
			return len(records)
		}
		open := func(p policy.Policy) (*dispatch.Limiter, *dispatch.Subscription) {
			lim, err := dispatch.Open(t.Context(), dispatch.Config{
				Permits: store, Cluster: "c", Policies: dispatch.Fixed(p),
			})
			require.NoError(t, err)
			sub, err := lim.Subscription("kafka://public/default/orders", "group")
			require.NoError(t, err)
			return lim, sub
		}
		free, _ := open(policy.Policy{})
		idle, sub := open(policy.Policy{MessageRate: policy.PerSecond(20)})
		time.Sleep(time.Second)
		for range 100 {
			time.Sleep(time.Second)
			synctest.Wait()
			assert.Equal(t, 1, counted())
		}
		_, err := sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		for range 20 { // it uses permits, and then becomes idle
			time.Sleep(time.Second)
			synctest.Wait()
			assert.Equal(t, 1, counted())
		}
		require.NoError(t, idle.Close())
		time.Sleep(31 * time.Second)
		assert.Zero(t, counted())
		require.NoError(t, free.Close())
	})
}

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
