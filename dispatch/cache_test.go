package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/policy"
)

func TestCacheFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "policies.json")
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("etcd is unavailable")
		source := new(permitstest.Policies)
		source.Fail(away)
		_, err := dispatch.Open(t.Context(), dispatch.Config{Policies: source})
		require.ErrorIs(t, err, away, "without a cache file")
		_, err = dispatch.Open(t.Context(), dispatch.Config{Policies: source, CacheFile: name})
		require.ErrorIs(t, err, os.ErrNotExist)

		source.Set(policy.Single(perSecond(7)))
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: source, CacheFile: name})
		require.NoError(t, err)
		require.NoError(t, lim.Close())
		source.Fail(away)

		var log strings.Builder
		lim, err = dispatch.Open(t.Context(), dispatch.Config{
			Policies: source, CacheFile: name, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		require.NoError(t, err)
		_, err = lim.Subscription(topic, "group")
		require.NoError(t, err)
		assert.InDelta(t, 7, lim.Stats().Subscriptions[0].Limits[0].Rate, 0)
		assert.Contains(t, log.String(), "cache file")
		assert.Equal(t, away.Error(), lim.Stats().PolicyError)
		source.Set(policy.Single(perSecond(9))) // the store is back
		synctest.Wait()
		assert.InDelta(t, 9, lim.Stats().Subscriptions[0].Limits[0].Rate, 0)
		assert.Empty(t, lim.Stats().PolicyError)
		require.NoError(t, lim.Close())
	})
}

// TestOpenWaitsForPolicies: Open waits for a store that does not answer, for a shorter time if
// there is a cache file.
func TestOpenWaitsForPolicies(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "policies.json")
	cached, err := policy.MarshalSnapshot(policy.Snapshot{
		Set: policy.Single(perSecond(7)), Identity: "test", Revision: 1,
	})
	require.NoError(t, err)
	timedOut := fmt.Errorf("etcd: %w", context.DeadlineExceeded)
	refused := errors.New("wrong password")
	for _, c := range []struct {
		name  string
		says  error // of the store after 300 ms; nil: nothing
		cfg   dispatch.Config
		ctx   time.Duration
		takes time.Duration
		wants string // of the error; "" = it opens
	}{
		{"silent", nil, dispatch.Config{}, 0, 5 * time.Second,
			"no policies after 5s: the policy store has not answered: start the policy store"},
		{"time-out", timedOut, dispatch.Config{}, 0, 5 * time.Second,
			"no policies after 5s: read the policies: etcd: context deadline exceeded"},
		{"refused", refused, dispatch.Config{}, 0, 300 * time.Millisecond, "wrong password"},
		{"option", nil, dispatch.Config{OpenTimeout: 400 * time.Millisecond}, 0, 400 * time.Millisecond,
			"no policies after 400ms"},
		{"ctx", timedOut, dispatch.Config{}, 2 * time.Second, 2 * time.Second,
			"no policies after 2s: context deadline exceeded; last: read the policies: etcd"},
		{"cache", nil, dispatch.Config{CacheFile: cache}, 0, time.Second, ""},
		{"cache and time-out", timedOut, dispatch.Config{CacheFile: cache}, 0, time.Second, ""},
		{"cache and option", timedOut, dispatch.Config{CacheFile: cache, OpenTimeout: 3 * time.Second}, 0,
			3 * time.Second, ""},
		{"cache, and refused", refused, dispatch.Config{CacheFile: cache}, 0, 300 * time.Millisecond, ""},
		{"no such cache yet", nil, dispatch.Config{CacheFile: cache + "x"}, 0, 5 * time.Second, "cache file: open"},
		{"negative", nil, dispatch.Config{OpenTimeout: -1}, 0, 0, "OpenTimeout -1ns: is negative"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(cache, cached, 0o600))
			synctest.Test(t, func(t *testing.T) {
				later := new(permitstest.Policies)
				later.Set(policy.Single(perSecond(7))) // the revision of the cache file
				later.Fail(c.says)
				c.cfg.Policies = iterSource(func(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
					time.Sleep(300 * time.Millisecond)
					return later.Snapshots(ctx)
				})
				ctx, cancel := t.Context(), func() {}
				if c.ctx > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.ctx)
				}
				defer cancel()
				start := time.Now()
				lim, err := dispatch.Open(ctx, c.cfg)
				assert.Equal(t, c.takes, time.Since(start))
				if c.wants != "" {
					require.ErrorContains(t, err, c.wants)
					return
				}
				require.NoError(t, err)
				_, err = lim.Subscription(topic, "group")
				require.NoError(t, err)
				rate := func() float64 { return lim.Stats().Subscriptions[0].Limits[0].Rate }
				assert.InDelta(t, 7, rate(), 0)
				assert.NotEmpty(t, lim.Stats().PolicyError)
				later.Set(policy.Single(perSecond(9)))
				synctest.Wait()
				assert.InDelta(t, 9, rate(), 0, "a store that comes later is followed")
				assert.Empty(t, lim.Stats().PolicyError)
				require.NoError(t, lim.Close())
			})
		})
	}
}

func TestCachedPoliciesEndInTime(t *testing.T) {
	name := filepath.Join(t.TempDir(), "policies.json")
	synctest.Test(t, func(t *testing.T) {
		temporary := policy.Entry{
			Settings: perSecond(70), Temporary: true, Field: "messageRate", Expires: time.Now().Add(time.Minute),
		}
		set, err := policy.NewSet([]policy.Entry{{Settings: perSecond(7)}, temporary})
		require.NoError(t, err)
		text, err := policy.MarshalSnapshot(policy.Snapshot{Set: set, Identity: "test", Revision: 3000})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(name, text, 0o600))
		source := new(permitstest.Policies)
		source.Fail(errors.New("away"))
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: source, CacheFile: name})
		require.NoError(t, err)
		_, err = lim.Subscription(topic, "group")
		require.NoError(t, err)
		limit := func() dispatch.LimitStats { return lim.Stats().Subscriptions[0].Limits[0] }
		time.Sleep(time.Minute - time.Millisecond)
		assert.InDelta(t, 70, limit().Rate, 0)
		assert.Equal(t, int64(3000), limit().Revision)
		time.Sleep(2 * time.Millisecond)
		assert.InDelta(t, 7, limit().Rate, 0)
		assert.Equal(t, int64(3001), limit().Revision, "a permit store takes no other rate of the same revision")
		assert.NotEmpty(t, lim.Stats().PolicyError)
		require.NoError(t, lim.Close())
	})
}
