package dispatch_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
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

// TestRevisionOutOfBounds: policies of a revision that no permit store accepts are not followed.
func TestRevisionOutOfBounds(t *testing.T) {
	for _, s := range []policy.Snapshot{
		{Epoch: 1e13 + 1}, {Epoch: -1}, {Revision: 1e14 + 1}, {Revision: -1},
	} {
		s.Set, s.Identity = policy.Single(perSecond(7)), "test"
		source := iterSource(func(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
			return func(yield func(policy.Snapshot, error) bool) {
				yield(s, nil)
				<-ctx.Done()
			}
		})
		_, err := dispatch.Open(t.Context(), dispatch.Config{Policies: source})
		assert.ErrorContains(t, err, "want 0..1e+13 and 0..1e+14")
	}
}

// TestFixedIgnoresTheCache: the policies of a program that has them from Fixed are the latest, even
// if its clock was ahead when it last ran. The cache file still has the number of replicas.
func TestFixedIgnoresTheCache(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache.json")
	start := func(rate int64) {
		lim, err := dispatch.Open(t.Context(), dispatch.Config{
			Policies: dispatch.Fixed(perSecond(rate)), CacheFile: cache,
		})
		require.NoError(t, err)
		_, err = lim.Subscription(topic, "group")
		require.NoError(t, err)
		require.NoError(t, lim.Ready())
		assert.InDelta(t, rate, lim.Stats().Subscriptions[0].Limits[0].Rate, 0)
		require.NoError(t, lim.Close())
	}
	start(7)
	text, err := os.ReadFile(cache)
	require.NoError(t, err)
	ahead := regexp.MustCompile(`"epoch":\d+`).ReplaceAll(text, []byte(`"epoch":9000000000000`))
	require.NotEqual(t, text, ahead)
	require.NoError(t, os.WriteFile(cache, ahead, 0o600))
	start(9)
}

// TestTemporaryPoliciesEnd: a temporary policy ends at its time, also while the policy store is
// unavailable or has others that must not replace the last ones, and after the source has ended.
func TestTemporaryPoliciesEnd(t *testing.T) {
	for _, name := range []string{"refused", "ended", "unavailable"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				set, err := policy.NewSet([]policy.Entry{{Settings: perSecond(7)}, {
					Settings: perSecond(70), Temporary: true, Field: "messageRate",
					Expires: time.Now().Add(time.Minute),
				}})
				require.NoError(t, err)
				source := iterSource(func(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
					return func(yield func(policy.Snapshot, error) bool) {
						yield(policy.Snapshot{Set: set, Identity: "a", Epoch: 1, Revision: 10}, nil)
						for i := range int64(3) {
							time.Sleep(time.Second)
							if name == "unavailable" {
								yield(policy.Snapshot{}, errors.New("no route to host"))
								continue
							}
							backup := policy.Single(perSecond(1000 + i))
							yield(policy.Snapshot{Set: backup, Identity: "a", Epoch: 1, Revision: 5 + i}, nil)
						}
						if name != "ended" {
							<-ctx.Done()
						}
					}
				})
				lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: source})
				require.NoError(t, err)
				_, err = lim.Subscription(topic, "group")
				require.NoError(t, err)
				rate := func() float64 { return lim.Stats().Subscriptions[0].Limits[0].Rate }
				time.Sleep(time.Minute - time.Millisecond)
				assert.InDelta(t, 70, rate(), 0)
				require.Error(t, lim.Ready())
				time.Sleep(2 * time.Millisecond)
				assert.InDelta(t, 7, rate(), 0)
				require.Error(t, lim.Ready())
				require.NoError(t, lim.Close())
			})
		})
	}
}
