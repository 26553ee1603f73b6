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

// phases has replicas that begin one after the other do what load wants of an id in each tick, and its costs come so much later. All report at
// moments that have nothing to do with each other; a keeper passes about once a second. It tells what part of the
// quota is in force, each second after all began.
func phases(t *testing.T, seed uint64, later float64, load func(at float64, random *rand.Rand) float64, each func(second, rate float64)) {
	const pages, worth = 6, 100 // of a request, and what the quota is in requests a second
	random := rand.New(rand.NewPCG(seed, 7))
	var k quota.Keeper
	require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: worth * pages * quota.Page}}, 1))
	backend, replicas, all := reporter{phase: random.Float64()}, make([]reporter, 1+random.IntN(4)), 0.0
	for i := range replicas {
		replicas[i] = reporter{begins: 5 + 2*random.Float64(), phase: random.Float64()}
		all = max(all, replicas[i].begins)
	}
	const assumed = worth * pages / quota.WriteFactor
	queue, underWay, limit, obeyed := 0.0, make([]float64, int(later/tick)+1), float64(assumed), float64(assumed)
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

// TestPhases: whatever the moments at which replicas, backends and keeper speak, and however long after its beginning a request costs something, nobody is
// held to a small part of his quota, at first, in bursts or after a pause, and what is steady is right.
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
		early, least, most float64 // of the quota: the least from the fourth second on, and what is in force from the sixteenth on
	}{
		{"backlog", every(1, 1, 1e6, 0), 0.5, 0.9, 1.25},
		{"steady", every(1, 1, 80, 0), 0.5, 0.9, 1.25},
		{"a pause", every(50, 25, 80, 0), 0.5, 0.7, 1.25},
		{"up and down", every(6, 3, 100, 10), 0.5, 0.85, 1.5},
		{"bursts on some", every(10, 0.5, 200, 10), 0.3, 0.6, 2.5},
		{"bursts on little", every(10, 0.5, 200, 1), 0, 0.5, 7}, // while costs are on their way
		{"bursts", every(10, 0.5, 200, 0), 0, 0.5, 7},
		{"two of ten seconds", every(10, 2, 100, 0), 0, 0.5, 2.5},
		{"few", func(_ float64, r *rand.Rand) float64 { return math.Floor(r.Float64() + tick) }, 0.2, 0.6, 2},
	} {
		for _, later := range []float64{0, 0.3, 1, 2} {
			t.Run(fmt.Sprintf("%s, %v s", c.name, later), func(t *testing.T) {
				early, least, most := math.Inf(1), math.Inf(1), 0.0
				for seed := range uint64(100) {
					phases(t, seed, later, c.load, func(second, rate float64) {
						if second > 3 {
							early = min(early, rate)
						}
						if second > 15 {
							least, most = min(least, rate), max(most, rate)
						}
					})
				}
				assert.GreaterOrEqual(t, early, c.early)
				assert.GreaterOrEqual(t, least, c.least)
				assert.LessOrEqual(t, most, c.most)
			})
		}
	}
}
