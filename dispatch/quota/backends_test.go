package quota_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// TestWorstZone: one saturated zone is ignored, the second one limits.
func TestWorstZone(t *testing.T) {
	w := newSimulation(t, 5, 100, reads(a, 10, 10)).quota(a, 100, 0)
	w.Backends[2].Capacity = 1 * quota.Page
	w.settles(30, map[quota.ID]float64{a: 10})
	w.Backends[3].Capacity = 10 * quota.Page
	w.settles(60, map[quota.ID]float64{a: 5})
}

// TestReportFaults: a report with a fault is refused as a whole, and the error names all faults.
func TestReportFaults(t *testing.T) {
	var k quota.Keeper
	good := quota.Report{
		Backend: "x", Zone: "z", Time: 100, Load: quota.Load{Queue: 1, Target: 10, Spring: 5},
		Costs: map[quota.ID]float64{a: 1},
	}
	require.NoError(t, k.Report(good, 100))
	for want, change := range map[string]func(*quota.Report){
		`backend "": backend, zone: both need a`:                 func(r *quota.Report) { r.Backend = "" },
		"time 200: is 100 s from now: check the backend's clock": func(r *quota.Report) { r.Time = 200 },
		"time 99: is before the last report, 100":                func(r *quota.Report) { r.Time = 99 },
		"time NaN: ": func(r *quota.Report) { r.Time = math.NaN() },
		"cost of tag:b, NaN: is invalid: want 0 to": func(r *quota.Report) {
			r.Costs = map[quota.ID]float64{b: math.NaN()}
		},
		"queue -1: is invalid: want 0 or more\ntarget 0: is invalid: want more": func(r *quota.Report) {
			r.Load = quota.Load{Queue: -1, Spring: 1}
		},
	} {
		bad := good
		change(&bad)
		assert.ErrorContains(t, k.Report(bad, 100), want)
	}
	assert.Equal(t, 1, k.Tracked())
	assert.ErrorContains(t, k.Started(a, math.Inf(1), 100), "is invalid: want 0 to")
	k.Zones = []string{"y"}
	err := k.Report(good, 100)
	assert.ErrorContains(t, err, `zone "z": is not declared by the cluster: use one of ["y"]`)
	err = k.SetQuotas(map[quota.ID]quota.Quota{a: {Reserved: 2, Total: 1}}, 100)
	assert.ErrorContains(t, err, "tag:a: reserved 2: is above")
}

// TestZones: in each zone, the backend that can bear least counts, in whatever order backends first
// report. A later pass does not change an earlier decision.
func TestZones(t *testing.T) {
	k := quota.Keeper{IgnoreZones: -1}
	require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: 1e9}}, 1))
	decide := func(now, scale float64) quota.Decision {
		require.NoError(t, k.Started(a, 100, now))
		for _, b := range []struct {
			name, zone string
			queue      float64
		}{{"1", "z", 100}, {"2", "y", 80}, {"3", "z", 125}, {"4", "y", 150}, {"5", "z", 90}} {
			require.NoError(t, k.Report(quota.Report{
				Backend: b.name, Zone: b.zone, Time: now, Costs: map[quota.ID]float64{a: 1e6},
				Load: quota.Load{Queue: b.queue * scale, Target: 100, Spring: 50},
			}, now))
		}
		return k.Decide(now)[0]
	}
	first := decide(1, 1)
	inverse := 1.5 // 1 / ratio of a queue of 125 with a target of 100 and a spring of 50
	want := []quota.ZoneLimit{{Zone: "y", Rate: 50}, {Zone: "z", Rate: 1 / inverse * 100}}
	assert.Equal(t, want, first.Zones)
	assert.InDelta(t, 50, first.Limiting, 1e-9)
	assert.NotEqual(t, want, decide(2, 0.95).Zones)
	assert.Equal(t, want, first.Zones)
}

// TestBackendsAreBounded: reports of 20,000 backends are kept until they have been silent for long.
func TestBackendsAreBounded(t *testing.T) {
	var k quota.Keeper
	at := func(i int, now float64) error {
		return k.Report(quota.Report{Backend: fmt.Sprint(i), Zone: "a", Time: now}, now)
	}
	for i := range 20_000 {
		require.NoError(t, at(i, 1))
	}
	require.ErrorContains(t, at(20_000, 2), "more than 20000 backends")
	require.NoError(t, at(7, 2), "a known one")
	k.Decide(300)
	require.NoError(t, at(20_000, 300))
}
