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

// TestSplitByRank: the slots of a limit, which all replicas number by the store's clock, go to the
// ranks in turn. The replicas together reach the limit, also if it is less than one slot for each.
func TestSplitByRank(t *testing.T) {
	for _, rate := range []float64{100, 1} {
		w := newWorld()
		w.ahead = 2.00375
		for range 3 {
			w.join(splitLimit(rate, 0)).callers = 1
		}
		w.run(8) // for the TTL of a new pool, and two heartbeats for each replica
		from := w.now
		w.run(30)
		all, by := 0, map[int]bool{}
		for _, c := range w.clients {
			n := c.between(from, w.now)
			assert.InDelta(t, rate*10, n, 1.01)
			all += n
			by[c.split().rank] = true
			state := c.Stats(w.now)
			assert.InDelta(t, rate/3, state.Share, 1e-9)
			assert.Equal(t, 3, state.Pool)
		}
		assert.InDelta(t, rate*30, all, 1.01)
		assert.Len(t, by, 3)
		for _, c := range w.clients {
			for _, at := range c.got[len(c.got)/2:] {
				slot := (at+w.ahead)*rate + 1e-6 // a whole number, and a step of the loop
				assert.Less(t, slot-math.Floor(slot), tick*rate+1e-5)
				assert.Equal(t, c.split().rank, int(slot)%3)
			}
		}
	}
}

// TestSplitPoolChanges: replicas that have left or are silent do not count. The others get their
// slots, and the limit is never exceeded.
func TestSplitPoolChanges(t *testing.T) {
	w := newWorld()
	for range 2 {
		w.join(splitLimit(100, 0)).callers = 1
	}
	w.run(8)
	w.join(splitLimit(100, 0)).callers = 1
	w.run(4)
	a, b, c := w.clients[0], w.clients[1], w.clients[2]
	assert.Equal(t, 3, a.Stats(w.now).Pool)
	assert.False(t, c.Idle())
	c.closing, c.callers = true, 0
	c.touch()
	w.run(0.01)
	n := len(w.requests)
	assert.True(t, w.last().Heartbeat.Leave)
	assert.True(t, c.Idle())
	assert.Nil(t, c.Drain(w.now), "it has left")
	size, _ := c.split().place(w.now)
	assert.Zero(t, size)
	assert.Equal(t, math.Inf(1), c.WakeAt(w.now))
	taken := len(c.got)
	w.run(0.5)
	assert.Equal(t, 2, a.Stats(w.now).Pool, "within a tenth of the TTL")
	assert.Greater(t, len(w.requests), n)
	w.clients = w.clients[:1] // b crashes
	from := w.now
	w.run(10)
	assert.Equal(t, 1, a.Stats(w.now).Pool)
	assert.InDelta(t, 100*(10-2)+50*2, a.between(from, w.now), 60)
	assert.Len(t, c.got, taken)
	b.due = w.now
	w.clients = append(w.clients, b)
	from = w.now
	w.run(0.05)
	assert.LessOrEqual(t, b.between(from, w.now), 1, "its lease has ended")

	stranger := w.join(splitLimit(100, 0))
	assert.Nil(t, stranger.Drain(w.now), "it has never been a member")
}

// TestSplitFixed: with a pool size in the policy, replicas draw their ranks and make no requests.
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

// TestSplitSavesNothing: without callers, a replica keeps the slots of a round, and at least one.
func TestSplitSavesNothing(t *testing.T) {
	for _, c := range []struct{ rate, kept float64 }{{1000, 50}, {10, 1}} {
		w := newWorld()
		s := w.join(splitLimit(c.rate, 2))
		s.Advance(Time{Now: 1, Step: 1}, Demand{})
		for i := range 3 {
			s.Advance(Time{Now: 2 + float64(i), Step: uint64(i + 2)}, Demand{})
			assert.EqualValues(t, c.kept, s.Available())
		}
		assert.InDelta(t, 3*c.rate/2-c.kept, s.Stats(4).Lost, 1)
		assert.InDelta(t, s.split().due(), s.NextPermit(4), 1e-9)
		assert.InDelta(t, 4, s.NextPermit(4), 1.01)
		assert.Equal(t, math.Inf(1), s.WakeAt(4), "no caller waits")
		s.Advance(Time{Now: 4, Step: 9}, Demand{Waiting: 1})
		assert.InDelta(t, s.split().due(), s.WakeAt(4), 1e-9)
	}
}

// TestSplitOutage: with onOutage share, a replica whose lease has ended keeps its last place.
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
		assert.InDelta(t, 240, len(w.requests)-n, 40, "heartbeats 0.05 to 0.15 s apart")
	}
}

// TestSplitChangedRate: a new rate makes up for no slots, and gives none twice.
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
		assert.InDelta(t, rate, c.Stats(w.now).Allowed, 1e-9)
	}
}

// TestSplitClock: a step of the store's clock brings no bunch of slots.
func TestSplitClock(t *testing.T) {
	for _, c := range []struct{ step, seen float64 }{
		{-5, -5}, {5, 5}, {0.3, 0.3},
		{-0.3, 0}, // indistinguishable from a slow answer
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

// TestSplitRamp: replicas follow the line in the store with a heartbeat a second. A scheduled ramp
// goes on while the store is unavailable.
func TestSplitRamp(t *testing.T) {
	w := newWorld()
	l := splitLimit(100, 2)
	l.Ramp = schedule.Ramp{From: 10, Over: 90, TTL: 5}
	l.Split.TTL = 300
	c := w.join(l)
	c.callers = 1
	w.run(20)
	assert.InDelta(t, 30, c.Stats(w.now).Allowed, 1)
	assert.InDelta(t, 20, len(w.requests), 2, "a heartbeat a second")
	w.down = true
	w.run(20)
	assert.InDelta(t, 50, c.Stats(w.now).Allowed, 1)
}

// TestSplitActive: a heartbeat tells whether permits were wanted since the last one.
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

// TestSplitLeaseFromRequest: a lease counts from its request, however slow the answer is.
func TestSplitLeaseFromRequest(t *testing.T) {
	var until []float64
	for _, took := range []float64{0, 0.2} {
		w := newWorld()
		c := w.join(splitLimit(100, 0))
		r := c.Next(1, Demand{})
		w.do(r, 1)
		c.Answered(r, 1+took, 1+took)
		until = append(until, c.split().lease.Until)
	}
	assert.Greater(t, until[0], 1.0)
	assert.Equal(t, until[0], until[1])
}

// TestSplitRetries: heartbeats that failed are repeated after 0.5 to 1.5 times their interval.
func TestSplitRetries(t *testing.T) {
	w := newWorld()
	w.down = true
	low, high := math.Inf(1), 0.0
	for range 300 {
		c := w.join(splitLimit(100, 0))
		r := c.Next(1, Demand{})
		w.do(r, 1)
		c.Answered(r, 1, 1)
		low, high = min(low, c.split().again), max(high, c.split().again)
	}
	assert.InDelta(t, 1.05, low, 0.003)
	assert.InDelta(t, 1.15, high, 0.003)
}

// TestSplitLeaving: a replica that leaves is not idle until its last heartbeat is answered.
func TestSplitLeaving(t *testing.T) {
	w := newWorld()
	c := w.join(splitLimit(100, 0))
	w.run(5)
	r := c.Drain(w.now)
	if assert.NotNil(t, r) {
		assert.False(t, c.Idle())
		w.do(r, w.now)
		c.Answered(r, w.now, w.now)
		assert.True(t, c.Idle())
	}
}

// TestSplitFresh: unused permits of grants older than two slots are not given back.
func TestSplitFresh(t *testing.T) {
	w := newWorld()
	c := w.join(splitLimit(100, 1))
	c.callers = 1
	w.run(1)
	assert.True(t, c.Fresh(c.step))
	taken := c.step
	w.run(1)
	assert.False(t, c.Fresh(taken))
}
