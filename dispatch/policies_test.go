package dispatch_test

import (
	"context"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestPolicySourceThatEnds: operators see an error when a source ends, and none when a Limiter
// ends.
func TestPolicySourceThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := iterSource(func(context.Context) iter.Seq2[policy.Snapshot, error] {
			return func(yield func(policy.Snapshot, error) bool) {
				yield(policy.Snapshot{Set: policy.Single(perSecond(7)), Identity: "test", Revision: 1}, nil)
				time.Sleep(time.Second)
			}
		})
		var log strings.Builder
		logger := slog.New(slog.NewTextHandler(&log, nil))
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: source, Logger: logger})
		require.NoError(t, err)
		_, err = lim.Subscription(topic, "group")
		require.NoError(t, err)
		assert.Empty(t, lim.Stats().PolicyError)
		time.Sleep(time.Second)
		synctest.Wait()
		const want = "the policy source has ended"
		assert.Contains(t, lim.Stats().PolicyError, want)
		assert.Equal(t, 1, strings.Count(log.String(), want), "%s", &log)
		rate := lim.Stats().Subscriptions[0].Limits[0].Rate
		assert.InDelta(t, 7, rate, 0, "the last policies stay in force")
		require.NoError(t, lim.Close())

		log.Reset()
		fixed := dispatch.Fixed(perSecond(7)) // ends with the Limiter
		lim, err = dispatch.Open(t.Context(), dispatch.Config{Policies: fixed, Logger: logger})
		require.NoError(t, err)
		require.NoError(t, lim.Close())
		assert.Empty(t, log.String())
	})
}
