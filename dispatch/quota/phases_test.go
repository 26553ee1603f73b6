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

// A reporter adds up what is so, and says once a second, at a moment of its own, what that was.
type reporter struct{ begins, phase, sum, told float64 }

const tick = 0.01 // seconds

func (r *reporter) report(at float64) {
	if int(at-r.phase+1) != int(at-tick-r.phase+1) {
		r.told, r.sum = r.sum, 0
	}
}

// phases has requests of so many pages: replicas that begin one after the other do what load wants of an id in each tick, and its costs come so much later. All report at
// moments that have nothing to do with each other; a keeper passes about once a second. It tells what part of the
// quota is in force, each second after all began.
func phases(t *testing.T, seed uint64, pages, later float64, load func(at float64, random *rand.Rand) float64, each func(second, rate float64)) {
	const worth = 100 // requests a second, by the quota
	random := rand.New(rand.NewPCG(seed, 7))
	var k quota.Keeper
	require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: worth * pages * quota.Page}}, 1))
	backend, replicas, all := reporter{phase: random.Float64()}, make([]reporter, 1+random.IntN(4)), 0.0
	for i := range replicas {
		replicas[i] = reporter{begins: 5 + 2*random.Float64(), phase: random.Float64()}
		all = max(all, replicas[i].begins)
	}
	assumed := worth * pages / quota.WriteFactor
	queue, underWay, limit, obeyed := 0.0, make([]float64, int(later/tick)+1), assumed, assumed
	pass, poll := 2+random.Float64(), 2.0
	for i := range 8000 {
		at := 2 + float64(i)*tick
		if at >= poll {
			poll += 0.5
			obeyed = limit
		}
		n := 0.0
		for j := range replicas {
			if at >= replicas[j].begins {
				n++
			}
		}
		begun := 0.0
		if n > 0 {
			queue += load(at, random)
			begun = min(queue, obeyed*tick)
			queue -= begun
		}
		underWay[i%len(underWay)] = begun
		backend.sum += underWay[(i+1)%len(underWay)] * pages * quota.Page
		backend.report(at)
		started := 0.0
		for j := range replicas {
			r := &replicas[j]
			if at >= r.begins {
				r.sum += begun / n
			}
			r.report(at)
			started += r.told
		}
		if at < pass {
			continue
		}
		pass += 1 + 0.02*random.Float64()
		require.NoError(t, k.Started(a, started, at))
		require.NoError(t, k.Report(quota.Report{Backend: "x", Zone: "z", Time: at, Costs: map[quota.ID]float64{a: backend.told}}, at))
		d := k.Decide(at)[0]
		if limit = d.Smoothed; d.Assumed {
			limit = assumed
		}
		each(at-all, limit/worth)
	}
}

// TestPhases: whatever the moments at which replicas, backends and keeper speak, and however long after its beginning a request costs something, what
// is in force comes to be near the quota: soon where something comes every second, and after some bursts where it does not.
func TestPhases(t *testing.T) {
	every := func(period, during, rate, rest float64) func(float64, *rand.Rand) float64 {
		return func(at float64, _ *rand.Rand) float64 {
			if math.Mod(at, period) < during {
				return rate * tick
			}
			return rest * tick
		}
	}
	for _, c := range []struct {
		name               string
		load               func(float64, *rand.Rand) float64
		early, least, most float64 // of the quota: the least from the fourth second on, and what is in force after 40 s
	}{
		{"backlog", every(1, 1, 1e6, 0), 0.35, 0.6, 1.3},
		{"steady", every(1, 1, 80, 0), 0.5, 0.95, 1.05},
		{"a pause", every(50, 25, 80, 0), 0.5, 0.7, 3},
		{"up and down", every(6, 3, 100, 10), 0.5, 0.85, 1.2},
		{"few", func(_ float64, r *rand.Rand) float64 { return math.Floor(r.Float64() + tick) }, 0.2, 0.7, 1.8},
		{"bursts on some", every(10, 0.5, 200, 10), 0.4, 0.8, 1.7},
		{"bursts on little", every(10, 0.5, 200, 1), 0, 0.65, 3},
		{"bursts", every(10, 0.5, 200, 0), 0, 0.55, 3.5},
		{"two of ten seconds", every(10, 2, 100, 0), 0, 0.65, 2.1},
		{"every 4 s", every(4, 0.5, 200, 0), 0, 0.65, 1.7},
		{"every 5 s", every(5, 0.5, 200, 0), 0, 0.6, 2.4},
		{"every 6 s", every(6, 0.5, 200, 0), 0, 0.6, 2.4},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(200) {
				pages, later := []float64{6, 600}[seed%2], []float64{0, 0.3, 1, 2}[seed/2%4]
				early, least, most := math.Inf(1), math.Inf(1), 0.0
				phases(t, seed, pages, later, c.load, func(second, rate float64) {
					if second > 3 {
						early = min(early, rate)
					}
					if second > 40 {
						least, most = min(least, rate), max(most, rate)
					}
				})
				what := fmt.Sprintf("seed %d: %v pages, costs %v s later", seed, pages, later)
				assert.GreaterOrEqual(t, early, c.early, what)
				assert.GreaterOrEqual(t, least, c.least, what)
				assert.LessOrEqual(t, most, c.most, what)
			}
		})
	}
}
