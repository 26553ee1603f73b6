package engine_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestMatchHoldsNoLock: while the most expensive patterns are matched, other calls go on.
func TestMatchHoldsNoLock(t *testing.T) {
	e := engine.Start(engine.Config{
		Store: memory.New(), Cluster: "c", Replica: "r", Log: slog.New(slog.DiscardHandler),
		Rand: rand.New(rand.NewPCG(1, 2)),
	})
	defer e.Close()
	var lines strings.Builder
	for i := range 10 {
		fmt.Fprintf(&lines, "pattern:(?:.*\\w){160}#%d messageRate=%d\n", i, i+1)
	}
	set := throttletest.SetOf(t, lines.String())
	handles := make([]engine.Handle, 5)
	for i := range handles {
		topic, err := policy.ParseTopic(fmt.Sprintf("persistent://public/default/%s%d", strings.Repeat("a", 900), i))
		require.NoError(t, err)
		require.NoError(t, e.Open(&handles[i], resolve.Lane{Topic: topic, Subscription: "s"}))
	}
	applied := make(chan time.Duration)
	go func() {
		start := time.Now()
		e.ApplyPolicies(policy.Snapshot{Set: set, Identity: "store", Revision: 1}, e.Match(set))
		applied <- time.Since(start)
	}()
	longest := time.Duration(0)
	for {
		select {
		case took := <-applied:
			t.Logf("%v to put policies in force, %v for the longest other call", took, longest)
			assert.Less(t, longest, took/10)
			return
		default:
			start := time.Now()
			e.Quotas()
			longest = max(longest, time.Since(start))
			time.Sleep(time.Millisecond)
		}
	}
}
