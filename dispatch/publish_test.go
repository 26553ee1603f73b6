package dispatch_test

import (
	"context"
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

// TestPublishesAThousand: a status record has 1,000 of the subscriptions that are not idle, those
// that callers wait for first, and the number of the others.
func TestPublishesAThousand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		lim, err := dispatch.Open(t.Context(), dispatch.Config{
			Permits: store, Cluster: "c",
			Policies: dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(20)}),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 1003 {
			sub, err := lim.Subscription(fmt.Sprintf("kafka://public/default/topic-%04d", i), "group")
			require.NoError(t, err)
			switch {
			case i == 0: // it is idle
			case i > 1000: // callers wait
				go func() {
					for err := error(nil); err == nil; {
						_, err = sub.Acquire(ctx, 30)
					}
				}()
			default:
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
		assert.Equal(t, 2, s.More)
		assert.Equal(t, "kafka://public/default/topic-0001", s.Subscriptions[0].Topic)
		assert.Equal(t, "kafka://public/default/topic-1002", s.Subscriptions[999].Topic)
		assert.Equal(t, 1, s.Subscriptions[999].Waiting)
		cancel()
		require.NoError(t, lim.Close())
	})
}
