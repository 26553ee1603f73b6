package processes

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// changes sets a new limit n times. For each replica and change, it returns the time from etcd's
// answer until the limit was in force.
func changes(tb testing.TB, n int) (took []time.Duration) {
	tb.Helper()
	ctx := tb.Context()
	url, redis := services.EtcdURL(tb), services.Redis(tb)
	store, err := throttle.OpenPolicies(ctx, url)
	require.NoError(tb, err)
	defer func() { assert.NoError(tb, store.Close()) }()
	_, err = store.Adopt(ctx, configstore.Adoption{})
	require.NoError(tb, err)
	var limiters []*dispatch.Limiter
	for range 8 {
		lim, err := throttle.Open(ctx, url, redis, throttle.WithCluster(services.Name(tb)),
			throttle.WithOpenTimeout(throttletest.Patience))
		require.NoError(tb, err)
		defer func() { assert.NoError(tb, lim.Close()) }()
		_, err = lim.Subscription("kafka://public/default/orders", "group")
		require.NoError(tb, err)
		limiters = append(limiters, lim)
	}
	for i := range n {
		rate := policy.PerSecond(int64(1000 + i))
		_, err := configstore.Edit(ctx, store, configstore.By{}, func(s configstore.Snapshot) ([]configstore.Change, error) {
			return s.Set(policy.ClusterScope(), policy.Policy{MessageRate: rate}), nil
		})

		require.NoError(tb, err)
		answered := time.Now()
		for _, lim := range limiters {
			for {
				limits := lim.Stats().Subscriptions[0].Limits
				if len(limits) == 1 && limits[0].Rate == rate.PerSec() {
					break
				}
				require.Less(tb, time.Since(answered), throttletest.Patience)
				time.Sleep(100 * time.Microsecond)
			}
			took = append(took, time.Since(answered))
		}
	}
	slices.Sort(took)
	return took
}

// TestChange: a change is in force on every replica.
func TestChange(t *testing.T) {
	t.Parallel()
	changes(t, 3)
}

func BenchmarkPolicyChange(b *testing.B) {
	b.Run("throttle", func(b *testing.B) {
		for b.Loop() {
			took := changes(b, 100)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(percentile(took, 0.5).Seconds()*1000, "ms-in-force-median")
			b.ReportMetric(percentile(took, 0.99).Seconds()*1000, "ms-in-force-p99")
		}
	})
}
