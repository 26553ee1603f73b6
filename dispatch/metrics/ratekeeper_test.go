package metrics_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/metrics"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/policy"
)

func TestRatekeeperCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, permits := configstore.NewMemory(), memory.New()
		_, err := configstore.Edit(t.Context(), store, configstore.By{}, func(s configstore.Snapshot) ([]configstore.Change, error) {
			return append(s.Set(policy.TagScope("bulk"), policy.Quota{
				Reserved: new(int64(10 * quota.Page)), Total: new(int64(100 * quota.Page)),
			}), s.Set(policy.ClusterScope(), policy.QuotaSettings{IgnoreZones: new(int64(0))})...), nil
		})
		require.NoError(t, err)
		k := &ratekeeper.Ratekeeper{Policies: configstore.Source(store), Permits: permits, Name: "k"}
		samples := func() map[string]float64 {
			registry := prometheus.NewPedanticRegistry()
			require.NoError(t, registry.Register(metrics.NewRatekeeperCollector(k)))
			problems, err := testutil.GatherAndLint(registry)
			require.NoError(t, err)
			assert.Empty(t, problems)
			w := httptest.NewRecorder()
			metrics.RatekeeperHandler(k).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			found := map[string]float64{}
			for line := range strings.Lines(w.Body.String()) {
				if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
					found[strings.TrimPrefix(name, "throttle_")], err = strconv.ParseFloat(value, 64)
					require.NoError(t, err)
				}
			}
			return found
		}
		assert.Equal(t, map[string]float64{"ratekeeper_term": 0}, samples(), "it does not lead")

		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { assert.NoError(t, k.Run(ctx)) })
		lim, err := dispatch.Open(t.Context(), dispatch.Config{
			Policies: configstore.Source(store), Permits: permits,
		})
		require.NoError(t, err)
		sub, err := lim.Subscription(orders, "billing", dispatch.WithTag("bulk"))
		require.NoError(t, err)
		broker, err := lim.Backend("broker", "a")
		require.NoError(t, err)
		reading, stopReading := context.WithCancel(t.Context())
		running.Go(func() {
			for {
				if _, err := sub.Acquire(reading, 1); err != nil {
					return
				}
				broker.Read(sub, 2*quota.Page)
			}
		})
		time.Sleep(20 * time.Second)
		calm := samples()
		require.NoError(t, broker.ReportLoad(quota.Load{Queue: 1000, Target: 800, Spring: 200}))
		time.Sleep(3500 * time.Millisecond)
		synctest.Wait()
		busy := samples()
		stopReading()
		stop()
		running.Wait()
		require.NoError(t, lim.Close())
		require.NoError(t, store.Close())

		for name, want := range map[string]float64{
			"ratekeeper_term": 1000, "ratekeeper_tracked_ids": 1,
			`quota_average_cost_bytes{id="tag:bulk"}`:           8192,
			`quota_cost_bytes_per_second{id="tag:bulk"}`:        100 * quota.Page,
			`quota_reserved_messages_per_second{id="tag:bulk"}`: 5,
			`quota_desired_messages_per_second{id="tag:bulk"}`:  50,
			`quota_target_messages_per_second{id="tag:bulk"}`:   50,
			`quota_messages_per_second{id="tag:bulk"}`:          50,
		} {
			assert.InEpsilon(t, want, calm[name], 0.05, name)
		}
		assert.Positive(t, calm[`quota_started_messages_per_second{id="tag:bulk"}`])
		assert.Contains(t, calm, `quota_busy{id="tag:bulk"}`)
		assert.Zero(t, calm[`quota_busy{id="tag:bulk"}`])
		assert.Len(t, calm, 11, "no backend limits it or is busy: %v", calm)

		assert.Len(t, busy, 14, "%v", busy)
		assert.InDelta(t, 1, busy[`quota_busy{id="tag:bulk"}`], 0)
		assert.InDelta(t, 1, busy[`busy_reader_cost_ratio{backend="broker",id="tag:bulk",zone="a"}`], 0)
		assert.Positive(t, busy[`busy_reader_cost_bytes_per_second{backend="broker",id="tag:bulk",zone="a"}`])
		limiting := busy[`quota_limiting_messages_per_second{id="tag:bulk"}`]
		assert.Positive(t, limiting)
		assert.Less(t, limiting, busy[`quota_desired_messages_per_second{id="tag:bulk"}`])
	})
}
