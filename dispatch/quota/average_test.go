package quota_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// TestSilence: while backends say nothing, quotas hold as they are.
func TestSilence(t *testing.T) {
	w := newWorld(t, 3, 10_000, reads(a, 1000, 60)).quota(a, 6000, 0)
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

// TestWhatFollowsASilence: what came while a backend said nothing is forgotten, requests and costs alike.
func TestWhatFollowsASilence(t *testing.T) {
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
					require.NoError(t, k.Report(quota.Report{Backend: name, Zone: name, Time: now, Costs: map[quota.ID]float64{a: part * 3 * quota.Page * rate}}, now))
				}
			}
			if d := k.Decide(now)[0]; second > 5 {
				off := 0.01
				if second > 70 {
					off = 0.25
				}
				require.InEpsilon(t, 6*quota.Page, d.AverageCost, off, "second %d, then %v of it", second, after)
				if second == 60 {
					require.InEpsilon(t, rate, d.Rate, 0.01, "what comes is known")
				}
			}
		}
	}
}

// TestAveragesOfWhatBeginsOneAfterTheOther: requests begin at the end of a second and cost in the next one, or a backend reports what a
// replica does not know of yet. Nobody pays for it after some seconds, and nobody does after a pause.
func TestAveragesOfWhatBeginsOneAfterTheOther(t *testing.T) {
	whole := [2]float64{1000, 6000}
	for name, seconds := range map[string][3][2]float64{ // begun, and cost in pages
		"requests first":     {{1, 0}, {1000, 6000}, {1000, 6000}},
		"costs first":        {{0, 100}, {1000, 6000}, {1000, 6000}},
		"together":           {{1, 6}, {1000, 6000}, {1000, 6000}},
		"part of the costs":  {{1000, 60}, {1000, 6000}, {1000, 6000}},
		"part of the starts": {{50, 6000}, {1000, 6000}, {1000, 6000}},
	} {
		var k quota.Keeper
		require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 6000 * quota.Page}}, 1))
		now := 0.0
		second := func(begun, pages float64) quota.Decision {
			now++
			require.NoError(t, k.Started(a, begun, now))
			require.NoError(t, k.Report(quota.Report{Backend: "x", Zone: "z", Time: now, Costs: map[quota.ID]float64{a: pages * quota.Page}}, now))
			return k.Decide(now)[0]
		}
		for _, idle := range []int{0, 1, 60, 200} {
			for range idle {
				second(0, 0)
			}
			for i, s := range append(seconds[:], whole, whole, whole) {
				d, off := second(s[0], s[1]), 0.25
				if idle > 1 {
					off = 0.5 // of what was known little counts
				}
				if idle > 0 || i > 3 {
					assert.InEpsilon(t, 6*quota.Page, d.AverageCost, off, "%s, second %d after %d s without any", name, i, idle)
					assert.InEpsilon(t, 1000, d.Smoothed, 0.5, "%s, second %d after %d s without any", name, i, idle)
				}
			}
			for range 30 {
				second(1000, 6000)
			}
		}
	}
}

// TestAveragesOfCostsLongKnown: who gets a quota has had costs for long, of requests that nobody counted.
func TestAveragesOfCostsLongKnown(t *testing.T) {
	var k quota.Keeper
	for second := range 60 {
		now, begun := float64(second+1), 0.0
		if second >= 30 {
			require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 6000 * quota.Page}}, now))
			begun = 1000
		}
		if second == 30 {
			begun = 50 // a part of a second
		}
		require.NoError(t, k.Started(a, begun, now))
		require.NoError(t, k.Report(quota.Report{Backend: "x", Zone: "z", Time: now, Costs: map[quota.ID]float64{a: 6000 * quota.Page}}, now))
		for _, d := range k.Decide(now) {
			assert.Equal(t, second < 34, d.Assumed, "second %d", second)
			if !d.Assumed {
				assert.InEpsilon(t, 6*quota.Page, d.AverageCost, 0.25, "second %d", second)
			}
		}
	}
}

// TestAveragesOfRequestsLongKnown: a backend that is new, or that comes back, reports costs of requests that have gone on for long.
func TestAveragesOfRequestsLongKnown(t *testing.T) {
	var k quota.Keeper
	require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 6000 * quota.Page}}, 1))
	for second := range 300 {
		now, pages := float64(second+1), 6000.0
		if second < 60 || second >= 120 && second < 200 {
			pages = 0
		}
		require.NoError(t, k.Started(a, 1000, now))
		require.NoError(t, k.Report(quota.Report{Backend: "x", Zone: "z", Time: now, Costs: map[quota.ID]float64{a: pages * quota.Page}}, now))
		if d := k.Decide(now)[0]; !d.Assumed {
			assert.InEpsilon(t, 6*quota.Page, d.AverageCost, 0.05, "second %d", second)
		} else {
			assert.Less(t, second, 65)
		}
	}
}

// TestAQuotaThatComesAgain: requests are not counted while there is none.
func TestAQuotaThatComesAgain(t *testing.T) {
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
		require.NoError(t, k.Report(quota.Report{Backend: "x", Zone: "z", Time: now, Costs: map[quota.ID]float64{a: 6 * quota.Page * rate}}, now))
		for _, d := range k.Decide(now) {
			if !d.Assumed {
				require.InEpsilon(t, 6*quota.Page, d.AverageCost, 0.01, "second %d", second)
				require.InEpsilon(t, rate, d.Rate, 0.01)
			}
			require.Equal(t, second > 120 && second < 124, d.Assumed, "second %d", second)
		}
	}
}

// TestCostsAfterRequests: what still costs something when requests have ceased says nothing of theirs.
func TestCostsAfterRequests(t *testing.T) {
	var k quota.Keeper
	require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 6000 * quota.Page}}, 1))
	for second := range 120 {
		now, begun := float64(second+1), 100.0
		if second > 60 {
			begun = 0
		}
		require.NoError(t, k.Started(a, begun, now))
		require.NoError(t, k.Report(quota.Report{Backend: "x", Zone: "z", Time: now, Costs: map[quota.ID]float64{a: 600 * quota.Page}}, now))
		require.InDelta(t, 6*quota.Page, k.Decide(now)[0].AverageCost, 4*quota.Page, "second %d", second)
	}
}

// TestForgotten: after four minutes without a word an average is none.
func TestForgotten(t *testing.T) {
	w := newWorld(t, 3, 10_000, reads(a, 100, 6)).quota(a, 600, 0)
	w.settles(30, map[quota.ID]float64{a: 100})
	w.Clients[0].Rate = 0
	for second := range 245 {
		w.second()
		require.Equal(t, second >= 240, w.step.Decisions[0].Assumed, "second %d", second)
	}
}

// TestABadGuessIsMendedAtOnce: also while a backend is near its target, where rates grow by a quarter a pass.
func TestABadGuessIsMendedAtOnce(t *testing.T) {
	k := quota.Keeper{IgnoreZones: -1}
	require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 600 * quota.Page}}, 1))
	for i, begun := range []float64{5, 100, 100, 100} {
		now := float64(i + 1)
		require.NoError(t, k.Started(a, begun, now))
		require.NoError(t, k.Report(quota.Report{Backend: "x", Zone: "z", Time: now, Load: quota.Load{Queue: 150, Target: 100, Spring: 50},
			Costs: map[quota.ID]float64{a: 600 * quota.Page}}, now))
		if d := k.Decide(now)[0]; i > 0 {
			assert.Greater(t, d.Smoothed, 20.0, "of 50 that the backend can bear, pass %d", i)
		}
	}
}

// TestAveragesOfAFewRequests: one in ten seconds, of which a backend reports in another second, has the cost it has.
func TestAveragesOfAFewRequests(t *testing.T) {
	for after := range 3 {
		var k quota.Keeper
		require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 6000 * quota.Page}}, 1))
		for second := range 100 {
			now := float64(second + 1)
			begun, cost := 0.0, 0.0
			if second%10 == 0 {
				begun = 1
			}
			if second%10 == after {
				cost = 6 * quota.Page
			}
			require.NoError(t, k.Started(a, begun, now))
			require.NoError(t, k.Report(quota.Report{Backend: "x", Zone: "z", Time: now, Costs: map[quota.ID]float64{a: cost}}, now))
			if d := k.Decide(now)[0]; second > 10 {
				require.InEpsilon(t, 6*quota.Page, d.AverageCost, 0.25, "second %d", second)
			}
		}
	}
}
