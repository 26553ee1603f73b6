package processes

import (
	"os/exec"
	"path/filepath"
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

// A setter sets the limit of the cluster in the policy store at a URL.
type setter = func(tb testing.TB, url string, rate policy.Rate)

// edits is a setter in this process.
func edits(tb testing.TB, url string, rate policy.Rate) {
	store, err := throttle.OpenPolicies(tb.Context(), url)
	require.NoError(tb, err)
	defer func() { assert.NoError(tb, store.Close()) }()
	_, err = configstore.Edit(tb.Context(), store, configstore.By{}, func(s configstore.Snapshot) ([]configstore.Change, error) {
		return s.Set(policy.ClusterScope(), policy.Policy{MessageRate: rate}), nil
	})
	require.NoError(tb, err)
}

// command returns a setter that is a process of throttle-admin.
func command(tb testing.TB) setter {
	admin := filepath.Join(tb.TempDir(), "throttle-admin")
	out, err := exec.Command("go", "build", "-o", admin, "../../cmd/throttle-admin").CombinedOutput()
	require.NoError(tb, err, "%s", out)
	return func(tb testing.TB, url string, rate policy.Rate) {
		cmd := exec.Command(admin, "set-msg-rate", "cluster", rate.String(), "--policies", url, "-m", "a test")
		out, err := cmd.CombinedOutput()
		require.NoError(tb, err, "%s", out)
	}
}

// changes sets a new limit n times. For each of eight replicas and change, it returns the time from
// the end of set until the limit was in force, and from its start.
func changes(tb testing.TB, n int, set setter) (fromEnd, fromStart []time.Duration) {
	tb.Helper()
	ctx := tb.Context()
	url, redis := services.EtcdURL(tb), services.Redis(tb)
	edits(tb, url, policy.PerSecond(999))
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
		start := time.Now()
		set(tb, url, rate)
		end := time.Now()
		for _, lim := range limiters {
			for {
				limits := lim.Stats().Subscriptions[0].Limits
				if len(limits) == 1 && limits[0].Rate == rate.PerSec() {
					break
				}
				require.Less(tb, time.Since(end), throttletest.Patience)
				time.Sleep(100 * time.Microsecond)
			}
			fromEnd, fromStart = append(fromEnd, time.Since(end)), append(fromStart, time.Since(start))
		}
	}
	slices.Sort(fromEnd)
	slices.Sort(fromStart)
	return fromEnd, fromStart
}

// TestChange: a change is in force on every replica.
func TestChange(t *testing.T) {
	t.Parallel()
	changes(t, 3, edits)
}

func BenchmarkPolicyChange(b *testing.B) {
	b.Run("throttle", func(b *testing.B) {
		for b.Loop() {
			took, _ := changes(b, 100, edits)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(percentile(took, 0.5).Seconds()*1000, "ms-in-force-median")
			b.ReportMetric(percentile(took, 0.99).Seconds()*1000, "ms-in-force-p99")
		}
	})
}
