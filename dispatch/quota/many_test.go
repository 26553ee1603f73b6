package quota_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// TestManyEqualIDs: the quotas add up to 2.4 times the backend's capacity, and there are more ids
// than MaxIDs.
func TestManyEqualIDs(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	for _, n := range []int{1020, 2040, 5000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			const capacity = 2000.0 // pages a second
			each := 2.4 * capacity / float64(n)
			w := newSimulation(t, 1, capacity)
			w.keeper.IgnoreZones = -1 // there is only one
			for i := range n {
				id := quota.ID(fmt.Sprint("tag:", i))
				w.Clients = append(w.Clients, reads(id, 100*each, 3))
				w.quota(id, each, 0)
			}
			for range 15 {
				w.second()
			}
			good := 0.0
			for range 45 {
				w.second()
				assert.InDelta(t, 1, w.step.Load[0], 0.1)
				good += min(1, w.step.Load[0]) / 45
				for _, d := range w.step.Decisions {
					require.LessOrEqual(t, d.Smoothed*3, each*1.001, "%s exceeds its quota", d.ID)
					require.InEpsilon(t, w.step.Decisions[0].Smoothed, d.Smoothed, 0.05, "%s is not equal", d.ID)
				}
			}
			assert.GreaterOrEqual(t, good, 0.9)
			assert.Zero(t, w.keeper.LeftOut(), "all have a quota")
		})
	}
}

// TestQuotasBesideOtherIDs: ids with a quota are followed however little they cost. Of the others,
// the costliest are followed, and the cost of the rest counts as load by others.
func TestQuotasBesideOtherIDs(t *testing.T) {
	k := quota.Keeper{MaxIDs: 10, IgnoreZones: -1}
	require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 100 * quota.Page}}, 1))
	costs := map[quota.ID]float64{a: 50 * quota.Page}
	for i := range 50 {
		costs[quota.ID(fmt.Sprint("tag:other", i))] = float64(100+i) * quota.Page
	}
	for now := 1.0; now <= 3; now++ {
		require.NoError(t, k.Started(a, 50, now))
		require.NoError(t, k.Report(quota.Report{
			Backend: "x", Zone: "z", Time: now, Costs: costs,
			Load: quota.Load{Queue: 10, Target: 8, Spring: 4},
		}, now))
		d := k.Decide(now)
		require.Len(t, d, 1)
		assert.InDelta(t, 50.0/1.5, d[0].Limiting, 1e-9, "the part of its rate that the backend can bear")
		assert.Equal(t, 40, k.LeftOut())
		assert.Equal(t, 11, k.Tracked())
	}
	assert.InDelta(t, 149.0/(50+50*124.5), k.Readers(3)[0].Busyness, 1e-9, "part of the whole cost")
}

// TestRareRequests: ids that send a request every few seconds have no cost in most seconds, and are
// limited in all of them.
func TestRareRequests(t *testing.T) {
	const n, total = 400, 0.6 // ids, and requests a second by the quota
	for _, part := range []float64{0.5, 0.8} {
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			capacity := n * total * part
			k := quota.Keeper{IgnoreZones: -1}
			quotas, due, rates := map[quota.ID]quota.Quota{}, map[quota.ID]float64{}, map[quota.ID]float64{}
			for i := range n {
				id := quota.ID(fmt.Sprint("tag:", i))
				quotas[id], rates[id] = quota.Quota{Total: total * quota.Page}, total
				due[id] = math.Mod(float64(i)*math.Phi, 1) // requests are spread evenly over the seconds
			}
			load, good := 0.0, 0.0
			for now := 1.0; now <= 120; now++ {
				sent, costs := 0.0, map[quota.ID]float64{}
				require.NoError(t, k.SetQuotas(quotas, now))
				for id := range quotas {
					due[id] += rates[id]
					started := math.Floor(due[id])
					due[id] -= started
					require.NoError(t, k.Started(id, started, now))
					sent += started
					if started > 0 {
						costs[id] = started * quota.Page
					}
				}
				if now > 40 {
					load += sent / capacity / 80
					good += min(1, sent/capacity) / 80
				}
				require.NoError(t, k.Report(quota.Report{
					Backend: "x", Zone: "z", Time: now, Costs: costs,
					Load: quota.Load{Queue: sent / capacity, Target: 1, Spring: 0.5},
				}, now))
				for _, d := range k.Decide(now) {
					rates[d.ID] = d.Smoothed
				}
			}
			t.Logf("load %.3f, goodput %.3f", load, good)
			assert.GreaterOrEqual(t, good, 0.9)
			assert.LessOrEqual(t, load, 1.2)
		})
	}
}
