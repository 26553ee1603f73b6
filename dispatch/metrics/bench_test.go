package metrics_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/metrics"
	"github.com/dispatchthrottle/throttle/policy"
)

// BenchmarkMemory measures 10,000 topics with a limit, 1,000 of them active, and their metrics.
// B/topic is the memory between two scrapes; B/topic-gathered includes the samples of one scrape.
func BenchmarkMemory(b *testing.B) {
	const topics, active = 10_000, 1000
	b.Run("throttle", func(b *testing.B) {
		for b.Loop() {
			policies := dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(1000)})
			lim, err := dispatch.Open(b.Context(), dispatch.Config{Policies: policies})
			require.NoError(b, err)
			registry := prometheus.NewRegistry()
			require.NoError(b, registry.Register(metrics.NewCollector(lim)))
			handler := metrics.Handler(lim)
			before := heap()
			subs := make([]*dispatch.Subscription, topics)
			for i := range subs {
				subs[i], err = lim.Subscription(fmt.Sprintf("kafka://public/default/topic-%d", i), "group")
				require.NoError(b, err)
			}
			for _, sub := range subs[:active] {
				_, err := sub.Acquire(b.Context(), 1)
				require.NoError(b, err)
			}
			scrape := httptest.NewRecorder()
			scrape.Body = nil
			handler.ServeHTTP(scrape, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			b.ReportMetric(0, "ns/op")
			b.ReportMetric((heap()-before)/topics, "B/topic")
			families, err := registry.Gather()
			require.NoError(b, err)
			b.ReportMetric((heap()-before)/topics, "B/topic-gathered")
			runtime.KeepAlive(families)
			runtime.KeepAlive(subs)
			require.NoError(b, lim.Close())
		}
	})
}

func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
