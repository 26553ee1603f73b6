package ratekeeper_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestFarPermitStore: a process that is only a ratekeeper, and allocates nothing, adapts to a
// permit store that answers later than the default time-out.
func TestFarPermitStore(t *testing.T) {
	for scheme, upstream := range map[string]string{
		"redis://": strings.TrimPrefix(services.Redis(t), "redis://"), "etcd://": services.Etcd(t).Endpoint,
	} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			proxy := services.NewProxy(t, upstream)
			proxy.Latency(125 * time.Millisecond)
			store, err := throttle.OpenPermits(scheme + proxy.Addr)
			require.NoError(t, err)
			defer func() { assert.NoError(t, store.Close()) }()
			source := new(throttletest.Policies)
			source.Set(throttletest.SetOf(t, "quota tag:a total=4096000\n"))
			ctx, stop := context.WithCancel(t.Context())
			keeper := &ratekeeper.Ratekeeper{Policies: source, Permits: store, Cluster: services.Name(t)}
			done := make(chan error, 1)
			go func() { done <- keeper.Run(ctx) }()
			defer func() { stop(); require.NoError(t, <-done) }()
			decides := func() bool { return len(keeper.Status().Decisions) > 0 }
			require.Eventually(t, decides, 30*time.Second, 50*time.Millisecond)
			term := keeper.Status().Term
			time.Sleep(6 * time.Second) // more than the time after which a leader resigns
			assert.Equal(t, term, keeper.Status().Term)
		})
	}
}

// TestLargeReports: a process accepts 64 MiB of reports, and a pass reads them within the default
// time-outs.
func TestLargeReports(t *testing.T) {
	const backends, ids = 62, 9000
	for scheme, addr := range map[string]string{
		"redis://": strings.TrimPrefix(services.Redis(t), "redis://"), "etcd://": services.Etcd(t).Endpoint,
	} {
		t.Run(scheme, func(t *testing.T) {
			source := new(throttletest.Policies)
			source.Set(throttletest.SetOf(t, "quota tag:a total=4096000\n"))
			patient, err := throttle.OpenPermits(scheme + addr + "?timeout=10s")
			require.NoError(t, err)
			defer func() { assert.NoError(t, patient.Close()) }()
			cluster := services.Name(t)
			for i := range backends {
				report := quota.Report{
					Backend: fmt.Sprint("b", i), Zone: "z", Time: 1,
					Load: quota.Load{Queue: 1, Target: 800, Spring: 200}, Costs: map[quota.ID]float64{},
				}
				for j := range ids {
					report.Costs[quota.ID(fmt.Sprint("tag:", strings.Repeat("x", 100), j))] = 4096
				}
				usage := dispatch.Usage{Replica: "backend:" + report.Backend, Backends: []quota.Report{report}}
				text, err := json.Marshal(usage)
				require.NoError(t, err)
				require.NoError(t, patient.Publish(t.Context(), permits.UsageOf(cluster), report.Backend, text, time.Minute))
			}
			store, err := throttle.OpenPermits(scheme + addr)
			require.NoError(t, err)
			defer func() { assert.NoError(t, store.Close()) }()
			start := time.Now()
			records, err := store.Published(t.Context(), permits.UsageOf(cluster))
			require.NoError(t, err)
			t.Logf("%d records in %v, then the time-out is %v", len(records), time.Since(start), store.Timeout())
			var log strings.Builder
			ctx, stop := context.WithCancel(t.Context())
			keeper := &ratekeeper.Ratekeeper{
				Policies: source, Permits: store, Cluster: cluster,
				Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
			}
			done := make(chan error, 1)
			go func() { done <- keeper.Run(ctx) }()
			assert.Eventually(t, func() bool { return keeper.Status().Replicas == backends },
				20*time.Second, 50*time.Millisecond)
			stop()
			require.NoError(t, <-done)
			assert.NotContains(t, log.String(), "timeout")
			assert.NotContains(t, log.String(), "deadline")
		})
	}
}
