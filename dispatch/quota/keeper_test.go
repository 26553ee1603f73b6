package quota_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// A simulation is a Keeper with simulated clients and backends, in steps of one second.
type simulation struct {
	t      *testing.T
	keeper quota.Keeper
	quota.Simulation
	step quota.Step
	busy int
}

// newSimulation returns a simulation whose backends have a capacity, in pages a second, each in a
// zone of its own.
func newSimulation(t *testing.T, backends int, capacity float64, clients ...quota.Client) *simulation {
	w := &simulation{t: t}
	w.Quotas, w.Clients = map[quota.ID]quota.Quota{}, clients
	for i := range backends {
		b := quota.SimulatedBackend{Name: fmt.Sprint(i), Capacity: capacity * quota.Page}
		w.Backends = append(w.Backends, b)
	}
	return w
}

// reads returns a client that wants to send rate requests a second and reads some pages with each.
func reads(id quota.ID, rate, pages float64, backends ...string) quota.Client {
	return quota.Client{ID: id, Rate: rate, Read: int64(pages * quota.Page), Backends: backends}
}

// quota sets a quota in pages a second.
func (w *simulation) quota(id quota.ID, total, reserved float64) *simulation {
	w.Quotas[id] = quota.Quota{Reserved: reserved * quota.Page, Total: total * quota.Page}
	return w
}

// second simulates one second.
func (w *simulation) second() {
	var err error
	w.step, err = w.Step(&w.keeper)
	require.NoError(w.t, err)
	w.busy = 0
	for _, d := range w.step.Decisions {
		if d.Busy {
			w.busy++
		}
	}
}

// rates returns the rates in force.
func (w *simulation) rates() map[quota.ID]float64 {
	rates := map[quota.ID]float64{}
	for _, d := range w.step.Decisions {
		rates[d.ID] = d.Smoothed
	}
	return rates
}

// settles simulates seconds until the rates have been within 10 % of those wanted for ten seconds
// in a row. It fails the test if that takes longer than within.
func (w *simulation) settles(within int, want map[quota.ID]float64) {
	w.t.Helper()
	streak := 0
	for second := range within {
		w.second()
		near := true
		for id, rate := range want {
			near = near && math.Abs(w.rates()[id]-rate) < 0.1*rate
		}
		streak++
		if !near {
			streak = 0
		}
		if streak == 10 {
			w.t.Logf("settled after %d s", second+1)
			return
		}
	}
	assert.Failf(w.t, "not settled", "after %d s: %v, want %v", within, w.rates(), want)
}

const a, b quota.ID = "tag:a", "tag:b"

// TestScenarios: the scenarios of FoundationDB's quota throttler settle no later than with its own
// arithmetic.
func TestScenarios(t *testing.T) {
	one := func(rate float64) map[quota.ID]float64 { return map[quota.ID]float64{a: rate} }
	for _, c := range []struct {
		name   string
		start  func(t *testing.T) *simulation
		want   map[quota.ID]float64
		within int
		busy   int
	}{
		{"Simple", func(t *testing.T) *simulation {
			return newSimulation(t, 10, 100, reads(a, 5, 6)).quota(a, 100, 0)
		}, one(100. / 6), 33, 0},
		{"WriteThrottling", func(t *testing.T) *simulation {
			return newSimulation(t, 10, 100, quota.Client{ID: a, Rate: 5, Write: 6 * quota.Page}).quota(a, 100, 0)
		}, one(100. / 24), 34, 0},
		{"MultiTag", func(t *testing.T) *simulation {
			w := newSimulation(t, 10, 100, reads(a, 5, 6), reads(b, 5, 6))
			return w.quota(a, 100, 0).quota(b, 100, 0)
		}, map[quota.ID]float64{a: 100. / 6, b: 100. / 6}, 33, 0},
		{"AttemptWorkloadAboveQuota", func(t *testing.T) *simulation {
			return newSimulation(t, 10, 100, reads(a, 20, 10)).quota(a, 100, 0)
		}, one(10), 31, 0},
		{"ActiveThrottling", func(t *testing.T) *simulation {
			return newSimulation(t, 10, 5, reads(a, 10, 6)).quota(a, 100, 0)
		}, one(50. / 6), 26, 1},
		{"MultiTagActiveThrottling", func(t *testing.T) *simulation {
			w := newSimulation(t, 10, 5, reads(a, 10, 6), reads(b, 10, 6))
			return w.quota(a, 50, 0).quota(b, 100, 0)
		}, map[quota.ID]float64{a: 2.778, b: 5.556}, 26, 2},
		{"MultiTagActiveThrottling2", func(t *testing.T) *simulation {
			w := newSimulation(t, 3, 50, reads(a, 10, 6, "0", "1"), reads(b, 10, 6, "1", "2"))
			w.keeper.IgnoreZones = -1 // one zone is saturated, and must count
			return w.quota(a, 100, 0).quota(b, 100, 0)
		}, map[quota.ID]float64{a: 8.333, b: 8.333}, 26, 2},
		{"ReservedQuota", func(t *testing.T) *simulation {
			return newSimulation(t, 10, 5, reads(a, 10, 6)).quota(a, 100, 70)
		}, one(70. / 6), 27, 1},
		{"MultiClient", func(t *testing.T) *simulation {
			return newSimulation(t, 10, 100, reads(a, 20, 6), reads(a, 20, 6)).quota(a, 100, 0)
		}, one(100. / 6), 33, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := c.start(t)
			w.settles(c.within, c.want)
			assert.Equal(t, c.busy, w.busy)
		})
	}
}

// TestQuotaChanges: a changed quota applies at once, and a removed one limits nothing.
func TestQuotaChanges(t *testing.T) {
	w := newSimulation(t, 10, 100, reads(a, 5, 6)).quota(a, 100, 0)
	w.settles(33, map[quota.ID]float64{a: 100. / 6})
	w.quota(a, 50, 0).settles(32, map[quota.ID]float64{a: 50. / 6})
	delete(w.Quotas, a)
	w.second()
	assert.Empty(t, w.rates())
}

// TestForget: an id without a quota is forgotten four minutes after its last request or cost.
func TestForget(t *testing.T) {
	w := newSimulation(t, 10, 5, reads(a, 10, 6))
	for range 60 {
		w.second()
	}
	assert.Equal(t, 1, w.keeper.Tracked())
	w.Clients = nil
	for range 239 {
		w.second()
	}
	assert.Equal(t, 1, w.keeper.Tracked())
	for range 3 {
		w.second()
	}
	assert.Zero(t, w.keeper.Tracked())
}

// TestFractions: rates below one a second are not rounded.
func TestFractions(t *testing.T) {
	w := newSimulation(t, 3, 1000, reads(a, 10, 6)).quota(a, 1, 0)
	w.settles(60, map[quota.ID]float64{a: 1. / 6})
}

// TestFirstSeconds: from the first rate on, the requests sent are within 20 % of the quota.
func TestFirstSeconds(t *testing.T) {
	w := newSimulation(t, 10, 1000, reads(a, 20, 10)).quota(a, 100, 0)
	w.second() // no cost is known yet
	for range 30 {
		w.second()
		assert.InEpsilon(t, 10, w.step.Sent[a], 0.2)
	}
}

// TestIdle: an id with a quota and next to no requests takes no part of a backend's capacity.
func TestIdle(t *testing.T) {
	w := newSimulation(t, 10, 5, reads(a, 10, 6), reads(b, 0.001, 6))
	w.quota(a, 100, 0).quota(b, 1000, 0)
	w.settles(26, map[quota.ID]float64{a: 50. / 6})
}

// TestUneven: with random quotas and costs, saturated backends are used to their capacity.
func TestUneven(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := newSimulation(t, 5, 50)
		for i := range 5 {
			name := quota.ID(fmt.Sprint("tag:", i))
			w.Clients = append(w.Clients, reads(name, 100, float64(1+random.IntN(10))))
			w.quota(name, 50+1000*random.Float64(), 0)
		}
		for range 60 {
			w.second()
		}
		used := 0.0
		for range 20 {
			w.second()
			for _, c := range w.Clients {
				used += w.step.Sent[c.ID] * float64(c.Read) / quota.Page / 20
			}
		}
		assert.InEpsilon(t, 250, used, 0.1, "seed %d", seed)
	}
}

// TestManyAlike: 150 ids that load the same backends are all limited.
func TestManyAlike(t *testing.T) {
	w := newSimulation(t, 3, 100)
	for i := range 150 {
		name := quota.ID(fmt.Sprint("tag:", i))
		w.Clients = append(w.Clients, reads(name, 100, 1))
		w.quota(name, 1000, 0)
	}
	for range 60 {
		w.second()
	}
	assert.InEpsilon(t, 1, w.step.Load[0], 0.1)
	assert.Equal(t, 150, w.busy)
}

// TestLateTraffic: a quota that was set before its traffic started applies once a cost is known.
func TestLateTraffic(t *testing.T) {
	w := newSimulation(t, 3, 10_000, reads(a, 0, 60)).quota(a, 6000, 0)
	for range 10 {
		w.second()
	}
	w.Clients[0].Rate = 1000
	w.second()
	for range 30 {
		w.second()
		require.InEpsilon(t, 100, w.step.Sent[a], 0.2)
	}
}

// TestLoadMoves: the rate stays when the costs move to another backend.
func TestLoadMoves(t *testing.T) {
	w := newSimulation(t, 2, 10_000, reads(a, 50, 60, "0")).quota(a, 600, 300)
	w.settles(30, map[quota.ID]float64{a: 10})
	w.Clients[0].Backends = []string{"1"}
	for range 30 {
		w.second()
		require.InEpsilon(t, 10, w.rates()[a], 0.1)
	}
}

// TestDoubles: when the capacity of a shared backend doubles, the ids use it within six passes,
// although their total quotas do not exceed it.
func TestDoubles(t *testing.T) {
	w := newSimulation(t, 1, 400, reads(a, 1000, 1), reads(b, 1000, 1))
	w.quota(a, 400, 80).quota(b, 400, 80)
	w.keeper.IgnoreZones = -1
	for range 60 {
		w.second()
	}
	before := w.rates()
	assert.InDelta(t, 400, before[a]+before[b], 40)
	w.Backends[0].Capacity *= 2
	for range 6 {
		w.second()
	}
	after := w.rates()
	assert.GreaterOrEqual(t, after[a]+after[b], 0.98*2*400, "from %v", before)
}

// TestHugeRequests: an id whose requests became huge, and rare, recovers when they are small again.
func TestHugeRequests(t *testing.T) {
	w := newSimulation(t, 2, 1e6, reads(a, 50, 1)).quota(a, 1, 0)
	w.settles(30, map[quota.ID]float64{a: 1})
	w.Clients[0].Read = 10_000 * quota.Page
	for range 60 {
		w.second()
	}
	assert.Less(t, w.rates()[a], 0.01)
	w.Clients[0].Read = quota.Page
	w.settles(200, map[quota.ID]float64{a: 1})
}

// TestReproducible: two equal runs give equal figures, to the last bit.
func TestReproducible(t *testing.T) {
	run := func() (rates []map[quota.ID]float64) {
		w := newSimulation(t, 7, 50)
		for i := range 9 {
			name := quota.ID(fmt.Sprint("tag:", i))
			w.Clients = append(w.Clients, reads(name, 10.1, float64(1+i)))
			w.quota(name, 70+float64(i)/3, 0)
		}
		for range 30 {
			w.second()
			rates = append(rates, w.rates())
		}
		return rates
	}
	first := run()
	for range 5 {
		require.Equal(t, first, run())
	}
}

// TestByCurrent: a huge quota has no effect.
func TestByCurrent(t *testing.T) {
	w := newSimulation(t, 10, 5, reads(a, 10, 6), reads(b, 10, 6))
	w.quota(a, 100, 0).quota(b, 1e6, 0)
	w.keeper.ShareBy = quota.ByCurrent
	for range 60 {
		w.second()
	}
	assert.InEpsilon(t, 50./6, w.rates()[a]+w.rates()[b], 0.1)
	assert.InEpsilon(t, w.rates()[a], w.rates()[b], 0.1)
}

// TestGrowth: a rate that backends limit grows by at most a quarter in a pass.
func TestGrowth(t *testing.T) {
	w := newSimulation(t, 1, 10, reads(a, 1000, 1)).quota(a, 1000, 0)
	w.keeper.IgnoreZones = -1
	for range 60 {
		w.second()
	}
	w.Backends[0].Capacity *= 50
	for last, second := w.rates()[a], 0; second < 8; second++ { // after ten seconds it may grow faster
		w.second()
		rate := w.rates()[a]
		require.LessOrEqual(t, rate, 1.25*last+1e-9, "second %d", second)
		last = rate
	}
	assert.Greater(t, w.rates()[a], 50.0)
}

// TestManyIDs: the costliest ids of a backend are followed, the others are counted.
func TestManyIDs(t *testing.T) {
	k := quota.Keeper{MaxIDs: 100}
	costs := map[quota.ID]float64{}
	for i := range 10_000 {
		costs[quota.ID(fmt.Sprint("tag:", i))] = float64(i)
	}
	saturated := quota.Load{Queue: 10, Target: 10, Spring: 5}
	r := quota.Report{Backend: "x", Zone: "z", Time: 1, Load: saturated, Costs: costs}
	require.NoError(t, k.Report(r, 1))
	assert.Equal(t, 100, k.Tracked())
	assert.Equal(t, 9900, k.LeftOut())
	readers, busyness, all := k.Readers(1), 0.0, 9999.0*10_000/2
	require.Len(t, readers, 10)
	for i, r := range readers {
		assert.Equal(t, quota.ID(fmt.Sprint("tag:", 9999-i)), r.ID, "the costliest first")
		assert.InDelta(t, r.Cost/all, r.Busyness, 1e-12)
		busyness += r.Busyness
	}
	rest := 9989.0 * 9990 / 2
	assert.InDelta(t, 1-rest/all, busyness, 1e-9, "without the part of the rest")

	// The next report replaces the counts.
	r.Time, r.Costs = 2, map[quota.ID]float64{"tag:9999": 1, "tag:1": 1}
	require.NoError(t, k.Report(r, 2))
	assert.Zero(t, k.LeftOut())
	readers = k.Readers(2)
	require.Len(t, readers, 2)
	assert.InDelta(t, 0.5, readers[0].Busyness, 1e-12)
}

// TestBackends: all backends that report, near their targets or not, the most loaded first.
func TestBackends(t *testing.T) {
	k := quota.Keeper{MaxIDs: 1}
	for at, r := range map[float64]quota.Report{
		1: {Backend: "gone", Zone: "z", Load: quota.Load{Queue: 9, Target: 10, Spring: 5}},
		7: {Backend: "idle", Zone: "z", Load: quota.Load{Queue: 1, Target: 10, Spring: 5}},
		8: {Backend: "near", Zone: "y", Load: quota.Load{Queue: 10, Target: 10, Spring: 5}, Costs: map[quota.ID]float64{"tag:a": 3, "tag:b": 2}},
		9: {Backend: "mute", Zone: "z"},
	} {
		r.Time = at
		require.NoError(t, k.Report(r, at))
	}
	assert.Equal(t, []quota.Backend{
		{Backend: "near", Zone: "y", Load: quota.Load{Queue: 10, Target: 10, Spring: 5}, Cost: 5, Ratio: 1, Age: 2},
		{Backend: "idle", Zone: "z", Load: quota.Load{Queue: 1, Target: 10, Spring: 5}, Age: 3},
		{Backend: "mute", Zone: "z", Age: 1},
	}, k.Backends(10))
}

// TestEndlessIDs: however many ids backends report, at most 20,000 without a quota are followed.
func TestEndlessIDs(t *testing.T) {
	k := quota.Keeper{MaxIDs: 10_000}
	for backend := range 5 {
		costs := map[quota.ID]float64{}
		for i := range 5000 {
			costs[quota.ID(fmt.Sprint("tag:", backend, "-", i))] = 1
		}
		r := quota.Report{Backend: fmt.Sprint(backend), Zone: "z", Time: 1, Costs: costs}
		require.NoError(t, k.Report(r, 1))
	}
	assert.Equal(t, 20_000, k.Tracked())
	assert.Equal(t, 5000, k.LeftOut())
	require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 1e9}}, 1))
	assert.Equal(t, 20_001, k.Tracked(), "an id with a quota is added")
}

// BenchmarkDecide measures one pass over up to 1,000 ids on up to 100 backends.
func BenchmarkDecide(bench *testing.B) {
	for _, size := range [][2]int{{1000, 100}, {1000, 50}, {500, 100}} {
		bench.Run(fmt.Sprintf("%dx%d/throttle", size[0], size[1]), func(bench *testing.B) {
			var k quota.Keeper
			quotas, costs := map[quota.ID]quota.Quota{}, map[quota.ID]float64{}
			for i := range size[0] {
				name := quota.ID(fmt.Sprint("tag:", i))
				quotas[name], costs[name] = quota.Quota{Total: 1e6}, 1e5
			}
			_ = k.SetQuotas(quotas, 1)
			for name := range quotas {
				_ = k.Started(name, 10, 1)
			}
			now := 1.0
			for bench.Loop() {
				bench.StopTimer()
				now++
				for i := range size[1] {
					_ = k.Report(quota.Report{
						Backend: fmt.Sprint(i), Zone: fmt.Sprint(i), Time: now, Costs: costs,
						Load: quota.Load{Queue: 900, Target: 800, Spring: 200},
					}, now)
				}
				bench.StartTimer()
				k.Decide(now)
			}
		})
	}
}
