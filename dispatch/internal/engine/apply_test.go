package engine_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// besideMatch puts the most expensive patterns in force and returns how long that took, and how
// many other calls returned meanwhile, with the time of the longest.
func besideMatch(t *testing.T) (took time.Duration, calls int, longest time.Duration) {
	t.Helper()
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
		require.NoError(t, e.Open(&handles[i], resolve.LaneID{Topic: topic, Subscription: "s"}))
	}
	applied := make(chan time.Duration)
	go func() {
		start := time.Now()
		e.ApplyPolicies(policy.Snapshot{Set: set, Identity: "store", Revision: 1}, e.Match(set))
		applied <- time.Since(start)
	}()
	for ; ; calls++ {
		select {
		case took = <-applied:
			return took, calls, longest
		default:
			start := time.Now()
			e.Quotas()
			longest = max(longest, time.Since(start))
			time.Sleep(time.Millisecond)
		}
	}
}

// TestMatchHoldsNoLock: other calls return before the most expensive patterns are matched.
func TestMatchHoldsNoLock(t *testing.T) {
	throttletest.Until(t, "ten calls return before patterns are matched", func() bool {
		_, calls, _ := besideMatch(t) // one or two may return before Match begins
		return calls >= 10
	})
}

// TestAccuracyMatch: matching delays no other call.
func TestAccuracyMatch(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		took, _, longest := besideMatch(m.T)
		m.AtMost("longest other call, % of matching", 100*longest.Seconds()/took.Seconds(), 10)
	})
}
