package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/metrics"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/policy"
)

// open opens a Limiter for as long as the test.
func open(t *testing.T, policies dispatch.PolicySource) *dispatch.Limiter {
	t.Helper()
	lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: policies})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lim.Close()) })
	return lim
}

const orders = "kafka://public/default/orders"

// values gathers all samples of a Limiter by name and labels. The value of a histogram is its
// count.
func values(t *testing.T, lim *dispatch.Limiter) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(metrics.NewCollector(lim)))
	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := []string{strings.TrimPrefix(f.GetName(), "throttle_")}
			for _, l := range m.GetLabel() {
				if l.GetName() != "topic" && l.GetValue() != "" && f.GetName() != "throttle_info" {
					key = append(key, l.GetValue())
				}
			}
			got[strings.Join(key, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue() +
				float64(m.GetHistogram().GetSampleCount())
		}
	}
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	assert.Empty(t, problems)
	return got
}

func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := open(t, dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(1000)}))
		sub, err := lim.Subscription(orders, "billing")
		require.NoError(t, err)
		for range 500 {
			_, err := sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
		}
		unused, err := sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		unused.Done(0, 0)

		got := values(t, lim)
		assert.Equal(t, 501.0, got["permits_granted_total message rate billing"])
		assert.Equal(t, 1.0, got["permits_returned_total message rate billing"])
		assert.Equal(t, 1000.0, got["limit_permits_per_second message rate billing"])
		assert.Equal(t, 1.0, got["limit_revision message rate billing"])
		assert.Equal(t, got["waits_total message rate billing"], got["wait_seconds billing"])
		assert.Greater(t, got["wait_seconds billing"], 0.0)
		assert.Greater(t, got["allocations_total message rate billing"], 0.0)
		assert.GreaterOrEqual(t, got["permit_store_requests_total"], got["allocations_total message rate billing"])
		assert.Equal(t, 1.0, got["policy_revision"])
		assert.Equal(t, 1.0, got["info"])
		assert.Equal(t, 0.0, got["caught_up billing"])
		assert.NotContains(t, got, "backlog_messages billing", "it is unknown")
		for _, name := range []string{
			"permit_store_errors_total", "permit_store_late_replies_total", "permit_store_unavailable",
			"policy_store_unavailable", "policies_held", "permit_store_latency_seconds", "invalid_policies",
			"exempt billing", "waiting_calls billing",
		} {
			assert.Contains(t, got, name)
			assert.Equal(t, 0.0, got[name], name)
		}

		assert.NotContains(t, got, "shadowed_messages_total message rate billing", "it is enforced")

		sub.ReportBacklog(7)
		got = values(t, lim)
		assert.Equal(t, 7.0, got["backlog_messages billing"])
		assert.Equal(t, 1.0, got["caught_up billing"])
		assert.Equal(t, 1.0, got["exempt billing"])
	})
}

// TestShadowed: what limits in shadow mode would hold up is counted for each of them.
func TestShadowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := open(t, dispatch.Fixed(policy.Policy{
			MessageRate: policy.PerSecond(10), ByteRate: policy.PerSecond(1 << 30), Mode: policy.Shadow,
			MaxInFlight: new(int64(30)),
		}))
		sub, err := lim.Subscription(orders, "billing")
		require.NoError(t, err)
		for range 100 {
			_, err := sub.AcquireSized(t.Context(), 100)
			require.NoError(t, err)
		}
		got := values(t, lim)
		assert.InDelta(t, 90, got["shadowed_messages_total message rate billing"], 10)
		assert.Equal(t, 70.0, got["shadowed_messages_total messages in flight billing"])
		assert.Contains(t, got, "shadowed_messages_total byte rate billing")
	})
}

// TestGrantedNeverFalls: returned permits do not lower a counter, which would look like a restart.
func TestGrantedNeverFalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := open(t, dispatch.Fixed(policy.Policy{ByteRate: policy.PerSecond(1 << 20)}))
		sub, err := lim.Subscription(orders, "billing")
		require.NoError(t, err)
		last := 0.0
		for i := range 200 {
			g, err := sub.Acquire(t.Context(), 10)
			require.NoError(t, err)
			for _, settled := range []bool{false, true} {
				if settled {
					g.Done(i%11, int64(i%7)*4096) // more bytes than charged, and fewer
				}
				now := values(t, lim)["permits_granted_total byte rate billing"]
				require.GreaterOrEqual(t, now, last)
				last = now
			}
		}
	})
}

func TestHistogramIsCumulative(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := policy.Rate{Permits: 1, Period: 2 * time.Second}
		lim := open(t, dispatch.Fixed(policy.Policy{MessageRate: slow}))
		sub, err := lim.Subscription(orders, "billing")
		require.NoError(t, err)
		for range 3 {
			_, err := sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
		}
		w := httptest.NewRecorder()
		metrics.Handler(lim).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		labels := `{owner="",subscription="billing",topic="` + orders + `"`
		assert.Contains(t, w.Body.String(), "throttle_wait_seconds_bucket"+labels+`,le="3"} 3`)
		assert.Contains(t, w.Body.String(), "throttle_wait_seconds_bucket"+labels+`,le="+Inf"} 3`)
		assert.Contains(t, w.Body.String(), "throttle_wait_seconds_count"+labels+"} 3")
	})
}

func TestFaultsOfPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, _ := policy.NewSet([]policy.Entry{{
			Scope: policy.Scope{Kind: policy.UnreadableKind, Pattern: "?"}, Err: errors.New("invalid"),
		}})
		source := new(permitstest.Policies)
		source.Set(policy.Single(policy.Policy{}))
		source.Set(set)
		lim := open(t, source)
		source.Fail(errors.New("unavailable"))
		synctest.Wait()
		got := values(t, lim)
		assert.Equal(t, 2.0, got["policy_revision"])
		assert.Equal(t, 1.0, got["policy_store_unavailable"])
		assert.Equal(t, 0.0, got["policies_held"])
		assert.Equal(t, 1.0, got["invalid_policies"])
		assert.Equal(t, float64(len(set.Entries())), got["policies"])
		assert.Contains(t, got, "permit_store_damaged_total")
		source.Fail(&policy.HeldError{Fault: policy.FaultLost, Text: "it is empty"})
		synctest.Wait()
		got = values(t, lim)
		assert.Equal(t, 1.0, got["policy_store_unavailable"])
		assert.Equal(t, 1.0, got["policies_held"])
		assert.Equal(t, float64(len(set.Entries())), got["policies"], "the last ones stay in force")
	})
}

func ExampleHandler() {
	lim, err := dispatch.Open(context.Background(), dispatch.Config{
		Policies: dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(1000)}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = lim.Close() }()
	if _, err := lim.Subscription("kafka://public/default/orders", "billing"); err != nil {
		fmt.Println(err)
		return
	}
	w := httptest.NewRecorder()
	metrics.Handler(lim).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "throttle_limit_permits_per_second") {
			fmt.Print(line)
		}
	}
	// Output: throttle_limit_permits_per_second{limit="message rate",owner="",subscription="billing",topic="kafka://public/default/orders"} 1000
}

// TestLabelsAreEscaped: a name with quotes cannot end its label, and begin another one or a line.
func TestLabelsAreEscaped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := open(t, dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(1000)}))
		sub, err := lim.Subscription(orders, `a"} 1 \`)
		require.NoError(t, err)
		_, err = sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		_, err = lim.Subscription(orders, "a\nthrottle_info 1")
		require.Error(t, err, "control characters are refused")
		w := httptest.NewRecorder()
		metrics.Handler(lim).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		assert.Contains(t, w.Body.String(), `subscription="a\"} 1 \\"`)
	})
}
