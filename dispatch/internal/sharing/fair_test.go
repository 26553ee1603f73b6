package sharing

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestFairTwoBatches: a replica whose callers always wait has a running batch and at most one that
// has not started. It misses no permit, however long a request takes.
func TestFairTwoBatches(t *testing.T) {
	for _, rtt := range []float64{0, 0.02} {
		w := newWorld()
		c := w.join(limited(policy.Fair, 1000))
		c.callers = 1
		c.far(rtt)
		if rtt == 0 {
			c.env.Timeout = constant(0)
		}
		w.run(1)
		most := 0
		for range 400 {
			w.run(0.01)
			most = max(most, c.unreleased())
		}
		assert.Equal(t, 2, most, "rtt %v", rtt)
		assert.InDelta(t, 4000, c.between(2, 6), 20, "rtt %v", rtt)
		assert.InDelta(t, 100, len(w.requests), 10, "a request for half a round, rtt %v", rtt)
		assert.Zero(t, c.Stats(w.now).Lost)
	}
}

// TestFairDrain: a replica without callers gives back what it holds, and then needs no step until
// a caller comes.
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
	assert.Zero(t, last.Demand)
	assert.Greater(t, last.Returned, 2.0)
	assert.Zero(t, c.Unspent())
	assert.True(t, c.Idle())
	assert.False(t, c.Fresh(taken), "older grants are too old to be returned")
	assert.LessOrEqual(t, w.state.Tail, w.now, "all permits went back")
	n, steps := len(w.requests), c.step
	w.run(100)
	assert.Len(t, w.requests, n)
	assert.LessOrEqual(t, c.step, steps+1)
	c.once = 1
	c.touch()
	w.run(0.01)
	assert.Zero(t, c.once)
}

// TestFairKeep: a share without a handle requests nothing. It keeps its permits for a new handle
// until the time given.
func TestFairKeep(t *testing.T) {
	w := newWorld()
	l := limited(policy.Fair, 10)
	l.Round = 5
	c := w.join(l)
	c.callers = 1
	w.run(3)
	assert.Greater(t, c.Unspent(), int64(2))
	c.callers = 0
	assert.True(t, c.Keep(w.now+0.5))
	assert.True(t, c.Kept())
	c.touch()
	n := len(w.requests)
	w.run(0.4)
	assert.Len(t, w.requests, n)
	assert.Greater(t, c.Unspent(), int64(2))
	w.run(0.2)
	assert.Zero(t, c.Unspent())
	assert.Len(t, w.requests, n+1)
	assert.Zero(t, w.last().Allocate.Want)

	assert.True(t, c.Reopen())
	assert.False(t, c.Kept())
	c.once = 1
	c.touch()
	w.run(1)
	assert.Zero(t, c.once)
	for _, mode := range []policy.SharingMode{policy.Strict, policy.Split, policy.Groups} {
		s := w.join(limited(mode, 10))
		assert.False(t, s.Mode.Keep(5), mode)
		assert.False(t, s.Kept(), mode)
	}
}

// TestFairKeptUnderAChangedLimit: kept permits go back at once when the limit changes.
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
	assert.Zero(t, c.Unspent())
	assert.Zero(t, w.last().Allocate.Want)
}

// TestFarBatches: batches of rounds that are long, since the store is far, are released at the pace
// of the share until the next one is there.
func TestFarBatches(t *testing.T) {
	for _, c := range []struct {
		round, share, n, gap float64
	}{
		{0.45, 125, 56, 1.0 / 125},
		{0.1, 125, 56, 0.001}, // the limit's round
		{0.45, 9, 4, 0.001},   // less than a permit in that: others may be light
		{0.45, 125, 1, 0.001},
	} {
		client, f := fairShare(newWorld())
		r := client.Next(10, one)
		r.Allocate.Reply = schedule.Reply{
			N: c.n, Share: c.share, Rate: 1000, Gap: 0.001, Carry: schedule.Carry{Inc: 1, Seq: 1, Round: c.round},
		}
		f.Limit.Rate, f.rate = 1000, 1000
		client.Answered(r, 10, 10)
		assert.InDelta(t, c.gap, f.Bucket.batches[0].gap, 1e-9, "%+v", c)
		f.receive(1, 10.2, 0.001, 10, 1, 1)
		if c.n == 56 {
			assert.InDelta(t, 0.2/56, f.Bucket.batches[0].gap, 1e-4, "%+v", c)
		}
	}
}

// TestFairRest: how long after a reply nothing is requested depends on the share of the line, and
// on how much later than the replica's own slots the new ones start.
func TestFairRest(t *testing.T) {
	for _, c := range []struct {
		rate, share, lead, rest float64
	}{
		{1000, 500, 5, 0},                  // more than a permit in each round
		{10, 1, 0.01, 0},                   // the line has room
		{10, 2, 0.5, 0},                    // in half a second, the share is a permit
		{10, 1, 0.5, 0.99},                 // others have slots in between: 99 % of the time of a permit
		{100, 2, 0.5, 0.495},               // the share has one permit in that time
		{100, 7, 0.5, 0},                   // in 0.16 s, the share is more than a permit
		{10, 0.01, 0.5, schedule.MaxRest},  // and not 100 s
		{1000, 0.1, 0.2, schedule.MaxRest}, // and not 10 s
		{1000, 0.1, 0.024, 0},              // less than a quarter of a round
		{1000, 1, 0.026, 0.99},             // another one alone has half a round ahead
		{60, 1, 0.033, 0},                  // less than two slots
		{30, 1, 0.049, 0},                  // less than half a round
		{30, 1, 0.051, 0.99},
	} {
		w := newWorld()
		f := newFair(w.join(limited(policy.Fair, c.rate)).Share)
		f.done = 1
		reply := &schedule.Reply{Rate: c.rate, Share: c.share, Lead: c.lead}
		assert.InDelta(t, c.rest, f.rest(reply), 1e-9, "%+v", c)
		f.receive(1, f.done+c.lead, 0, 1, 1, 1)
		assert.Zero(t, f.rest(reply), "the new slots follow the replica's own")
	}
}

// TestFairRests: replicas whose shares are less than a permit a round get equal shares, and make
// hardly more requests than they get permits.
func TestFairRests(t *testing.T) {
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
	assert.LessOrEqual(t, len(w.requests)-n, 660)

	c := w.clients[0] // a changed limit ends the delay
	c.turnUntil(w.now + 1.5)
	c.Apply(at(c.Limit, 1000))
	c.touch()
	n = len(w.requests)
	w.run(0.01)
	assert.Greater(t, len(w.requests), n)
}

// turnUntil sets the time before which a fair share requests nothing.
func (c *client) turnUntil(at float64) { c.Mode.(*fair).batching.restUntil = at }

// TestFairWakesAtItsTurn: a caller that waits while the line is full is served after the delay.
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

// TestFairPace: a round that a low rate has stretched ends with the low rate.
func TestFairPace(t *testing.T) {
	w := newWorld()
	for range 5 {
		w.join(limited(policy.Fair, 10)).callers = 1
	}
	w.run(10)
	f := w.clients[0].Mode.(*fair)
	assert.Greater(t, f.batching.round, 0.3)
	for _, c := range w.clients {
		c.Apply(at(c.Limit, 1000))
		c.touch()
	}
	w.run(0.05)
	for _, c := range w.clients {
		assert.InDelta(t, 0.1, c.Mode.(*fair).batching.round, 0.03)
	}
}

// TestFairPaceFar: a round that the time of requests has stretched stays when the rate rises.
func TestFairPaceFar(t *testing.T) {
	for _, rtt := range []float64{0.15, 0.45} {
		w := newWorld()
		for range 3 {
			c := w.join(limited(policy.Fair, 400))
			c.callers, c.rtt, c.env.Timeout = 1, rtt, constant(2)
		}
		w.run(10)
		for _, c := range w.clients {
			c.Apply(at(c.Limit, 4000))
			c.touch()
		}
		w.run(4)
		got := 0
		for _, c := range w.clients {
			got += c.between(w.now-2, w.now)
		}
		assert.InDelta(t, 8000, got, 400, "%v s away", rtt)
	}
}

// TestFairChangedRate: held permits are released at the new rate, before the store is asked.
func TestFairChangedRate(t *testing.T) {
	for _, rate := range []float64{10, 100, 1000} {
		w := newWorld()
		l := limited(policy.Fair, 100)
		l.Round = 1
		c := w.join(l)
		c.callers = 1
		w.run(3.3)
		share := c.Stats(w.now).Share
		c.rtt = 0.02 // longer than the change takes
		assert.Equal(t, rate != 100, c.Apply(at(l, rate)))
		from := w.now
		c.touch()
		w.run(0.001)
		state := c.Stats(w.now)
		assert.InDelta(t, rate, state.Allowed, 1e-9)
		assert.InEpsilon(t, share*rate/100, state.Share, 0.01, "scaled, until the next reply")
		c.rtt = 0
		w.run(4)
		assert.InDelta(t, rate*4, c.between(from, w.now), 4+rate/20, "at %v/s", rate)
	}
}

// TestFairRamp: permits are released at the pace of the line on its ramp.
func TestFairRamp(t *testing.T) {
	w := newWorld()
	l := limited(policy.Fair, 100)
	l.Ramp = schedule.Ramp{From: 10, Over: 9}
	c := w.join(l)
	c.callers = 1
	w.run(0.01)
	assert.InDelta(t, 10, c.Stats(w.now).Allowed, 1e-9)
	w.run(3)
	assert.InDelta(t, 40, c.Stats(w.now).Allowed, 10)
	assert.InDelta(t, 60, len(c.got), 25)
	w.run(9)
	assert.InDelta(t, 100, c.Stats(w.now).Allowed, 1e-9)
	steeper := at(l, 200)
	steeper.Ramp.From = 500
	c.Apply(steeper)
	c.rtt = 0.2
	c.touch()
	w.run(0.001)
	assert.InDelta(t, 200, c.Stats(w.now).Allowed, 1e-9, "no ramp starts above the limit")
}

// TestFairLife: permits live for a round, for the time of one permit of the share, or for as long
// as callers take to use them.
func TestFairLife(t *testing.T) {
	for i, c := range []struct {
		share, round, demand, patience, life float64
		asked                                int64
	}{
		{share: 100, life: 0.1},
		{share: 100, round: 0.4, life: 0.4},
		{share: 4, life: 0.25},
		{share: 0, life: schedule.MaxRest},
		{share: 100, demand: 10, life: 1.3},              // ten permits
		{share: 100, asked: 1, patience: 3, life: 3.9},   // a refused caller comes back
		{share: 100, asked: 0, patience: 3, life: 0.1},   // it does not
		{share: 100, demand: 1000, round: 1, life: 1.0},  //
		{share: 0.5, demand: 100, round: 0.1, life: 2.0}, //
	} {
		w := newWorld()
		f := newFair(w.join(limited(policy.Fair, 100)).Share)
		f.share, f.batching.round, f.batching.sentDemand = c.share, c.round, c.demand
		f.asked, f.patience = c.asked, c.patience
		assert.InDelta(t, c.life, f.life(10), 1e-9, "row %d", i)
	}
}

// TestFairSlowRequest: an answer that took longer than usual is no step of the store's clock. The
// next request says so, and the permits start as if the answer had been fast.
func TestFairSlowRequest(t *testing.T) {
	for _, c := range []struct {
		took, inc      float64
		shifts, starts float64
		lead           float64
	}{
		{0.5, 1, 3, 0.25, 0.25},  // as slow as the clock seems ahead
		{0.01, 1, 3.4, 0.4, 0.4}, // as fast as usual: the clock has stepped
		{0.5, 2, 3.4, 0.4, 0.4},  // of another line
	} {
		w := newWorld()
		s := w.join(limited(policy.Fair, 10)).Share
		f := s.Mode.(*fair)
		f.carry, f.rtts, f.rate = schedule.Carry{Inc: 1, Shifts: 3}, [2]float64{0.01, 0.01}, 10
		f.clock = clock{now: 100, sent: 0.99, received: 1}
		r := f.request(1, order{want: 1})
		r.Allocate.Reply = schedule.Reply{
			N: 1, Start: 0.4, Lead: 0.4, Ahead: 0.15, Share: 10, Rate: 10, Gap: 0.1,
			Now: r.Allocate.High + 0.4, Carry: schedule.Carry{Inc: int64(c.inc), Shifts: 3.4},
		}
		f.Answered(r, 1+c.took, 1+c.took)
		assert.InDelta(t, c.shifts, f.carry.Shifts, 1e-9)
		assert.InDelta(t, c.lead, r.Allocate.Reply.Lead, 1e-9)
		assert.InDelta(t, 1+c.took+c.starts, f.upcoming(1+c.took).due, 1e-9)
	}
}

// TestLateNews: a replica that has not heard of a change of the limit gets as much as one that has,
// up to the limit that it knows.
func TestLateNews(t *testing.T) {
	for _, rates := range [][2]float64{{1000, 500}, {2000, 100}, {100, 2000}} {
		for _, n := range []int{2, 8} {
			w := newWorld()
			for range n {
				c := w.join(limited(policy.Fair, rates[0]))
				c.callers, c.rtt = 1, 0.001
			}
			w.run(2)
			for _, c := range w.clients[1:] {
				c.Apply(at(c.Limit, rates[1]))
				c.touch()
			}
			w.run(1)
			from := w.now
			w.run(4)
			got, all := w.clients[0].between(from, w.now), 0
			for _, c := range w.clients {
				all += c.between(from, w.now)
			}
			assert.InEpsilon(t, 4*rates[1], all, 0.06, "%v, %d", rates, n)
			want := min(float64(all)/float64(n), 4*rates[0])
			assert.InEpsilon(t, want, got, 0.3, "%v, %d", rates, n)
		}
	}
}

func ExampleShare() {
	w := newWorld()
	c := w.join(limited(policy.Fair, 20))
	c.Advance(Time{Now: 1}, Demand{})
	r := c.Next(1, Demand{Waiting: 3, Callers: 3, Anybody: true})
	w.do(r, 1)
	c.Answered(r, 1, 1)
	c.Advance(Time{Now: 1}, Demand{})
	fmt.Println(r.Allocate.Reply.N, "permit, and", c.Take(5), "to take")
	// Output: 1 permit, and 1 to take
}

// TestFairFarStore: a limit is used in full, and hardly exceeded in any second, however long the
// permit store takes to answer, up to half a second. The wait for an answer is not taken for a
// pause of the callers.
func TestFairFarStore(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	for _, rtt := range []float64{0.05, 0.15, 0.25, 0.45} {
		for _, rate := range []float64{10, 400, 5000} {
			for _, n := range []int{1, 3, 20} {
				w := newWorld()
				for range n {
					c := w.join(limited(policy.Fair, rate))
					c.callers, c.rtt, c.env.Timeout = 1, rtt, constant(2)
					w.run(0.13)
				}
				w.run(10)
				from, got := w.now, 0
				w.run(20)
				for _, c := range w.clients {
					got += c.between(from, w.now)
				}
				assert.LessOrEqual(t, w.most(1), 1+int(rate*1.11), "%d replicas, %v s away, %v/s", n, rtt, rate)
				assert.InDelta(t, 20*rate, got, 20*rate*3/100, "%d replicas, %v s away, %v/s", n, rtt, rate)
			}
		}
	}
}
