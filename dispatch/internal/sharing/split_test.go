package sharing

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

func splitLimit(rate float64, poolSize int) resolve.Limit {
	l := limited(policy.Split, rate)
	l.Split = resolve.Split{PoolSize: poolSize, TTL: 2}
	return l
}

func (c *client) split() *split { return c.Mode.(*split) }

// TestSplitByRank: the slots of a limit go to the ranks in turn, so that the replicas together are
// the limit, even if it is lower than their number.
func TestSplitByRank(t *testing.T) {
	for _, rate := range []float64{100, 1} {
		w := newWorld()
		for range 3 {
			w.join(splitLimit(rate, 0)).callers = 1
		}
		w.run(8) // a new pool waits one ttl, and each newcomer for two heartbeats of the others
		from := w.now
		w.run(30)
		all, by := 0, map[int]bool{}
		for _, c := range w.clients {
			n := c.between(from, w.now)
			assert.InDelta(t, rate*10, n, 1.01)
			all += n
			by[c.split().rank] = true
			state := c.State(w.now)
			assert.InDelta(t, rate/3, state.Share, 1e-9)
			assert.Equal(t, 3, state.Pool)
		}
		assert.InDelta(t, rate*30, all, 1.01)
		assert.Len(t, by, 3)
	}
}

// TestSplitPoolChanges: a replica that leaves, and one that is silent, no longer count; what is
// dispatched is never more than the limit.
func TestSplitPoolChanges(t *testing.T) {
	w := newWorld()
	for range 2 {
		w.join(splitLimit(100, 0)).callers = 1
	}
	w.run(8)
	w.join(splitLimit(100, 0)).callers = 1
	w.run(4)
	a, b, c := w.clients[0], w.clients[1], w.clients[2]
	assert.Equal(t, 3, a.State(w.now).Pool)
	assert.False(t, c.Idle())
	c.closing, c.callers = true, 0
	c.touch()
	w.run(0.01)
	n := len(w.requests)
	assert.True(t, w.last().Heartbeat.Leave)
	assert.True(t, c.Idle())
	assert.Nil(t, c.Drain(w.now), "it has left")
	assert.Equal(t, math.Inf(1), c.WakeAt(w.now))
	taken := len(c.got)
	w.run(0.5)
	assert.Equal(t, 2, a.State(w.now).Pool, "within a tenth of the ttl")
	assert.Greater(t, len(w.requests), n)
	w.clients = w.clients[:1] // b crashes
	from := w.now
	w.run(10)
	assert.Equal(t, 1, a.State(w.now).Pool)
	assert.InDelta(t, 100*(10-2)+50*2, a.between(from, w.now), 60)
	assert.Len(t, c.got, taken)
	b.due = w.now
	w.clients = append(w.clients, b)
	from = w.now
	w.run(0.05)
	assert.LessOrEqual(t, b.between(from, w.now), 1, "its lease is over")

	new := w.join(splitLimit(100, 0))
	assert.Nil(t, new.Drain(w.now), "the store does not know it")
}

// TestSplitFixed: with the pool size in the policy no store is asked, and each replica draws its
// rank.
func TestSplitFixed(t *testing.T) {
	w := newWorld()
	ranks := map[int]int{}
	for range 40 {
		c := w.join(splitLimit(100, 4))
		c.callers = 1
		size, rank := c.split().place(1)
		assert.Equal(t, 4, size)
		ranks[rank]++
		assert.True(t, c.Idle())
	}
	assert.Len(t, ranks, 4)
	w.run(10)
	assert.Empty(t, w.requests)
	for _, c := range w.clients {
		assert.InDelta(t, 250, len(c.got), 1)
	}
	assert.Nil(t, w.clients[0].Drain(w.now))
}

// TestSplitSavesNothing: a replica keeps the slots of a round at most, and one at least, while no
// caller comes.
func TestSplitSavesNothing(t *testing.T) {
	for _, c := range []struct{ rate, kept float64 }{{1000, 50}, {10, 1}} {
		w := newWorld()
		s := w.join(splitLimit(c.rate, 2))
		s.Advance(Time{Now: 1, Step: 1}, Demand{})
		for i := range 3 {
			s.Advance(Time{Now: 2 + float64(i), Step: uint64(i + 2)}, Demand{})
			assert.EqualValues(t, c.kept, s.Available())
		}
		assert.InDelta(t, 3*c.rate/2-c.kept, s.State(4).Lost, 1)
		assert.InDelta(t, s.split().due(), s.NextPermit(4), 1e-9)
		assert.InDelta(t, 4, s.NextPermit(4), 1.01)
		assert.Equal(t, math.Inf(1), s.WakeAt(4), "nobody waits")
		s.Advance(Time{Now: 4, Step: 9}, Demand{Waiting: 1})
		assert.InDelta(t, s.split().due(), s.WakeAt(4), 1e-9)
	}
}

// TestSplitOutage: a replica whose lease is over goes on at the place that it was told last, if
// the policy says so.
func TestSplitOutage(t *testing.T) {
	for outage, taken := range map[policy.OnOutage]int{policy.OutageShare: 500, policy.OutageStop: 0} {
		w := newWorld()
		l := splitLimit(100, 0)
		l.OnOutage = outage
		a, b := w.join(l), w.join(l)
		a.callers, b.callers = 1, 1
		w.run(10)
		w.down = true
		n := len(w.requests)
		w.run(2)
		from := w.now
		w.run(10)
		assert.InDelta(t, taken, a.between(from, w.now), 2, "onOutage %s", outage)
		assert.InDelta(t, 240, len(w.requests)-n, 40, "each 0.05 to 0.15 s, and not all at once")
	}
}

// TestSplitChangedRate numbers the slots again: none comes twice, none is made up for.
func TestSplitChangedRate(t *testing.T) {
	w := newWorld()
	l := splitLimit(1000, 2)
	c := w.join(l)
	c.callers = 1
	w.run(5)
	for _, rate := range []float64{10, 2000, 3} {
		l = at(l, rate)
		c.Apply(l)
		c.touch()
		from := w.now
		w.run(10)
		assert.InDelta(t, 5*rate, c.between(from, w.now), 1.01, "%v/s", rate)
		assert.InDelta(t, rate, c.State(w.now).Allowed, 1e-9)
	}
}

// TestSplitClock: all replicas number the slots by the store's clock. When that steps, the slots
// are numbered again, so that no bunch of them comes.
func TestSplitClock(t *testing.T) {
	for _, c := range []struct{ step, seen float64 }{
		{-5, -5}, {5, 5}, {0.3, 0.3},
		{-0.3, 0}, // slow answers, as far as one can tell
	} {
		w := newWorld()
		w.ahead = 100
		s := w.join(splitLimit(100, 0))
		s.callers = 1
		w.run(8)
		w.ahead += c.step
		from := w.now
		w.run(0.5)
		assert.InDelta(t, 100+c.seen, s.split().offset, 1e-9)
		assert.InDelta(t, 50, s.between(from, w.now), 2, "step %v", c.step)
	}
}

// TestSplitRamp: all follow the line in the store; one that goes with the time needs no heartbeat
// for each step, and goes on while the store is unavailable.
func TestSplitRamp(t *testing.T) {
	w := newWorld()
	l := splitLimit(100, 2)
	l.Ramp = schedule.Ramp{From: 10, Over: 90, TTL: 5}
	l.Split.TTL = 300
	c := w.join(l)
	c.callers = 1
	w.run(20)
	assert.InDelta(t, 30, c.State(w.now).Allowed, 1)
	assert.InDelta(t, 20, len(w.requests), 2, "one a second on a ramp")
	w.down = true
	w.run(20)
	assert.InDelta(t, 50, c.State(w.now).Allowed, 1)
}

// TestSplitActive: a relaxed ramp rises while permits are wanted.
func TestSplitActive(t *testing.T) {
	w := newWorld()
	l := splitLimit(100, 2)
	l.Ramp = schedule.Ramp{From: 50, Over: 50, Relaxed: true}
	c := w.join(l)
	s := c.split()
	r := s.heartbeat(1, false)
	assert.False(t, r.Heartbeat.Active)
	w.do(r, 1)
	c.Answered(r, 1, 1)
	for i, d := range []Demand{{Waiting: 1}, {}} {
		c.Advance(Time{Now: 2 + float64(i), Step: 1}, d)
		r = s.heartbeat(2, false)
		assert.Equal(t, i == 0, r.Heartbeat.Active, "a caller waited")
		s.pending = false
	}
	c.Take(1)
	c.Advance(Time{Now: 4, Step: 3}, Demand{})
	c.Advance(Time{Now: 4.1, Step: 4}, Demand{})
	assert.True(t, s.heartbeat(5, false).Heartbeat.Active, "a permit was taken")
}
