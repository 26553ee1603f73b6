package pool_test

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/pool"
)

// settled returns a fleet of so many replicas that agree.
func settled(t *testing.T, size int) *fleet {
	t.Helper()
	f := &fleet{t: 1e9}
	for range size {
		f.join()
	}
	f.run(f.t+2*ttl, func() {})
	for i, r := range f.replicas {
		require.Equal(t, pool.Answer{Term: f.state.Term, Active: size, Size: size, Rank: i, Agreed: true}, f.held(r))
	}
	return f
}

// under fails the test if more than the limit may be spent.
func (f *fleet) under(t *testing.T) func() {
	return func() {
		t.Helper()
		require.LessOrEqual(t, f.sum(), 1+1e-9, "at %v: %+v", f.t-1e9, f.state)
	}
}

type step struct {
	who    int
	size   int
	agreed bool
}

func steps(t *testing.T, f *fleet, steps []step) {
	t.Helper()
	for i, s := range steps {
		f.t += 0.01
		a := f.meet(f.replicas[s.who])
		require.Equal(t, s.size, a.Size, "size in step %d: %+v", i, f.state)
		require.Equal(t, s.agreed, a.Agreed, "agreed in step %d: %+v", i, f.state)
		f.under(t)()
	}
}

func TestMeetGrows(t *testing.T) {
	f := settled(t, 2)
	f.join()
	steps(t, f, []step{
		{2, 0, false}, // the newcomer is counted and gets nothing
		{2, 0, false}, // however often it asks
		{0, 3, false}, // told
		{0, 3, false}, // applied
		{2, 0, false}, // one is missing
		{1, 3, false}, // told
		{1, 3, true},  // applied, and so has everybody
		{2, 3, true},
	})
}

func TestMeetShrinks(t *testing.T) {
	f := settled(t, 3)
	f.leave(2)
	steps(t, f, []step{
		{0, 3, false}, // one more is what the other one still reports
		{0, 3, false}, // reports 2, uses 3
		{1, 3, false},
		{1, 2, true}, // all report 2, and 2 it is
		{0, 2, true},
	})
}

func TestMeetFirst(t *testing.T) {
	f := &fleet{t: 1e9}
	f.join()
	f.run(f.t+ttl-0.01, func() { require.Zero(t, f.sum(), "others may spend by a state that was lost") })
	f.run(f.t+0.05, func() {})
	assert.Equal(t, 1.0, f.sum())
}

// TestMeetScale is 4 -> 7 -> 2 replicas, one of which goes without a word, and a rolling restart.
func TestMeetScale(t *testing.T) {
	f := settled(t, 4)
	whole := func(when string, within float64) {
		t.Helper()
		f.run(f.t+within, f.under(t))
		assert.InDelta(t, 1, f.sum(), 1e-9, when)
		assert.EqualValues(t, 10, f.permits(10, 7), when)
	}
	for range 3 {
		f.join()
	}
	whole("7 replicas", 0.2)
	for range 4 {
		f.leave(0)
	}
	f.crash(1)
	whole("2 replicas", ttl+0.2)
	for range 2 {
		f.crash(0)
		f.join()
		whole("restarted", ttl+0.2)
	}
	for range 2 {
		f.leave(0)
		f.join()
		whole("restarted with a goodbye", 0.2)
	}
	left := f.replicas[0].lease.Left()
	assert.Equal(t, pool.Lease{Replica: left.Replica, Stay: 1}, left, "nothing held, a new name")
}

// TestMeetDispatch dispatches what the shares allow, at an even pace, through random joins,
// goodbyes, crashes and pauses: in no second is it more than the limit and one for each replica.
func TestMeetDispatch(t *testing.T) {
	const limit, dt, ticks = 100, 0.01, 100 // ticks in a second
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		f := settled(t, 4)
		due := map[*replica]float64{}
		var done []int
		most := 0 // replicas
		for tick := range 40 * ticks {
			if tick%25 == 0 {
				switch i := rng.IntN(len(f.replicas)); rng.IntN(5) {
				case 0:
					f.join()
				case 1:
					if len(f.replicas) > 2 {
						f.leave(i)
					}
				case 2:
					if len(f.replicas) > 2 {
						f.crash(i)
					}
				case 3:
					f.replicas[i].paused = !f.replicas[i].paused
				}
			}
			f.run(f.t+dt, func() {})
			done = append(done, 0)
			for _, r := range f.replicas {
				a := f.held(r)
				due[r] += float64(pool.Share(limit, a.Size, a.Rank, int64(f.t))) * dt
				if due[r] >= 1 {
					due[r]--
					done[tick]++
				}
			}
			most = max(most, len(f.replicas))
			second := 0
			for _, n := range done[max(0, tick+1-ticks):] {
				second += n
			}
			require.LessOrEqual(t, second, limit+most, "seed %d, tick %d", seed, tick)
		}
	}
}

// TestMeetPause: who was paused holds still until it has met again, under another name.
func TestMeetPause(t *testing.T) {
	f := settled(t, 2)
	paused := f.replicas[0]
	paused.paused = true
	f.run(f.t+3*ttl, f.under(t))
	assert.Equal(t, 1.0, f.sum(), "the other one has it all")
	assert.Zero(t, f.held(paused))
	f.meet(paused)
	assert.Zero(t, f.held(paused).Size, "a newcomer")
	assert.Equal(t, "r1#1", paused.lease.Member())
	paused.paused = false
	f.run(f.t+0.2, f.under(t))
	assert.Equal(t, 2, f.held(paused).Size)
	assert.Equal(t, 1.0, f.sum())
}

// TestMeetLost: replies that are lost, and calls that come again, keep a newcomer waiting and let nobody go over.
func TestMeetLost(t *testing.T) {
	f := settled(t, 1)
	f.join()
	f.meet(f.replicas[1])
	first := f.begin(f.replicas[0])
	f.deliver(first) // the store has told it 2; it never hears
	for range 3 {
		f.deliver(first)
		f.meet(f.replicas[1])
		f.under(t)()
	}
	assert.Zero(t, f.held(f.replicas[1]).Size)
	f.meet(f.replicas[0])
	f.meet(f.replicas[0])
	f.deliver(first)
	f.meet(f.replicas[1])
	assert.Equal(t, 2, f.held(f.replicas[1]).Size)
	f.under(t)()
}

// TestMeetStoreLost: everybody goes on with what it had, and nobody takes more until all had the time to meet.
func TestMeetStoreLost(t *testing.T) {
	f := settled(t, 4)
	f.replicas[3].paused = true
	f.state = pool.State{}
	f.run(f.t+0.45, func() { require.Equal(t, 1.0, f.sum()) })
	f.replicas[3].paused = false
	f.run(f.t+ttl+0.2, func() { require.Equal(t, 1.0, f.sum()) })
	for _, r := range f.replicas {
		assert.True(t, f.held(r).Agreed)
	}
}

// TestMeetStoreOld: an old state, that of a pool of one, comes back in a pool of two, and a third joins before it shows.
func TestMeetStoreOld(t *testing.T) {
	f := settled(t, 1)
	old := f.state
	f.join()
	f.run(f.t+0.2, f.under(t))
	f.state = old
	f.replicas[1].paused = true // for a moment
	copied := f.calls[0]
	f.join()
	newcomer := f.replicas[2]
	f.meet(newcomer)
	f.deliver(call{member: "r1#0", applied: copied.applied}) // a late call of the first
	for range 3 {
		f.t += 0.02
		f.meet(f.replicas[0])
		f.meet(newcomer)
		f.under(t)()
	}
	assert.Zero(t, f.held(newcomer).Size)
	f.replicas[1].paused = false
	f.run(f.t+ttl+0.3, f.under(t))
	assert.InDelta(t, 1, f.sum(), 1e-9)
	assert.Equal(t, 3, f.held(newcomer).Size)
}

// TestMeetStoreOldNewcomer: the old state knows a newcomer that has been let in since.
func TestMeetStoreOldNewcomer(t *testing.T) {
	f := settled(t, 1)
	f.join()
	steps(t, f, []step{{1, 0, false}, {0, 2, false}, {0, 2, false}})
	old := f.state
	steps(t, f, []step{{1, 2, true}})
	f.state = old
	f.join()
	steps(t, f, []step{{2, 0, false}, {0, 3, false}, {0, 3, false}, {2, 0, false}})
}

// TestMeetStoreOldChange: the old state has told a member of a change, and the member comes with a later one.
func TestMeetStoreOldChange(t *testing.T) {
	f := settled(t, 2)
	f.leave(1)
	f.deliver(f.begin(f.replicas[0])) // is told of it and never hears
	old := f.state
	f.join()
	steps(t, f, []step{{1, 0, false}, {0, 2, false}, {0, 2, false}, {1, 2, true}})
	f.state = old
	f.join()
	steps(t, f, []step{{2, 0, false}, {0, 2, false}, {0, 2, false}, {2, 0, false}})
}

// TestMeetLeaveLate: a goodbye comes again when an old state is back in which its member still is.
func TestMeetLeaveLate(t *testing.T) {
	f := settled(t, 1)
	old := f.state
	f.join()
	f.run(f.t+0.1, func() {})
	f.leave(0)
	f.run(f.t+0.2, f.under(t))
	f.replicas[0].paused = true
	require.Equal(t, 1.0, f.sum())
	f.state = old
	f.join()
	f.meet(f.replicas[1])
	f.deliver(call{member: "r1#0", leave: true})
	f.run(f.t+0.1, f.under(t))
}

// TestMeetClock: a clock that jumps makes nobody stale who still spends.
func TestMeetClock(t *testing.T) {
	for _, jump := range []float64{-5, 0.3, 0.85, 5, 3600} {
		f := settled(t, 3)
		f.replicas[1].paused, f.replicas[2].paused = true, true
		f.run(f.t+0.2, f.under(t))
		f.skew += jump
		f.run(f.t+0.25, f.under(t))
		f.replicas[1].paused, f.replicas[2].paused = false, false
		f.run(f.t+0.2, func() { require.Equal(t, 1.0, f.sum(), "after %v", jump) })
	}
}

// TestMeetWait: whatever others do, join and crash all the time or go silent in the worst moment,
// a newcomer that calls spends within 2 ttl and a call.
func TestMeetWait(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		f := settled(t, 1+rng.IntN(5))
		newcomer := f.join()
		joined := f.t
		for f.held(newcomer).Size == 0 {
			switch rng.IntN(6) {
			case 0:
				f.join()
			case 1:
				if i := rng.IntN(len(f.replicas)); f.replicas[i] != newcomer {
					f.crash(i)
				}
			case 2:
				if i := rng.IntN(len(f.replicas)); f.replicas[i] != newcomer && rng.IntN(2) == 0 {
					f.leave(i)
				}
			case 3:
				r := f.replicas[rng.IntN(len(f.replicas))]
				r.paused = r != newcomer && !r.paused
			}
			f.run(f.t+0.1*rng.Float64(), f.under(t))
			require.LessOrEqual(t, f.t-joined, 2*ttl+0.2, "seed %d: %+v", seed, f.state)
		}
	}
}

// TestMeetDeaf: one whose calls arrive and who hears no answer is counted, and holds up nobody for long.
func TestMeetDeaf(t *testing.T) {
	f := settled(t, 3)
	deaf := call{member: "deaf"}
	calls := func(within float64) {
		for end := f.t + within; f.t < end; {
			f.deliver(deaf)
			f.run(f.t+0.05, f.under(t))
		}
	}
	calls(0.5)
	f.join()
	calls(ttl + 0.2)
	for _, r := range f.replicas {
		assert.Equal(t, 5, f.held(r).Size)
	}
	f.leave(3)
	f.leave(2)
	calls(0.3)
	for _, r := range f.replicas {
		assert.Equal(t, 3, f.held(r).Size)
	}
	assert.Less(t, len(f.state.Members[2].Told), 10)
}

func TestStateIsSmallAndSurvivesJSON(t *testing.T) {
	f := settled(t, 3)
	b, err := json.Marshal(f.state)
	require.NoError(t, err)
	var back pool.State
	require.NoError(t, json.Unmarshal(b, &back))
	assert.Equal(t, f.state, back)
	assert.Less(t, len(b), 3*150)
}

// TestMeetKeepsItsInput: a permit store that fails to store the new state still has the old one.
func TestMeetKeepsItsInput(t *testing.T) {
	f := settled(t, 3)
	before, err := json.Marshal(f.state)
	require.NoError(t, err)
	kept := f.state
	f.deliver(call{member: "other"})
	f.deliver(call{member: "r1#0", leave: true})
	after, err := json.Marshal(kept)
	require.NoError(t, err)
	assert.JSONEq(t, string(before), string(after))
}
