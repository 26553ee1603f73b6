package permitstest

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/permits/none"
)

// TestFindsADeadStore: with each seed, a store that grants nothing does not pass.
func TestFindsADeadStore(t *testing.T) {
	b := Backend{Open: func(*testing.T) dispatch.PermitStore { return none.Store{} }}
	for _, m := range modes {
		for seed := range uint64(3) {
			assert.Contains(t, b.try(t, m, seed, m.draw(seed, b)).wrong, "after all faults, 0 of ", "%s, seed %d", m.name,
				seed)
		}
	}
}

// An altered permit store is one in memory that gets other requests, or gives other answers.
type altered struct {
	*memory.Store
	before, after func(*permits.Request)
}

func (s altered) Do(ctx context.Context, requests []*permits.Request) {
	for _, r := range requests {
		s.before(r)
	}
	s.Store.Do(ctx, requests)
	for _, r := range requests {
		s.after(r)
	}
}

func (s altered) Timeout() time.Duration { return Timeout }

func alter(before, after func(*permits.Request)) Backend {
	return Backend{Open: func(*testing.T) dispatch.PermitStore {
		return altered{memory.New(), before, after}
	}}
}

func unchanged(*permits.Request) {}

// TestFindsTooMuch: in each mode, a store that grants more than the limit does not pass.
func TestFindsTooMuch(t *testing.T) {
	b := alter(func(r *permits.Request) {
		if r.Allocate != nil {
			r.Allocate.Rate *= 2
		} else if r.Draw != nil {
			r.Draw.Terms.Permits *= 2
		}
	}, func(r *permits.Request) {
		if r.Heartbeat != nil {
			r.Heartbeat.Answer.Size = min(r.Heartbeat.Answer.Size, 1)
		}
	})
	for _, m := range modes {
		for seed := range uint64(3) {
			r := b.try(t, m, seed, m.draw(seed, b))
			assert.NotEmpty(t, r.right(), "%s, seed %d: %s", m.name, seed, r.wrong)
		}
	}
}

// TestFindsTheStarved: a store that grants one subscription nothing does not pass, though the
// others use the whole limit.
func TestFindsTheStarved(t *testing.T) {
	b := alter(unchanged, func(r *permits.Request) {
		if r.Allocate != nil && r.Allocate.Subscription == "1" {
			r.Err = ErrCut
		}
	})
	m := modes[0]
	for seed := range uint64(3) {
		assert.Regexp(t, `after all faults, none of \d+ permits in 2s was granted to replica \d+`,
			b.try(t, m, seed, m.draw(seed, b)).wrong, "seed %d", seed)
	}
}

// TestShrinks: of a store that never answers again once it has lost its state, the sequence that is
// left is that a replica joins and the state is lost.
func TestShrinks(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	var dead atomic.Bool
	b := alter(unchanged, func(r *permits.Request) {
		if dead.Load() {
			r.Err = ErrCut
		}
	})
	open := b.Open
	b.Open = func(t *testing.T) dispatch.PermitStore {
		dead.Store(false)
		return open(t)
	}
	b.Lose = func() { dead.Store(true) }
	m := modes[0]
	for seed := range uint64(3) {
		steps := append(m.draw(seed, b), step{op: "forget"})
		wrong := b.try(t, m, seed, steps).wrong
		require.NotEmpty(t, wrong, "seed %d", seed)
		least, wrong := b.shrink(t, m, seed, steps, wrong)
		assert.Contains(t, wrong, "after all faults, 0 of ", "seed %d", seed)
		if assert.Len(t, least, 2, "seed %d: %s", seed, text(least)) {
			assert.Equal(t, "join", least[0].op)
			assert.Equal(t, "forget", least[1].op)
		}
	}
}

// TestTallies: a tally is kept, so that its seeds need not be run again, and one of another program
// is not.
func TestTallies(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tallies")
	ts := openTallies(t, file)
	one := newTally(modes[0], []uint64{1000, 1001})
	one.add(tally{
		Sequences: 2, Granted: 7, Least: 0.95, Wrong: []uint64{1001}, Steps: map[string]int{"join": 3, "crash": 1},
	})
	ts.add(t, one)
	ts.program = "another"
	ts.add(t, one)
	again := openTallies(t, file)
	assert.True(t, again.has(modes[0], []uint64{1000, 1001}))
	assert.False(t, again.has(modes[0], []uint64{1000}))
	assert.False(t, again.has(modes[0], []uint64{2000, 2001}))
	assert.False(t, again.has(modes[1], []uint64{1000, 1001}))
	again.add(t, newTally(modes[0], []uint64{0}))
	got := string(Table(t, file))
	for _, row := range []string{
		"| schedules | 2 | - | - | - | - | 2 |\n", "| replicas that crash | 1 | - | - | - | - | 1 |\n",
		"| permits granted | 7 | - | - | - | - | 7 |\n",
		"| least part of the limit granted without faults | 95 % | 100 % |", "| promises broken | 1 | 0 | 0 | 0 | 0 | 1 |\n",
	} {
		assert.Contains(t, got, row)
	}
}

// TestSeeds: slices of seeds are given by their ends.
func TestSeeds(t *testing.T) {
	t.Setenv("THROTTLE_SEED", "")
	t.Setenv("THROTTLE_SEEDS", "3")
	assert.Equal(t, []uint64{0, 1, 2}, Seeds(t, 1, 1))
	t.Setenv("THROTTLE_SEEDS", "5-7")
	assert.Equal(t, []uint64{5, 6}, Seeds(t, 1, 1))
	t.Setenv("THROTTLE_SEED", "9")
	assert.Equal(t, []uint64{9}, Seeds(t, 1, 1))
}
