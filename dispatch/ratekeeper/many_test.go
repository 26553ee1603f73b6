package ratekeeper_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestManyEqualIDs: 1,020 ids share a backend. Their quotas add up to 2.4 times its capacity.
func TestManyEqualIDs(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	virtual(t, func(t *testing.T, w *deployment) {
		const n, capacity = 1020, 1020                                  // ids, and requests a second
		w.set("cluster", policy.QuotaSettings{IgnoreZones: new(int64)}) // there is only one
		for i := range n {
			w.set(fmt.Sprint("tag:", i), quotaOf(0, 12*quota.Page/5))
		}
		k, stop := w.keeper("k")
		ctx, cancel := context.WithCancel(t.Context())
		lim := w.limiter(dispatch.Config{})
		db, err := lim.Backend("db", "a")
		require.NoError(t, err)
		var sent atomic.Int64
		for i := range n {
			sub, err := lim.Subscription(orders, fmt.Sprint("group", i), dispatch.WithTag(fmt.Sprint(i)))
			require.NoError(t, err)
			w.wg.Go(func() {
				// The ids start at different times.
				time.Sleep(time.Duration(i*7919%10_000) * time.Millisecond)
				for {
					g, err := sub.Acquire(ctx, 1)
					if err != nil {
						return
					}
					g.Done(1, quota.Page)
					db.Read(sub, quota.Page)
					sent.Add(1)
				}
			})
		}
		const start, measured = 40, 40 // seconds
		load, good := 0.0, 0.0
		for second := range start + measured {
			before := sent.Load()
			time.Sleep(time.Second)
			now := float64(sent.Load()-before) / capacity
			require.NoError(t, db.ReportLoad(quota.Load{Queue: now, Target: 1, Spring: 0.5}))
			if second >= start {
				load += now / measured
				good += min(1, now) / measured
			}
		}
		s := k.Status()
		cancel()
		stop()
		require.NoError(t, lim.Close())
		t.Logf("load %.3f, goodput %.3f", load, good)
		assert.GreaterOrEqual(t, good, 0.9)
		assert.LessOrEqual(t, load, 1.1)
		assert.Zero(t, s.LeftOut)
		require.Len(t, s.Decisions, n)
		for _, d := range s.Decisions {
			require.LessOrEqual(t, d.Smoothed*quota.Page, d.Quota.Total*1.001, "%s exceeds its quota", d.ID)
		}
	})
}

// TestMaxIDs: MaxIDs bounds the ids without a quota that are followed.
func TestMaxIDs(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		ctx, stop := context.WithCancel(t.Context())
		defer func() { stop(); w.wg.Wait() }()
		k := &ratekeeper.Ratekeeper{
			Policies: configstore.Source(w.store), Permits: w.permits, MaxIDs: 3,
		}
		w.wg.Go(func() { assert.NoError(t, k.Run(ctx)) })
		time.Sleep(1500 * time.Millisecond)
		require.Equal(t, 200, post(k, report(t, 0, func(r *quota.Report) {
			r.Costs = map[quota.ID]float64{"tenant:acme": 1}
			for i := range 10 {
				r.Costs[quota.ID(fmt.Sprint("tag:", i))] = float64(i + 2)
			}
		})).Code)
		time.Sleep(1500 * time.Millisecond)
		s := k.Status()
		assert.Equal(t, 7, s.LeftOut)
		assert.Equal(t, 4, s.Tracked, "three, and the one that has a quota")
		require.Len(t, s.Readers, 4)
		assert.InDelta(t, 1.0/(1+10*6.5), s.Readers[3].Busyness, 1e-9, "part of the whole cost")
	})
	k := &ratekeeper.Ratekeeper{
		Policies: configstore.Source(nil), Permits: failing{}, MaxIDs: -1,
	}
	err := k.Run(t.Context())
	assert.EqualError(t, err, "ratekeeper: MaxIDs -1: is invalid: want 1 or more, or 0 for 1000")
}
