package quotas_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestManyBackends: with 2,000 backends near their targets, each loaded by 20 of 1,000 ids, all
// report, and the status can be published.
func TestManyBackends(t *testing.T) { manyBackends(t, 2000) }

// TestAccuracyManyBackends: with 10,000, a pass takes less than a second.
func TestAccuracyManyBackends(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		m.AtMost("a pass over 10,000 backends, ms", 1000*manyBackends(m.T, 10_000), 1000)
	})
}

// manyBackends returns how long a pass takes, in seconds.
func manyBackends(t *testing.T, backends int) (fastest float64) {
	const ids, each = 1_000, 20
	var lines strings.Builder
	for i := range ids {
		fmt.Fprintf(&lines, "quota tag:team-%d total=%d\n", i, 4096*(1000+i))
	}
	source := new(permitstest.Policies)
	source.Set(throttletest.SetOf(t, lines.String()))
	var m meter
	store := m.open(t, services.RedisServer(t).URL)
	var publishing sync.WaitGroup
	for worker := range 16 {
		publishing.Go(func() {
			for i := worker; i < backends; i += 16 {
				b := quota.Report{
					Backend: fmt.Sprint("backend-", i), Zone: fmt.Sprint("zone-", i%3), Time: 1,
					Load:  quota.Load{Queue: 900, Target: 800, Spring: 200},
					Costs: map[quota.ID]float64{},
				}
				for j := range each {
					b.Costs[quota.ID(fmt.Sprint("tag:team-", (i*7+j*31)%ids))] = 4096
				}
				name := "backend:" + b.Backend
				text, err := json.Marshal(dispatch.Usage{Replica: name, Backends: []quota.Report{b}})
				assert.NoError(t, err)
				cluster := permits.UsageOf("standalone")
				assert.NoError(t, store.Publish(t.Context(), cluster, name+"|k", text, time.Minute))
			}
		})
	}
	publishing.Wait()
	ctx, stop := context.WithCancel(t.Context())
	keeper := &ratekeeper.Ratekeeper{Policies: source, Permits: store, Name: "k"}
	done := make(chan error, 1)
	go func() { done <- keeper.Run(ctx) }()
	defer func() { stop(); require.NoError(t, <-done) }()
	fastest = math.Inf(1)
	last := 0.0
	for passes := 0; passes < 6; time.Sleep(time.Millisecond) {
		if at := keeper.Status().Time; at != last {
			passes++
			if last > 0 {
				fastest = min(fastest, at-last-1) // a second passes between two
			}
			last = at
		}
	}
	s := keeper.Status()
	assert.Equal(t, backends, s.Replicas)
	require.Eventually(t, func() bool {
		shown, leads, err := ratekeeper.Decided(t.Context(), store, "standalone")
		return err == nil && leads && len(shown.Decisions) > 0 && len(shown.Readers) > 0
	}, throttletest.Patience, 10*time.Millisecond)
	return fastest
}
