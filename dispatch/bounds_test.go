package dispatch_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestEndsOfRanges: settings at both ends of their ranges work: no answer of a permit store is
// taken for damage, no state for lost, and permits are granted.
func TestEndsOfRanges(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	settings := []string{
		`"round":"10ms"`, `"round":"10s"`, `"burst":3600000000`, `"weight":0.1`, `"weight":10`,
		`"reserved":"1/h"`, `"reserved":"1000000/s"`, `"byteRate":"1000000000000/s"`, `"maxInFlight":1`,
		`"byteRate":"1000000000000/s","byteBurst":3600000000000000,"round":"10s"`,
		`"ramp":{"from":"1/h","over":"1s"}`, `"ramp":{"from":"1/h","over":"24h","ttl":"1h"}`,
		`"round":"10s","ramp":{"mode":"relaxed","from":"1/h","over":"24h"}`,
		`"sharing":{"mode":"strict","maxReserved":0}`,
		`"sharing":{"mode":"strict","maxReserved":1000000,"permitExpiry":"1m"}`,
		`"round":"10s","sharing":{"mode":"strict","wait":"queue","permitExpiry":"2ms"}`,
		`"sharing":{"mode":"split","poolTTL":"500ms"}`, `"round":"10s","sharing":{"mode":"split","poolTTL":"5m"}`,
		`"sharing":{"mode":"split","replicas":1000000}`,
		`"sharing":{"mode":"groups","groups":["a"],"keepBack":0,"poolTTL":"500ms"}`,
		`"round":"10s","sharing":{"mode":"groups","groups":["a","b"],"keepBack":1,"poolTTL":"5m"}`,
	}
	for _, rate := range []string{"1/h", "1/s", "1000/s", "1000000/s"} {
		for _, more := range settings {
			t.Run(rate+" "+more, func(t *testing.T) {
				p, err := policy.Unmarshal(policy.PolicySection, []byte(`{"schema":2,"messageRate":"`+rate+`",`+more+`}`))
				require.NoError(t, err)
				require.NoError(t, p.Validate(policy.ClusterScope()))
				synctest.Test(t, func(t *testing.T) { testWorks(t, p.(policy.Policy), rate != "1/h") })
			})
		}
	}
}

// testWorks has two replicas use a limit for 20 s, each with a caller that takes what there is.
func testWorks(t *testing.T, p policy.Policy, grants bool) {
	store := memory.New()
	var log strings.Builder
	var lims []*dispatch.Limiter
	var callers sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	granted := make([]int, 2)
	for i := range granted {
		lim, err := dispatch.Open(ctx, dispatch.Config{
			Policies: dispatch.Fixed(p), Permits: store, Group: "a",
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		require.NoError(t, err)
		lims = append(lims, lim)
		sub, err := lim.Subscription("kafka://public/default/orders", "billing")
		require.NoError(t, err)
		callers.Go(func() {
			for ctx.Err() == nil {
				g, err := sub.Acquire(ctx, 1_000_000)
				if err != nil {
					return
				}
				granted[i] += g.N()
				g.Done(g.N(), 100)
				time.Sleep(time.Millisecond)
			}
		})
	}
	callers.Wait()
	for _, lim := range lims {
		assert.Zero(t, lim.Stats().Permits.Errors)
		require.NoError(t, lim.Close())
	}
	if grants && p.Sharing.Mode != policy.Split { // its pool takes poolTTL to form
		assert.NotZero(t, granted[0]+granted[1])
	}
	assert.NotContains(t, log.String(), "level=WARN")
	assert.NotContains(t, log.String(), "level=ERROR")
}
