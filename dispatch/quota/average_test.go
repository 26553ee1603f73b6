package quota_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// report reports the costs of id a on a backend, in pages a second.
func report(t *testing.T, k *quota.Keeper, backend string, now, pages float64) {
	t.Helper()
	require.NoError(t, k.Report(quota.Report{
		Backend: backend, Zone: backend, Time: now,
		Costs: map[quota.ID]float64{a: pages * quota.Page},
	}, now))
}

// TestBackendsSilent: while no backend reports, rates stay as they are.
func TestBackendsSilent(t *testing.T) {
	w := newSimulation(t, 3, 10_000, reads(a, 1000, 60)).quota(a, 6000, 0)
	w.settles(30, map[quota.ID]float64{a: 100})
	now := 30.
	for range 200 {
		now++
		require.NoError(t, w.keeper.Started(a, 100, now))
		for _, d := range w.keeper.Decide(now) {
			require.InEpsilon(t, 100, d.Smoothed, 0.1)
		}
	}
}

// TestBackendReturns: after a backend has been silent, the requests and costs of that time do not
// count.
func TestBackendReturns(t *testing.T) {
	for _, after := range []float64{0.1, 1, 10} {
		var k quota.Keeper
		require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 6e6}}, 1))
		for second := range 100 {
			now, rate := float64(second+1), 100.0
			if second >= 40 {
				rate *= after
			}
			require.NoError(t, k.Started(a, rate, now))
			part := 1.0
			if second == 71 {
				part = 0.05 // of a second
			}
			for _, name := range []string{"x", "y"} {
				if name == "x" || second < 40 || second > 70 {
					report(t, &k, name, now, part*3*rate)
				}
			}
			d := k.Decide(now)[0]
			if second > 5 {
				off := 0.01
				if second > 70 {
					off = 0.25
				}
				require.InEpsilon(t, 6*quota.Page, d.AverageCost, off, "second %d, rate x %v", second, after)
				if second == 60 {
					require.InEpsilon(t, rate, d.Rate, 0.01, "requests are still counted")
				}
			}
		}
	}
}

// TestFirstSecondsOfRequestsAndCosts: requests start at the end of a second and their costs arise
// in the next one, or a backend reports costs of requests that no replica has reported yet. The
// average is right after some seconds, and at once after a pause.
func TestFirstSecondsOfRequestsAndCosts(t *testing.T) {
	whole := [2]float64{1000, 6000}
	for name, seconds := range map[string][3][2]float64{ // requests started, and cost in pages
		"requests first":     {{1, 0}, {1000, 6000}, {1000, 6000}},
		"costs first":        {{0, 100}, {1000, 6000}, {1000, 6000}},
		"together":           {{1, 6}, {1000, 6000}, {1000, 6000}},
		"part of the costs":  {{1000, 60}, {1000, 6000}, {1000, 6000}},
		"part of the starts": {{50, 6000}, {1000, 6000}, {1000, 6000}},
	} {
		var k quota.Keeper
		require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 6000 * quota.Page}}, 1))
		now := 0.0
		second := func(started, pages float64) quota.Decision {
			now++
			require.NoError(t, k.Started(a, started, now))
			report(t, &k, "x", now, pages)
			return k.Decide(now)[0]
		}
		for _, idle := range []int{0, 1, 60, 200} {
			for range idle {
				second(0, 0)
			}
			for i, s := range append(seconds[:], whole, whole, whole) {
				d, off := second(s[0], s[1]), 0.25
				if idle > 1 {
					off = 0.5 // little of the earlier average is left
				}
				if idle > 0 || i > 3 {
					what := fmt.Sprintf("%s, second %d after %d idle seconds", name, i, idle)
					assert.InEpsilon(t, 6*quota.Page, d.AverageCost, off, what)
					assert.InEpsilon(t, 1000, d.Smoothed, 0.5, what)
				}
			}
			for range 30 {
				second(1000, 6000)
			}
		}
	}
}

// TestNewQuotaOfAnIDWithCosts: an id with a new quota has long had costs, of requests that were not
// counted.
func TestNewQuotaOfAnIDWithCosts(t *testing.T) {
	var k quota.Keeper
	for second := range 60 {
		now, started := float64(second+1), 0.0
		if second >= 30 {
			require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 6000 * quota.Page}}, now))
			started = 1000
		}
		if second == 30 {
			started = 50 // a part of a second
		}
		require.NoError(t, k.Started(a, started, now))
		report(t, &k, "x", now, 6000)
		for _, d := range k.Decide(now) {
			assert.Equal(t, second < 34, d.Assumed, "second %d", second)
			if !d.Assumed {
				assert.InEpsilon(t, 6*quota.Page, d.AverageCost, 0.25, "second %d", second)
			}
		}
	}
}

// TestBackendStartsToReport: a backend that is new, or that returns, reports costs of requests that
// have been counted for a long time.
func TestBackendStartsToReport(t *testing.T) {
	var k quota.Keeper
	require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 6000 * quota.Page}}, 1))
	for second := range 300 {
		now, pages := float64(second+1), 6000.0
		if second < 60 || second >= 120 && second < 200 {
			pages = 0
		}
		require.NoError(t, k.Started(a, 1000, now))
		report(t, &k, "x", now, pages)
		if d := k.Decide(now)[0]; !d.Assumed {
			assert.InEpsilon(t, 6*quota.Page, d.AverageCost, 0.05, "second %d", second)
		} else {
			assert.Less(t, second, 65)
		}
	}
}

// TestQuotaRemovedAndSetAgain: requests are not counted while there is no quota.
func TestQuotaRemovedAndSetAgain(t *testing.T) {
	var k quota.Keeper
	for second := range 200 {
		now, rate, with := float64(second+1), 100.0, second < 60 || second > 120
		if !with {
			rate *= 10
		}
		quotas := map[quota.ID]quota.Quota{}
		if with {
			quotas[a] = quota.Quota{Total: 6000 * quota.Page}
			require.NoError(t, k.Started(a, rate, now))
		}
		require.NoError(t, k.SetQuotas(quotas, now))
		report(t, &k, "x", now, 6*rate)
		for _, d := range k.Decide(now) {
			if !d.Assumed {
				require.InEpsilon(t, 6*quota.Page, d.AverageCost, 0.01, "second %d", second)
				require.InEpsilon(t, rate, d.Rate, 0.01)
			}
			require.Equal(t, second > 120 && second < 124, d.Assumed, "second %d", second)
		}
	}
}

// TestCostsAfterRequests: costs that go on after the last request do not change the average.
func TestCostsAfterRequests(t *testing.T) {
	var k quota.Keeper
	require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 6000 * quota.Page}}, 1))
	for second := range 120 {
		now, started := float64(second+1), 100.0
		if second > 60 {
			started = 0
		}
		require.NoError(t, k.Started(a, started, now))
		report(t, &k, "x", now, 600)
		require.InDelta(t, 6*quota.Page, k.Decide(now)[0].AverageCost, 4*quota.Page, "second %d", second)
	}
}

// TestAverageExpires: after four minutes without requests and costs, the average is unknown.
func TestAverageExpires(t *testing.T) {
	w := newSimulation(t, 3, 10_000, reads(a, 100, 6)).quota(a, 600, 0)
	w.settles(30, map[quota.ID]float64{a: 100})
	w.Clients[0].Rate = 0
	for second := range 245 {
		w.second()
		require.Equal(t, second >= 240, w.step.Decisions[0].Assumed, "second %d", second)
	}
}

// TestBadGuessIsReplacedAtOnce: also while a backend is near its target, where rates otherwise grow
// by a quarter a pass.
func TestBadGuessIsReplacedAtOnce(t *testing.T) {
	k := quota.Keeper{IgnoreZones: -1}
	require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 600 * quota.Page}}, 1))
	for i, started := range []float64{5, 100, 100, 100} {
		now := float64(i + 1)
		require.NoError(t, k.Started(a, started, now))
		require.NoError(t, k.Report(quota.Report{
			Backend: "x", Zone: "z", Time: now, Load: quota.Load{Queue: 150, Target: 100, Spring: 50},
			Costs: map[quota.ID]float64{a: 600 * quota.Page},
		}, now))
		d := k.Decide(now)[0]
		if i > 0 {
			assert.Greater(t, d.Smoothed, 20.0, "the backend can bear 50, pass %d", i)
		}
	}
}

// TestAverageOfRareRequests: the average is right with one request in ten seconds, whose cost is
// reported in another second.
func TestAverageOfRareRequests(t *testing.T) {
	for after := range 3 {
		var k quota.Keeper
		require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 6000 * quota.Page}}, 1))
		for second := range 100 {
			now := float64(second + 1)
			started, pages := 0.0, 0.0
			if second%10 == 0 {
				started = 1
			}
			if second%10 == after {
				pages = 6
			}
			require.NoError(t, k.Started(a, started, now))
			report(t, &k, "x", now, pages)
			d := k.Decide(now)[0]
			if second > 10 {
				require.InEpsilon(t, 6*quota.Page, d.AverageCost, 0.25, "second %d", second)
			}
		}
	}
}
