package dispatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// A lossy store fails the first publications of usage.
type lossy struct {
	*memory.Store
	fails     int // times
	published []dispatch.Usage
}

func (l *lossy) Publish(ctx context.Context, cluster, replica string, text []byte, ttl time.Duration) error {
	if cluster != permits.UsageOf("standalone") {
		return l.Store.Publish(ctx, cluster, replica, text, ttl)
	}
	if l.fails > 0 {
		l.fails--
		return errors.New("the permit store is unavailable")
	}
	var u dispatch.Usage
	err := errors.Join(permits.CheckRecord(text), json.Unmarshal(text, &u))
	l.published = append(l.published, u)
	return err
}

// TestUsageOutlastsAFailedPublish: usage that could not be published is in the next report, which
// covers the time since the last one that succeeded.
func TestUsageOutlastsAFailedPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tag, fails = "tag:orders", 2
		scope, err := policy.ParseScope(tag)
		require.NoError(t, err)
		set, err := policy.NewSet([]policy.Entry{
			{Scope: scope, Settings: policy.Quota{Total: new(int64(1) << 30)}},
		})
		require.NoError(t, err)
		source := new(permitstest.Policies)
		source.Set(set)
		store := &lossy{Store: memory.New(), fails: fails}
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: source, Permits: store})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic, "group", dispatch.WithTag("orders"))
		require.NoError(t, err)
		sink, err := lim.Backend("sink", "a")
		require.NoError(t, err)

		const messages = 6
		got := 0
		for got < messages {
			g, err := sub.Acquire(t.Context(), messages-got)
			require.NoError(t, err)
			got += g.N()
		}
		sink.Wrote(sub, 10*quota.Page)
		time.Sleep((fails + 2) * time.Second)
		require.NoError(t, lim.Close())

		require.NotEmpty(t, store.published)
		first := store.published[0]
		assert.InDelta(t, messages, first.Started[tag]*(fails+1), 1e-6, "%v", first)
		require.Len(t, first.Backends, 1)
		assert.InDelta(t, quota.WriteCost(10*quota.Page), first.Backends[0].Costs[tag]*(fails+1), 1e-6, "%v", first)
		for _, later := range store.published[1:] {
			assert.Zero(t, later.Started[tag], "reported twice")
			assert.Zero(t, later.Backends[0].Costs[tag], "reported twice")
		}
	})
}

// TestUsageOfManyIDs: usage that is too large for one record is published in several ones.
func TestUsageOfManyIDs(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		const ids = 3000
		var entries []policy.Entry
		tag := func(i int) string { return fmt.Sprintf("%0200d", i) }
		for i := range ids {
			scope, err := policy.ParseScope("tag:" + tag(i))
			require.NoError(t, err)
			quota := policy.Quota{Total: new(int64(1) << 40)}
			entries = append(entries, policy.Entry{Scope: scope, Settings: quota})
		}
		set, err := policy.NewSet(entries)
		require.NoError(t, err)
		source := new(permitstest.Policies)
		source.Set(set)
		store := &lossy{Store: memory.New()}
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: source, Permits: store})
		require.NoError(t, err)
		sink, err := lim.Backend("sink", "a")
		require.NoError(t, err)
		for i := range ids {
			sub, err := lim.Subscription(topic, "group", dispatch.WithTag(tag(i)))
			require.NoError(t, err)
			g, err := sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
			g.Done(1, 1)
			sink.Read(sub, 1)
		}
		time.Sleep(1750 * time.Millisecond) // between two reports
		synctest.Wait()
		started, costs := map[quota.ID]float64{}, map[quota.ID]float64{}
		for _, u := range store.published {
			for id, n := range u.Started {
				started[id] += n
			}
			assert.Len(t, u.Backends, 1)
			maps.Copy(costs, u.Backends[0].Costs)
		}
		assert.Len(t, started, ids)
		assert.Len(t, costs, ids)
		status, err := store.Published(t.Context(), "standalone")
		require.NoError(t, err)
		require.Len(t, status, 1)
		var stats dispatch.Stats
		require.NoError(t, json.Unmarshal(status[0], &stats))
		assert.NotEmpty(t, stats.Subscriptions)
		for i := range 10_000 {
			if _, err = lim.Backend(fmt.Sprint("backend-", i), "a"); err != nil {
				break
			}
		}
		assert.ErrorContains(t, err, "there are 10000 others")
		require.NoError(t, lim.Close())
	})
}
