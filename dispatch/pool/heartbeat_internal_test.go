package pool

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// settled returns a fleet of n replicas that agree.
func settled(t *testing.T, size int) *fleet {
	t.Helper()
	f := &fleet{t: 1e9}
	for range size {
		f.join()
	}
	f.run(f.t+2*ttl, func() {})
	for i, r := range f.replicas {
		require.Equal(t, Answer{Term: f.state.Term, Active: size, Size: size, Rank: i, Agreed: true}, f.held(r))
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
		a := f.heartbeat(f.replicas[s.who])
		require.Equal(t, s.size, a.Size, "size in step %d: %+v", i, f.state)
		require.Equal(t, s.agreed, a.Agreed, "agreed in step %d: %+v", i, f.state)
		f.under(t)()
	}
}

func TestHeartbeatGrows(t *testing.T) {
	f := settled(t, 2)
	f.join()
	steps(t, f, []step{
		{2, 0, false}, // the newcomer is counted and gets nothing
		{2, 0, false}, // however often it asks
		{0, 3, false}, // told
		{0, 3, false}, // applied
		{2, 0, false}, // one is missing
		{1, 3, false}, // told
		{1, 3, true},  // applied, as by all others
		{2, 3, true},
	})
}

func TestHeartbeatShrinks(t *testing.T) {
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

func TestHeartbeatFirst(t *testing.T) {
	f := &fleet{t: 1e9}
	f.join()
	f.run(f.t+ttl-0.01, func() { require.Zero(t, f.sum(), "others may spend by a state that was lost") })
	f.run(f.t+0.05, func() {})
	assert.Equal(t, 1.0, f.sum())
}

// TestHeartbeatScale is 4 -> 7 -> 2 replicas, one of which ends without a word, and a rolling
// restart.
func TestHeartbeatScale(t *testing.T) {
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
		whole("left and restarted", 0.2)
	}
	left := f.replicas[0].lease.Left()
	assert.Equal(t, Lease{Replica: left.Replica, Stay: 1}, left, "nothing held, a new name")
}

// TestHeartbeatDispatch dispatches what the shares allow, at an even pace, through random joins,
// leaves, crashes and pauses: in no second is it more than the limit and one for each replica.
func TestHeartbeatDispatch(t *testing.T) {
	const limit, dt, ticks = 100, 0.01, 100 // ticks in a second
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		f := settled(t, 4)
		due := map[*replica]float64{}
		var done []int
		maxSize := 0
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
				due[r] += float64(share(limit, a.Size, a.Rank, int64(f.t))) * dt
				if due[r] >= 1 {
					due[r]--
					done[tick]++
				}
			}
			maxSize = max(maxSize, len(f.replicas))
			second := 0
			for _, n := range done[max(0, tick+1-ticks):] {
				second += n
			}
			require.LessOrEqual(t, second, limit+maxSize, "seed %d, tick %d", seed, tick)
		}
	}
}

// TestHeartbeatPause: a replica that was paused spends nothing until it has joined again, under
// another name.
func TestHeartbeatPause(t *testing.T) {
	f := settled(t, 2)
	paused := f.replicas[0]
	paused.paused = true
	f.run(f.t+3*ttl, f.under(t))
	assert.Equal(t, 1.0, f.sum(), "the other one has it all")
	assert.Zero(t, f.held(paused))
	f.heartbeat(paused)
	assert.Zero(t, f.held(paused).Size, "a newcomer")
	assert.Equal(t, "r1#1", paused.lease.Member())
	paused.paused = false
	f.run(f.t+0.2, f.under(t))
	assert.Equal(t, 2, f.held(paused).Size)
	assert.Equal(t, 1.0, f.sum())
}

// TestHeartbeatLost: replies that are lost, and calls that come again, keep a newcomer waiting,
// and the bound holds.
func TestHeartbeatLost(t *testing.T) {
	f := settled(t, 1)
	f.join()
	f.heartbeat(f.replicas[1])
	first := f.begin(f.replicas[0])
	f.deliver(first) // the store has told it 2; it never hears
	for range 3 {
		f.deliver(first)
		f.heartbeat(f.replicas[1])
		f.under(t)()
	}
	assert.Zero(t, f.held(f.replicas[1]).Size)
	f.heartbeat(f.replicas[0])
	f.heartbeat(f.replicas[0])
	f.deliver(first)
	f.heartbeat(f.replicas[1])
	assert.Equal(t, 2, f.held(f.replicas[1]).Size)
	f.under(t)()
}

// TestHeartbeatStoreLost: all go on with what they had, and none takes more until all had the
// time for a heartbeat.
func TestHeartbeatStoreLost(t *testing.T) {
	f := settled(t, 4)
	f.replicas[3].paused = true
	f.state = State{}
	f.run(f.t+0.45, func() { require.Equal(t, 1.0, f.sum()) })
	f.replicas[3].paused = false
	f.run(f.t+ttl+0.2, func() { require.Equal(t, 1.0, f.sum()) })
	for _, r := range f.replicas {
		assert.True(t, f.held(r).Agreed)
	}
}

// TestHeartbeatStoreOld: an old state, that of a pool of one, comes back in a pool of two, and a
// third joins before it shows.
func TestHeartbeatStoreOld(t *testing.T) {
	f := settled(t, 1)
	old := f.state
	f.join()
	f.run(f.t+0.2, f.under(t))
	f.state = old
	f.replicas[1].paused = true // for a moment
	copied := f.calls[0]
	f.join()
	newcomer := f.replicas[2]
	f.heartbeat(newcomer)
	f.deliver(call{member: "r1#0", applied: copied.applied}) // a late call of the first
	for range 3 {
		f.t += 0.02
		f.heartbeat(f.replicas[0])
		f.heartbeat(newcomer)
		f.under(t)()
	}
	assert.Zero(t, f.held(newcomer).Size)
	f.replicas[1].paused = false
	f.run(f.t+ttl+0.3, f.under(t))
	assert.InDelta(t, 1, f.sum(), 1e-9)
	assert.Equal(t, 3, f.held(newcomer).Size)
}

// TestHeartbeatStoreOldNewcomer: the old state knows a newcomer that has been let in since.
func TestHeartbeatStoreOldNewcomer(t *testing.T) {
	f := settled(t, 1)
	f.join()
	steps(t, f, []step{{1, 0, false}, {0, 2, false}, {0, 2, false}})
	old := f.state
	steps(t, f, []step{{1, 2, true}})
	f.state = old
	f.join()
	steps(t, f, []step{{2, 0, false}, {0, 3, false}, {0, 3, false}, {2, 0, false}})
}

// TestHeartbeatStoreOldChange: the old state has told a member of a change, and the member comes
// with a later one.
func TestHeartbeatStoreOldChange(t *testing.T) {
	f := settled(t, 2)
	f.leave(1)
	f.deliver(f.begin(f.replicas[0])) // its answer is lost
	old := f.state
	f.join()
	steps(t, f, []step{{1, 0, false}, {0, 2, false}, {0, 2, false}, {1, 2, true}})
	f.state = old
	f.join()
	steps(t, f, []step{{2, 0, false}, {0, 2, false}, {0, 2, false}, {2, 0, false}})
}

// TestHeartbeatLeaveLate: a Leave comes again when an old state is back in which its member still
// is.
func TestHeartbeatLeaveLate(t *testing.T) {
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
	f.heartbeat(f.replicas[1])
	f.deliver(call{member: "r1#0", leave: true})
	f.run(f.t+0.1, f.under(t))
}

// TestHeartbeatClock: a clock that jumps makes no member stale that still spends.
func TestHeartbeatClock(t *testing.T) {
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

// TestHeartbeatWait: whatever others do, join and crash all the time or go silent in the worst
// moment, a newcomer that calls spends within 2 ttl and a call.
func TestHeartbeatWait(t *testing.T) {
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

// TestHeartbeatDeaf: a replica whose calls arrive and that hears no answer is counted, and holds
// up no other for long.
func TestHeartbeatDeaf(t *testing.T) {
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
	var back State
	require.NoError(t, json.Unmarshal(b, &back))
	assert.Equal(t, f.state, back)
	assert.Less(t, len(b), 3*150)
}

// TestHeartbeatKeepsItsInput: a permit store that fails to store the new state still has the old
// one.
func TestHeartbeatKeepsItsInput(t *testing.T) {
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
