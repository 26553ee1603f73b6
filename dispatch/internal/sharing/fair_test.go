package sharing

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestFairTwoBatches: of a replica whose callers always wait, one batch runs and at most one is
// still to come, so that no permit is missed, however long a request takes.
func TestFairTwoBatches(t *testing.T) {
	for _, rtt := range []float64{0, 0.02} {
		w := newWorld()
		c := w.join(limited(policy.Fair, 1000))
		c.callers = 1
		c.far(rtt)
		if rtt == 0 {
			c.env.Timeout = 0
		}
		w.run(1)
		most := 0
		for range 400 {
			w.run(0.01)
			most = max(most, c.unreleased())
		}
		assert.Equal(t, 2, most, "rtt %v", rtt)
		assert.InDelta(t, 4000, c.between(2, 6), 20, "rtt %v", rtt)
		assert.InDelta(t, 100, len(w.requests), 10, "rtt %v: each for half a round, since it is alone", rtt)
		assert.Zero(t, c.State(w.now).Lost)
	}
}

// TestFairDrain: a replica without callers gives back what it holds, and then needs no step. A
// caller that comes later is served again.
func TestFairDrain(t *testing.T) {
	w := newWorld()
	c := w.join(limited(policy.Fair, 1000))
	c.callers = 1
	w.run(1)
	assert.False(t, c.Idle())
	taken := c.step
	c.callers = 0
	w.run(0.3)
	last := w.last().Allocate
	assert.Zero(t, last.Want)
	assert.Greater(t, last.Returned, 2.0)
	assert.Zero(t, c.Held())
	assert.True(t, c.Idle())
	assert.False(t, c.Fresh(taken), "grants of that time come too late now")
	assert.LessOrEqual(t, w.state.Tail, w.now, "all of it went back")
	n, steps := len(w.requests), c.step
	w.run(100)
	assert.Len(t, w.requests, n)
	assert.LessOrEqual(t, c.step, steps+1)
	c.once = 1
	c.touch()
	w.run(0.01)
	assert.Zero(t, c.once)
}

// TestFairKeep: a share without a handle requests nothing and keeps what it holds for a new one,
// until then.
func TestFairKeep(t *testing.T) {
	w := newWorld()
	l := limited(policy.Fair, 10)
	l.Round = 5
	c := w.join(l)
	c.callers = 1
	w.run(3)
	assert.Greater(t, c.Held(), int64(2))
	c.callers = 0
	assert.True(t, c.Keep(w.now+0.5))
	assert.True(t, c.Kept())
	c.touch()
	n := len(w.requests)
	w.run(0.4)
	assert.Len(t, w.requests, n)
	assert.Greater(t, c.Held(), int64(2))
	w.run(0.2)
	assert.Zero(t, c.Held())
	assert.Len(t, w.requests, n+1)
	assert.Zero(t, w.last().Allocate.Want)

	assert.True(t, c.Keep(0))
	assert.False(t, c.Kept())
	c.once = 1
	c.touch()
	w.run(1)
	assert.Zero(t, c.once)
	for _, mode := range []policy.SharingMode{policy.Strict, policy.Split, policy.Groups} {
		s := w.join(limited(mode, 10))
		assert.False(t, s.Keep(5), mode)
		assert.False(t, s.Kept(), mode)
	}
}

// TestFairKeptUnderAChangedLimit gives back at once what was allocated under another limit.
func TestFairKeptUnderAChangedLimit(t *testing.T) {
	w := newWorld()
	l := limited(policy.Fair, 10)
	l.Round = 5
	c := w.join(l)
	c.callers = 1
	w.run(3)
	c.callers = 0
	c.Keep(w.now + 5)
	assert.True(t, c.Apply(at(l, 20)))
	c.touch()
	w.run(0.01)
	assert.Zero(t, c.Held())
	assert.Zero(t, w.last().Allocate.Want)
}

// TestFairTurn is how long after a reply the next request is made, by its share of the line, and
// by how much later than the replica's own slots the new ones begin.
func TestFairTurn(t *testing.T) {
	for _, c := range []struct {
		rate, share, start, turn float64
	}{
		{1000, 500, 5, 0},         // a permit and more in each round
		{10, 1, 0.01, 0},          // the line has room
		{10, 1, 0.5, 0},           // 1.6 s times 1 is more than a permit
		{10, 0.5, 0.5, 2},         // others have slots before
		{100, 2, 0.5, 0.5},        // the time in which the share has one permit
		{10, 0.01, 0.5, maxTurn},  // of 100 s
		{1000, 0.1, 0.04, 0},      // less than half a round
		{1000, 0.1, 0.2, maxTurn}, // 10 s
	} {
		w := newWorld()
		f := newFair(w.join(limited(policy.Fair, c.rate)).Share)
		f.done = 1
		assert.InDelta(t, c.turn, f.turn(&schedule.Reply{Rate: c.rate, Share: c.share, Start: c.start}), 1e-9, "%+v", c)
	}
}

// TestFairTurns: replicas whose shares are less than a permit in a round get the same, and leave
// out rounds, so that they do not request more often than they are served.
func TestFairTurns(t *testing.T) {
	w := newWorld()
	for range 20 {
		w.join(limited(policy.Fair, 10)).callers = 1
	}
	w.run(30)
	n := len(w.requests)
	from := w.now
	w.run(60)
	for i, c := range w.clients {
		assert.InDelta(t, 30, c.between(from, w.now), 3, "replica %d", i)
	}
	assert.LessOrEqual(t, len(w.requests)-n, 610)

	c := w.clients[0] // a change of the limit ends the turn
	c.turnUntil(w.now + 1.5)
	c.Apply(at(c.Limit, 1000))
	c.touch()
	n = len(w.requests)
	w.run(0.01)
	assert.Greater(t, len(w.requests), n)
}

// turnUntil sets the time before which a fair share requests nothing.
func (c *client) turnUntil(at float64) { c.Mode.(*fair).turnAt = at }

// TestFairWakesAtItsTurn: a caller that waits while the line is full is not forgotten.
func TestFairWakesAtItsTurn(t *testing.T) {
	w := newWorld()
	c := w.join(limited(policy.Fair, 10))
	c.once = 1
	w.run(10)
	n := len(w.requests)
	c.turnUntil(w.now + 1.5)
	c.once = 1
	c.touch()
	w.run(1.4)
	assert.Len(t, w.requests, n)
	assert.Equal(t, 1, c.once)
	w.run(0.2)
	assert.Greater(t, len(w.requests), n)
	assert.Zero(t, c.once)
}

// TestFairChangedRate: what is held is released at the new rate, and a lowered limit does not come
// on top of the old one.
func TestFairChangedRate(t *testing.T) {
	for _, rate := range []float64{10, 100, 1000} {
		w := newWorld()
		l := limited(policy.Fair, 100)
		l.Round = 1
		c := w.join(l)
		c.callers = 1
		w.run(3.3)
		share := c.State(w.now).Share
		c.rtt = 0.2 // the change is felt before the store is heard of
		assert.Equal(t, rate != 100, c.Apply(at(l, rate)))
		from := w.now
		c.touch()
		w.run(0.001)
		state := c.State(w.now)
		assert.InDelta(t, rate, state.Allowed, 1e-9)
		assert.InEpsilon(t, share*rate/100, state.Share, 0.01, "the share is scaled until it is told")
		c.rtt = 0
		w.run(4)
		assert.InDelta(t, rate*4, c.between(from, w.now), 4+rate/20, "at %v/s", rate)
	}
}

// TestFairRamp goes at the pace of the line on a ramp, whatever the limit says.
func TestFairRamp(t *testing.T) {
	w := newWorld()
	l := limited(policy.Fair, 100)
	l.Ramp = schedule.Ramp{From: 10, Over: 9}
	c := w.join(l)
	c.callers = 1
	w.run(0.01)
	assert.InDelta(t, 10, c.State(w.now).Allowed, 1e-9)
	w.run(3)
	assert.InDelta(t, 40, c.State(w.now).Allowed, 10)
	assert.InDelta(t, 60, len(c.got), 25)
	w.run(9)
	assert.InDelta(t, 100, c.State(w.now).Allowed, 1e-9)
	steeper := at(l, 200)
	steeper.Ramp.From = 500
	c.Apply(steeper)
	c.rtt = 0.2
	c.touch()
	w.run(0.001)
	assert.InDelta(t, 200, c.State(w.now).Allowed, 1e-9, "a ramp from above the limit begins at it")
}

// TestFairGrace: the permits of a limit that busy answers lower do not come in a bunch after a
// pause.
func TestFairGrace(t *testing.T) {
	w := newWorld()
	l := limited(policy.Fair, 10)
	assert.InDelta(t, 0.1, newFair(w.join(l).Share).grace(), 1e-9)
	l.Rule.Mode = busy.ByCount
	assert.InDelta(t, 0.02, newFair(w.join(l).Share).grace(), 1e-9)
}

// TestFairLife: permits expire after a round, or the time in which the replica gets one, or as
// long as its callers take for them.
func TestFairLife(t *testing.T) {
	for i, c := range []struct {
		share, round, demand, patience, life float64
		asked                                int64
	}{
		{share: 100, life: 0.1},
		{share: 100, round: 0.4, life: 0.4},
		{share: 4, life: 0.25},
		{share: 0, life: maxTurn},
		{share: 100, demand: 10, life: 1.3},              // ten permits
		{share: 100, asked: 1, patience: 3, life: 3.9},   // a caller that comes back
		{share: 100, asked: 0, patience: 3, life: 0.1},   // that does not
		{share: 100, demand: 1000, round: 1, life: 1.0},  //
		{share: 0.5, demand: 100, round: 0.1, life: 2.0}, //
	} {
		w := newWorld()
		f := newFair(w.join(limited(policy.Fair, 100)).Share)
		f.share, f.round, f.sentDemand, f.asked, f.patience = c.share, c.round, c.demand, c.asked, c.patience
		assert.InDelta(t, c.life, f.life(10), 1e-9, "row %d", i)
	}
}

// TestFairSlowRequest: an answer that took longer than usual need not mean that the store's clock
// has stepped. The next request says so, and the permits begin where they would have.
func TestFairSlowRequest(t *testing.T) {
	for _, c := range []struct {
		took           float64
		shifts, begins float64
	}{
		{0.5, 3, 0.25},   // as slow as the clock seems ahead
		{0.01, 3.4, 0.4}, // as fast as ever: the clock has stepped
	} {
		w := newWorld()
		s := w.join(limited(policy.Fair, 10)).Share
		f := s.Mode.(*fair)
		f.carry, f.rtts, f.rate = schedule.Carry{Inc: 1, Shifts: 3}, [2]float64{0.01, 0.01}, 10
		f.clock = clock{now: 100, sent: 0.99, received: 1}
		r := f.request(1, order{want: 1})
		r.Allocate.Reply = schedule.Reply{
			N: 1, Start: 0.4, Ahead: 0.15, Share: 10, Rate: 10, Gap: 0.1, Now: r.Allocate.High + 0.4, Carry: schedule.Carry{Inc: 1, Shifts: 3.4},
		}
		f.Answered(r, 1+c.took, 1+c.took)
		assert.InDelta(t, c.shifts, f.carry.Shifts, 1e-9)
		assert.InDelta(t, 1+c.took+c.begins, f.batches.upcoming(1+c.took).due, 1e-9)
	}
}

// TestCovered: a caller that comes now is served by the next step while a request is on its way or
// a batch is still to begin.
func TestCovered(t *testing.T) {
	w := newWorld()
	c := w.join(limited(policy.Fair, 10))
	assert.False(t, c.Covered(1))
	assert.True(t, c.Idle())
	r := c.Next(1, Demand{Waiting: 1, Anybody: true})
	assert.True(t, c.Covered(1))
	assert.False(t, c.Idle())
	assert.Nil(t, c.Next(1, Demand{Waiting: 1, Anybody: true}), "one is on its way")
	w.do(r, 1)
	r.Allocate.Reply.Start = 0.5
	c.Answered(r, 1.1, 1.1)
	assert.True(t, c.Covered(1.5))
	assert.False(t, c.Covered(1.7), "it has started")
}

// TestRefusedCallersComeBack: a refusal is demand until the caller has stayed away for twice as
// long as it did before.
func TestRefusedCallersComeBack(t *testing.T) {
	w := newWorld()
	c := w.join(limited(policy.Fair, 1))
	c.Refuse(2)
	assert.True(t, c.Refusing())
	c.touch()
	w.run(0.01)
	assert.EqualValues(t, 2, w.requests[0].Allocate.Want, "what it was refused")
	w.run(1.5)
	assert.True(t, c.Refusing(), "it may come within 2 s")
	c.refused.Store(0)
	c.touch()
	w.run(0.7)
	c.touch()
	w.run(0.01)
	assert.False(t, c.Refusing())
}

// TestHandsBack: what held grants give back when no caller has taken any for a round goes to the
// store.
func TestHandsBack(t *testing.T) {
	w := newWorld()
	c := w.join(limited(policy.Fair, 100))
	c.callers = 1
	w.run(1)
	c.callers = 0
	w.run(5)
	n := len(w.requests)
	c.HeldBack()
	c.Return(20)
	c.touch()
	w.run(0.01)
	assert.Len(t, w.requests, n+1)
	assert.EqualValues(t, 20, w.last().Allocate.Returned)
	assert.Zero(t, c.Held())
	c.Return(1)
	c.touch()
	w.run(0.3)
	assert.Len(t, w.requests, n+1, "once")
}

// TestNextPermit is when a refused caller may come back.
func TestNextPermit(t *testing.T) {
	w := newWorld()
	c := w.join(limited(policy.Fair, 100))
	assert.InDelta(t, 1.1, c.NextPermit(1), 1e-9, "a round")
	c.share = 20
	assert.InDelta(t, 1.05, c.NextPermit(1), 1e-9, "one permit of its share")
	c.share = 1
	assert.InDelta(t, 1.1, c.NextPermit(1), 1e-9)
	c.add(5, 1.3, 0.01, 1, 1, 1)
	assert.InDelta(t, 1.3, c.NextPermit(1), 1e-9)
}

// TestWants is the demand that a replica shows, permits a second.
func TestWants(t *testing.T) {
	for i, c := range []struct {
		use, sparse, quick float64
		refused            int64
		waiting            float64
		want               float64
	}{
		{use: 100, sparse: 1e9, want: 130},
		{use: 100, sparse: 10, want: 13}, // it took one after a pause
		{use: 100, sparse: 1e9, waiting: 5, want: 180},
		{use: 0, sparse: 1e9, refused: 3, want: 6}, // it comes back in half a second
		{use: 100, sparse: 1e9, waiting: 1, quick: 50, want: 1000},
		{use: 100, sparse: 1e9, quick: 50, want: 130},
	} {
		w := newWorld()
		s := w.join(limited(policy.Fair, 100)).Share
		s.use, s.sparse, s.quick, s.patience = c.use, c.sparse, c.quick, 0.5
		s.Refuse(c.refused)
		assert.InDelta(t, c.want, s.wants(Demand{Waiting: c.waiting}), 1e-9, "row %d", i)
	}
}

// TestPressure: callers that wait for slots to come show a quarter more than they want, at most.
func TestPressure(t *testing.T) {
	for _, c := range []struct{ heldUp, want float64 }{{0, 100}, {0.1, 100 / 0.9}, {0.2, 125}, {1, 125}} {
		w := newWorld()
		s := w.join(limited(policy.Fair, 100)).Share
		s.sent, s.heldUp = 1, c.heldUp
		assert.InDelta(t, c.want, s.pressure(2, 100), 1e-9, "held up %v s", c.heldUp)
		assert.InDelta(t, 100.0, s.pressure(1, 100), 1e-9, "just now")
	}
	w := newWorld()
	c := w.join(limited(policy.Fair, 100))
	c.observe(1.1, Demand{Waiting: 1})
	assert.Zero(t, c.heldUp, "no slot is to come")
	c.add(5, 2, 0.01, 1, 1, 1)
	c.observe(1.3, Demand{Waiting: 1})
	assert.InDelta(t, 0.2, c.heldUp, 1e-9)
	c.observe(1.5, Demand{})
	assert.InDelta(t, 0.2, c.heldUp, 1e-9, "nobody waits")
}

// TestPatience is how long a refused caller stays away.
func TestPatience(t *testing.T) {
	w := newWorld()
	s := w.join(limited(policy.Fair, 100)).Share
	for _, c := range []struct {
		now      float64
		refused  int64
		patience float64
		asked    int64
	}{
		{2, 3, 1, 3}, // of the first one nothing is known
		{2.5, 2, 0.5, 2},
		{2.51, 2, 0.1, 2}, // a round at least
		{2.7, 0, 0.1, 2},
		{2.72, 0, 0.1, 0}, // it would have come
		{200, 1, 60, 1},
		{319, 0, 60, 1},
		{321, 0, 60, 0},
	} {
		s.refused.Store(c.refused)
		s.observe(c.now, Demand{})
		assert.InDelta(t, c.patience, s.patience, 1e-9, "at %v", c.now)
		assert.Equal(t, c.asked, s.asked, "at %v", c.now)
	}
}

// TestSparse: what is taken after a pause of over two rounds is counted by the pause.
func TestSparse(t *testing.T) {
	w := newWorld()
	s := w.join(limited(policy.Fair, 100)).Share
	take := func(now float64, n int64) float64 {
		s.supply(n)
		s.Take(n)
		s.observe(now, Demand{})
		return s.sparse
	}
	take(1.1, 1)
	assert.InDelta(t, 2.0, take(2.1, 2), 1e-9)
	assert.InDelta(t, 2.0, take(2.2, 0), 1e-9, "until the next one")
	assert.Greater(t, take(2.25, 1), 1e300)
}

func ExampleShare() {
	w := newWorld()
	c := w.join(limited(policy.Fair, 20))
	r := c.Next(1, Demand{Waiting: 3, Callers: 3, Anybody: true})
	w.do(r, 1)
	c.Answered(r, 1, 1)
	c.Advance(Time{Now: 1}, Demand{})
	fmt.Println(r.Allocate.Reply.N, "permit, and", c.Take(5), "to take")
	// Output: 1 permit, and 1 to take
}
