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

// A reporter adds up a value and reports the sum once a second, at its own phase of the second.
type reporter struct{ starts, phase, sum, reported float64 }

const tick = 0.01 // seconds

// tick moves the sum to reported when a report is due.
func (r *reporter) tick(at float64) {
	if int(at-r.phase+1) != int(at-tick-r.phase+1) {
		r.reported, r.sum = r.sum, 0
	}
}

// phases simulates an id whose requests cost some pages each, their costs arising later seconds
// after they start. The replicas start one after the other and together send the requests that load
// returns for each tick, up to the limit. Replicas and the backend report at phases that are
// independent of each other, and a keeper passes about once a second. After each pass, phases calls
// each with the time since all replicas started and the part of the quota that is in force.
func phases(
	t *testing.T, seed uint64, pages, later float64,
	load func(at float64, random *rand.Rand) float64, each func(second, rate float64),
) {
	const worth = 100 // requests a second that the quota allows
	random := rand.New(rand.NewPCG(seed, 7))
	var k quota.Keeper
	total := worth * pages * quota.Page
	require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{a: {Total: total}}, 1))
	backend, all := reporter{phase: random.Float64()}, 0.0
	replicas := make([]reporter, 1+random.IntN(4))
	for i := range replicas {
		replicas[i] = reporter{starts: 5 + 2*random.Float64(), phase: random.Float64()}
		all = max(all, replicas[i].starts)
	}
	assumed := worth * pages / quota.WriteFactor
	queue, inFlight, limit, inForce := 0.0, make([]float64, int(later/tick)+1), assumed, assumed
	pass, poll := 2+random.Float64(), 2.0
	for i := range 8000 {
		at := 2 + float64(i)*tick
		if at >= poll {
			poll += 0.5
			inForce = limit
		}
		n := 0.0
		for j := range replicas {
			if at >= replicas[j].starts {
				n++
			}
		}
		sent := 0.0
		if n > 0 {
			queue += load(at, random)
			sent = min(queue, inForce*tick)
			queue -= sent
		}
		inFlight[i%len(inFlight)] = sent
		backend.sum += inFlight[(i+1)%len(inFlight)] * pages * quota.Page
		backend.tick(at)
		started := 0.0
		for j := range replicas {
			r := &replicas[j]
			if at >= r.starts {
				r.sum += sent / n
			}
			r.tick(at)
			started += r.reported
		}
		if at < pass {
			continue
		}
		pass += 1 + 0.02*random.Float64()
		require.NoError(t, k.Started(a, started, at))
		report(t, &k, "x", at, backend.reported/quota.Page)
		d := k.Decide(at)[0]
		limit = d.Smoothed
		if d.Assumed {
			limit = assumed
		}
		each(at-all, limit/worth)
	}
}

// TestPhases: the rate in force approaches the quota whenever replicas and backends report and
// however long after its start a request has its cost. With requests in every second, this takes a
// few seconds; otherwise, a few bursts.
func TestPhases(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	every := func(period, during, rate, rest float64) func(float64, *rand.Rand) float64 {
		return func(at float64, _ *rand.Rand) float64 {
			if math.Mod(at, period) < during {
				return rate * tick
			}
			return rest * tick
		}
	}
	for _, c := range []struct {
		name            string
		load            func(float64, *rand.Rand) float64
		early, min, max float64 // parts of the quota: lowest after 3 s; lowest and highest after 40 s
	}{
		{"backlog", every(1, 1, 1e6, 0), 0.35, 0.6, 1.3},
		{"steady", every(1, 1, 80, 0), 0.5, 0.95, 1.05},
		{"a pause", every(50, 25, 80, 0), 0.5, 0.7, 3},
		{"up and down", every(6, 3, 100, 10), 0.5, 0.85, 1.2},
		{"few", func(_ float64, r *rand.Rand) float64 {
			return math.Floor(r.Float64() + tick)
		}, 0.2, 0.7, 1.8},
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
				early, lowest, highest := math.Inf(1), math.Inf(1), 0.0
				phases(t, seed, pages, later, c.load, func(second, rate float64) {
					if second > 3 {
						early = min(early, rate)
					}
					if second > 40 {
						lowest, highest = min(lowest, rate), max(highest, rate)
					}
				})
				what := fmt.Sprintf("seed %d: %v pages, costs %v s later", seed, pages, later)
				assert.GreaterOrEqual(t, early, c.early, what)
				assert.GreaterOrEqual(t, lowest, c.min, what)
				assert.LessOrEqual(t, highest, c.max, what)
			}
		})
	}
}
