package quotas_test

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
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
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
			source := new(permitstest.Policies)
			source.Set(throttletest.SetOf(t, "quota tag:a total=4096000\n"))
			ctx, stop := context.WithCancel(t.Context())
			keeper := &ratekeeper.Ratekeeper{Policies: source, Permits: store, Cluster: services.Name(t)}
			done := make(chan error, 1)
			go func() { done <- keeper.Run(ctx) }()
			defer func() { stop(); require.NoError(t, <-done) }()
			decides := func() bool { return len(keeper.Status().Decisions) > 0 }
			require.Eventually(t, decides, throttletest.Patience, 50*time.Millisecond)
			term := keeper.Status().Term
			time.Sleep(6 * time.Second) // more than the time after which a leader resigns
			assert.Equal(t, term, keeper.Status().Term)
		})
	}
}

// TestLargeReports: a pass reads reports of 6 MB.
func TestLargeReports(t *testing.T) { largeReports(t, 6, "?timeout=10s") }

// TestAccuracyLargeReports: a process accepts 64 MiB of reports, and a pass reads them within the
// default time-outs.
func TestAccuracyLargeReports(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		for scheme, timeouts := range largeReports(m.T, 62, "") {
			m.AtMost("time-outs while 64 MB of reports are read from "+scheme, float64(timeouts), 0)
		}
	})
}

// largeReports has a ratekeeper read reports of a megabyte each from each kind of permit store, and
// returns how many requests have timed out.
func largeReports(t *testing.T, backends int, options string) (timeouts map[string]int) {
	const ids = 9000
	timeouts = map[string]int{}
	for scheme, addr := range map[string]string{
		"redis://": strings.TrimPrefix(services.Redis(t), "redis://"), "etcd://": services.Etcd(t).Endpoint,
	} {
		t.Run(scheme, func(t *testing.T) {
			source := new(permitstest.Policies)
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
			store, err := throttle.OpenPermits(scheme + addr + options)
			require.NoError(t, err)
			defer func() { assert.NoError(t, store.Close()) }()
			var log strings.Builder
			ctx, stop := context.WithCancel(t.Context())
			keeper := &ratekeeper.Ratekeeper{
				Policies: source, Permits: store, Cluster: cluster,
				Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
			}
			done := make(chan error, 1)
			go func() { done <- keeper.Run(ctx) }()
			assert.Eventually(t, func() bool { return keeper.Status().Replicas == backends },
				throttletest.Patience, 50*time.Millisecond)
			stop()
			require.NoError(t, <-done)
			timeouts[scheme] = strings.Count(log.String(), "timeout") + strings.Count(log.String(), "deadline")
		})
	}
	return timeouts
}
