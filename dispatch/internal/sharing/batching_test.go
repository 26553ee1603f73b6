package sharing

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// fairShare returns a share of 100/s that has stepped once, and holds nothing.
func fairShare(w *world) (*client, *fair) {
	c := w.join(limited(policy.Fair, 100))
	f := c.Mode.(*fair)
	c.Advance(Time{Now: w.now}, Demand{})
	f.batching.rev = c.Limit.Revision
	return c, f
}

// reply answers a request at the time now with n permits from start on. Its share is 50/s.
func (c *client) reply(r *permits.Request, now float64, n, start float64) {
	rate := r.Allocate.Rate
	r.Allocate.Reply = schedule.Reply{
		N: n, Start: start, Rate: rate, Gap: 1 / rate, Share: 50, Now: now,
		Carry: schedule.Carry{Inc: 1},
	}
	c.Answered(r, now, now)
}

// TestLoweredLimit: permits of a limit that was lowered go back before new ones are requested,
// also those that were on their way when it was lowered.
func TestLoweredLimit(t *testing.T) {
	for _, pending := range []bool{false, true} {
		w := newWorld()
		c, _ := fairShare(w)
		r := c.Next(1, one)
		if !pending {
			c.reply(r, 1, 50, 0.01)
		}
		c.Apply(at(c.Limit, 10))
		c.Advance(Time{Now: 1.001}, one)
		if pending {
			c.reply(r, 1.002, 50, 0.01)
		}
		r = c.Next(1.003, one)
		if assert.NotNil(t, r, "pending %v", pending) {
			assert.EqualValues(t, 50, r.Allocate.Returned)
			assert.Positive(t, r.Allocate.Want)
			assert.Zero(t, c.Unspent())
		}
	}
}

// TestLittleIsKept: what is held of a limit that was lowered is kept if it lasts for a second at
// most, at the new share. The schedule hears of any change at once; if it is far away, it hears of
// a lower limit only.
func TestLittleIsKept(t *testing.T) {
	for _, c := range []struct {
		held, rate, rtt float64
		kept, told      bool
	}{
		{25, 50, 0, true, true}, {26, 50, 0, false, true}, {50, 200, 0, true, true},
		{25, 50, 0.03, true, true}, {26, 50, 0.03, false, true}, {50, 200, 0.03, true, false},
	} {
		w := newWorld()
		s, f := fairShare(w)
		s.reply(s.Next(1, one), 1, c.held, 0.01)
		s.Advance(Time{Now: 1.005}, Demand{})
		f.rtts = [2]float64{c.rtt, c.rtt}
		s.Apply(at(s.Limit, c.rate))
		s.Advance(Time{Now: 1.006}, one)
		r := s.Next(1.006, one)
		assert.Equal(t, c.told, r != nil, "%+v", c)
		if r == nil {
			continue
		}
		assert.Equal(t, c.kept, r.Allocate.Returned == 0, "%+v", c)
		assert.Equal(t, c.kept, r.Allocate.Want == 0, "%+v", c)
		r.Allocate.Reply = schedule.Reply{Rate: c.rate, Now: 1.007, Carry: schedule.Carry{Inc: 1}}
		s.Answered(r, 1.007, 1.007)
		if c.kept {
			assert.Nil(t, s.Next(1.007, one), "once")
			assert.EqualValues(t, c.held, s.Unspent())
		}
	}
}

// TestLoweredTwice: a limit that is raised a little before the schedule has heard that it was
// lowered is still a lower one. Once the schedule has heard of it, a change of something else is
// none.
func TestLoweredTwice(t *testing.T) {
	w := newWorld()
	s, f := fairShare(w)
	s.reply(s.Next(1, one), 1, 25, 0.01)
	s.Advance(Time{Now: 1.005}, Demand{})
	f.rtts = [2]float64{0.03, 0.03}
	for _, rate := range []float64{40, 50} {
		s.Apply(at(s.Limit, rate))
		s.Advance(Time{Now: 1.006}, one)
	}
	r := s.Next(1.006, one)
	if assert.NotNil(t, r, "it tells") {
		r.Allocate.Reply = schedule.Reply{Rate: 50, Now: 1.007, Carry: schedule.Carry{Inc: 1}}
		s.Answered(r, 1.007, 1.007)
	}
	f.rtts = [2]float64{0.03, 0.03}
	limit := at(s.Limit, 50)
	limit.Burst = 10
	s.Apply(limit)
	s.Advance(Time{Now: 1.008}, one)
	assert.Nil(t, s.Next(1.008, one), "it is far away, and the limit is the same")
}

// TestReplyOfAnotherRate: permits that were allocated under another rate are released at the new
// one. Their slots are scaled, but none that is over comes earlier. A replica that has not heard of
// the new rate has its slots when the schedule says.
func TestReplyOfAnotherRate(t *testing.T) {
	for _, c := range []struct{ told, rate, start, due, round, gap float64 }{
		{100, 400, 0.4, 0.1, 0.1, 0.0025}, {100, 400, 0, 0, 0.1, 0.0025}, {100, 400, -0.02, -0.005, 0.1, 0.0025},
		{100, 25, 0.4, 1.6, 0.1, 0.04}, {100, 25, -0.02, -0.02, 0.1, 0.04},
		{25, 100, 0.4, 0.4, 0.1, 0.01}, // the limit is 100/s, as far as this replica knows
		// A far store: batches are released at the pace of the share, if it has a permit in a round.
		{100, 400, 0, 0, 0.3, 0.005}, {100, 25, 0, 0, 0.3, 0.08}, {100, 10, 0, 0, 0.3, 0.1},
	} {
		w := newWorld()
		s, _ := fairShare(w)
		r := s.Next(1, one)
		if c.rate != 100 {
			s.Apply(at(s.Limit, c.rate))
		}
		s.Advance(Time{Now: 1.001}, one)
		r.Allocate.Reply = schedule.Reply{
			N: 5, Start: c.start, Rate: c.told, Gap: 1 / c.told, Share: c.told / 2, Now: 1.002,
			Carry: schedule.Carry{Inc: 1, Round: c.round},
		}
		s.Answered(r, 1.002, 1.002)
		assert.InDelta(t, c.gap, s.current().gap, 1e-9, "%+v", c)
		assert.InDelta(t, 1.002+c.due, s.current().due, 1e-9, "%+v", c)
		assert.EqualValues(t, 1, s.Stats(1.002).Allocations)
	}
}

// TestSlowedLimit: a busy limit that is slowed stays as slow when it changes, until the schedule
// says more.
func TestSlowedLimit(t *testing.T) {
	for changed, want := range map[float64]float64{50: 20, 400: 20, 10: 10} {
		w := newWorld()
		l := limited(policy.Fair, 100)
		l.Rule.Mode = busy.ByFraction
		s := w.join(l)
		s.Advance(Time{Now: 1}, Demand{})
		s.rate = 20 // by a reply
		s.Apply(at(s.Limit, changed))
		s.Advance(Time{Now: 1.001}, Demand{})
		assert.InDelta(t, want, s.rate, 1e-9, "%v", changed)
	}
}

// TestSlotsFromArrival: slots count from when the answer arrived, and not from when the loop takes
// it in.
func TestSlotsFromArrival(t *testing.T) {
	w := newWorld()
	c, _ := fairShare(w)
	r := c.Next(1, one)
	r.Allocate.Reply = schedule.Reply{N: 5, Start: 0.1, Rate: 100, Gap: 0.01, Share: 50, Now: 1}
	c.Answered(r, 1.01, 1.05)
	assert.InDelta(t, 1.11, c.current().due, 1e-9)
}

// TestChangedRate: a new rate scales what the replica goes on with until it is told a share.
func TestChangedRate(t *testing.T) {
	w := newWorld()
	c, f := fairShare(w)
	f.share, f.batching.outage.due = 40, 2
	c.Apply(at(c.Limit, 200))
	c.Advance(Time{Now: 1.5}, Demand{})
	assert.InDelta(t, 80, f.share, 1e-9)
	assert.InDelta(t, 1.75, f.batching.outage.due, 1e-9, "the gap of the next permit of an outage")
}

// TestChangedRamp: a limit that changes during its ramp goes on at the rate it had reached.
func TestChangedRamp(t *testing.T) {
	w := newWorld()
	l := limited(policy.Fair, 100)
	l.Ramp = schedule.Ramp{From: 10, Over: 9}
	c := w.join(l)
	c.callers = 1
	w.run(5)
	reached := c.Stats(w.now).Allowed
	assert.Greater(t, reached, 40.0)
	c.Apply(at(l, 200))
	c.Advance(Time{Now: w.now}, one)
	assert.InDelta(t, reached, c.Stats(w.now).Allowed, 1e-9)
}

// TestChangedLimitAsks: a changed limit ends the delay of a light share.
func TestChangedLimitAsks(t *testing.T) {
	w := newWorld()
	c, f := fairShare(w)
	r := c.Next(1, one)
	c.reply(r, 1, 1, 0.5)
	f.batching.restUntil = 3
	c.void()
	assert.Nil(t, c.Next(1.1, one))
	c.Apply(at(c.Limit, 200))
	assert.NotNil(t, c.Next(1.1, one))
}

// TestLightShareWaits: after a reply, a light share whose next slots are behind others' requests
// nothing until it has a permit's worth of time.
func TestLightShareWaits(t *testing.T) {
	w := newWorld()
	c := w.join(limited(policy.Fair, 10))
	c.Advance(Time{Now: 1}, one)
	r := c.Next(1, one)
	r.Allocate.Reply = schedule.Reply{N: 1, Lead: 0.5, Rate: 10, Gap: 0.1, Share: 0.5, Now: 1}
	c.Answered(r, 1, 1)
	c.void()
	assert.Nil(t, c.Next(2.9, one))
	assert.InDelta(t, 2.98, c.WakeAt(2.9), 1e-9)
	assert.NotNil(t, c.Next(2.98, one))
}

// TestLightShareIsEarly: a light share requests its next batch just before the slots of the last.
func TestLightShareIsEarly(t *testing.T) {
	w := newWorld()
	c := w.join(limited(policy.Fair, 1000))
	reply := func(share float64) {
		c.Advance(Time{Now: 1}, one)
		r := c.Next(1, one)
		if assert.NotNil(t, r) {
			r.Allocate.Reply = schedule.Reply{N: 1, Start: 0.1, Rate: 1000, Gap: 0.001, Share: share, Now: 1}
			c.Answered(r, 1, 1)
		}
	}
	reply(49)
	assert.Nil(t, c.Next(1.095, one))
	assert.InDelta(t, 1.096, c.WakeAt(1.095), 1e-9)
	assert.Nil(t, c.Next(1.097, Demand{Anybody: true}), "no caller waits for it")
	assert.NotNil(t, c.Next(1.097, one))
	w = newWorld()
	c = w.join(limited(policy.Fair, 1000))
	reply(51)
	assert.Nil(t, c.Next(1.097, one))
}

// TestTwoBatches: while the next batch is still to come, nothing is requested.
func TestTwoBatches(t *testing.T) {
	w := newWorld()
	c, _ := fairShare(w)
	c.reply(c.Next(1, one), 1, 5, 0.3)
	assert.Nil(t, c.Next(1.1, one))
	c.Advance(Time{Now: 1.31}, one)
	c.Take(1)
	assert.NotNil(t, c.Next(1.31, one))
}

// TestWant: a request is for at least one permit, for what refused callers lack, and for as many
// as are used in the round that the store has told.
func TestWant(t *testing.T) {
	for i, c := range []struct {
		round, use, share float64
		asked, debt       int64
		waiting, want     float64
	}{
		{round: 0.01, waiting: 1, want: 1},
		{round: 0.01, waiting: 1, debt: 30, want: 30},
		{round: 0.01, asked: 7, want: 7},
		{round: 0.01, asked: 7, debt: 3, want: 10},
		{round: 0, use: 100, waiting: 1, want: 14},              // 130/s and one caller in 0.1 s
		{round: 0.05, use: 100, waiting: 1, want: 7},            // half of that
		{round: 0.05, use: 10, share: 100, waiting: 1, want: 8}, // a light user
	} {
		w := newWorld()
		s, f := fairShare(w)
		s.use, f.batching.round, f.share, f.asked = c.use, c.round, c.share, c.asked
		s.Owe(c.debt)
		r := s.Next(1, Demand{Waiting: c.waiting, Anybody: c.waiting > 0})
		if assert.NotNil(t, r, "row %d", i) {
			assert.InDelta(t, c.want, r.Allocate.Want, 1e-9, "row %d", i)
		}
	}
	w := newWorld()
	c, f := fairShare(w)
	r := c.Next(1, one)
	r.Allocate.Reply = schedule.Reply{Rate: 100, Now: 1, Carry: schedule.Carry{Round: 0.03}}
	c.Answered(r, 1, 1)
	assert.InDelta(t, 0.03, f.batching.round, 1e-9)
}

// TestRequestTells: a request tells what the replica holds and how much it wants.
func TestRequestTells(t *testing.T) {
	w := newWorld()
	c, f := fairShare(w)
	c.supply(5)
	f.allocate(1, schedule.Request{})
	assert.EqualValues(t, 5, f.request(1, order{want: 1}).Allocate.Held)
	f.sent, f.heldUp, f.batching.sentDemand = 1, 0.1, 100
	assert.InDelta(t, 100/0.9, f.request(2, order{want: 1}).Allocate.Demand, 1e-9, "callers wait")
	assert.Zero(t, f.heldUp, "counted from here on")
	assert.InDelta(t, 100, f.request(3, order{want: 1}).Allocate.Demand, 1e-9)
	assert.Zero(t, f.request(3, order{drain: true}).Allocate.Demand)
}

// TestClosedHandleAsksNothing: a share without a handle requests nothing, whatever was refused or
// taken before.
func TestClosedHandleAsksNothing(t *testing.T) {
	w := newWorld()
	c, _ := fairShare(w)
	c.Share.asked, c.used, c.use, c.usedAt = 5, true, 100, 1
	c.Keep(5)
	assert.Nil(t, c.Next(1, Demand{}))
	c.Reopen()
	assert.NotNil(t, c.Next(1, Demand{}))
}

// TestIdle: a share is idle when it holds, wants and owes nothing and is in no outage.
func TestIdle(t *testing.T) {
	for what, do := range map[string]func(c *client, f *fair){
		"permits":         func(c *client, _ *fair) { c.Return(1) },
		"a batch":         func(c *client, _ *fair) { c.receive(5, 2, 0.01, 1, 1, 1) },
		"expired permits": func(c *client, _ *fair) { c.giveBackLater(1, 1) },
		"an outage":       func(_ *client, f *fair) { f.batching.outage.due = 2 },
		"a request":       func(c *client, _ *fair) { c.Next(1, one) },
		"callers":         func(c *client, _ *fair) { c.used = true },
	} {
		c, f := fairShare(newWorld())
		assert.True(t, c.Idle())
		do(c, f)
		assert.False(t, c.Idle(), what)
	}
}

// TestHeldGrantsGiveBack: what held grants give back to an idle share stays for a round, and then
// goes to the store, once, unless it is hardly anything.
func TestHeldGrantsGiveBack(t *testing.T) {
	for _, n := range []int64{2, 20} {
		w := newWorld()
		c, f := fairShare(w)
		f.batching.gone, f.usedAt = true, 1
		c.holdReturned.Store(true)
		c.Return(n)
		c.Advance(Time{Now: 2}, Demand{})
		assert.Equal(t, n, c.Available())
		assert.Nil(t, c.Next(2, Demand{}), "they came back just now")
		c.Advance(Time{Now: 2.09}, Demand{})
		assert.Nil(t, c.Next(2.09, Demand{}))
		c.Advance(Time{Now: 2.1}, Demand{Anybody: true})
		assert.Equal(t, n, c.Available(), "a caller that waits for another limit may take it")
		assert.Nil(t, c.Next(2.11, Demand{Anybody: true}))
		f.batching.gone, f.usedAt, f.unserved = true, 2.05, false
		assert.Nil(t, c.Next(2.14, Demand{}), "a permit was taken 90 ms ago")
		c.Advance(Time{Now: 2.16}, Demand{})
		r := c.Next(2.16, Demand{})
		if n == 2 {
			assert.Nil(t, r)
			continue
		}
		if assert.NotNil(t, r) {
			assert.EqualValues(t, n, r.Allocate.Returned)
			c.reply(r, 2.16, 0, 0)
		}
		c.Return(n)
		assert.Nil(t, c.Next(2.3, Demand{}), "once")
	}
}

// TestIdleUnderAChangedLimit: an idle share has seen a changed limit, so that permits which come
// back later stay.
func TestIdleUnderAChangedLimit(t *testing.T) {
	w := newWorld()
	c, f := fairShare(w)
	f.batching.gone = true
	c.Apply(at(c.Limit, 200))
	assert.Nil(t, c.Next(1, Demand{}))
	c.Return(2)
	assert.Nil(t, c.Next(1, Demand{}))
}

// TestBatchesWakeAt: the share steps when something of it is due.
func TestBatchesWakeAt(t *testing.T) {
	for what, c := range map[string]struct {
		do func(c *client, f *fair)
		at float64
	}{
		"kept permits":        {func(c *client, f *fair) { f.keepUntil, f.strayAt = 1.3, 9; c.Return(1) }, 1.3},
		"are callers":         {func(c *client, f *fair) { f.use = 5; c.Return(1) }, 1.01},
		"hardly used":         {func(c *client, f *fair) { f.use = 0.2; c.Return(1) }, 1.1},
		"a permit of its own": {func(_ *client, f *fair) { f.batching.outage.due, f.batching.demand = 1.7, one }, 1.7},
		"a retry":             {func(_ *client, f *fair) { f.retryAt, f.batching.demand = 1.6, one }, 1.6},
	} {
		w := newWorld()
		s, f := fairShare(w)
		c.do(s, f)
		assert.InDelta(t, c.at, s.WakeAt(1), 1e-9, what)
	}
}

// TestOutageBegins: a replica goes on after two failed requests, and counts what it released in
// this outage only.
func TestOutageBegins(t *testing.T) {
	w := newWorld()
	c, f := fairShare(w)
	f.batching.outage.released = 9
	for i, begins := range []bool{false, true} {
		r := c.Next(c.retryAt+1, one)
		r.Err = assert.AnError
		c.Answered(r, c.retryAt+1, c.retryAt+1)
		assert.Equal(t, begins, f.batching.outage.due > 0, "failure %d", i+1)
	}
	assert.Zero(t, f.batching.outage.released)
	f.batching.gone = false
	r := c.Next(c.retryAt+1, one)
	c.reply(r, c.retryAt+1, 1, 0)
	assert.Zero(t, f.batching.outage.due)
}

// TestALateLoop: permits that are overdue by more than a round are lost. Of a limit that busy
// answers lower, it is a fifth of a round.
func TestALateLoop(t *testing.T) {
	for rule, released := range map[busy.Mode]int64{
		busy.None: 10, busy.ByFraction: 2, busy.ByCount: 2,
	} {
		limit := limited(policy.Fair, 100)
		limit.Rule.Mode = rule
		c := newWorld().join(limit)
		c.Advance(Time{Now: 1, Step: 1}, Demand{})
		c.receive(30, 1.0675, 0.01, 1, 10, limit.Round)
		c.Advance(Time{Now: 1.3125, Step: 2, Late: 0.25}, Demand{})
		assert.Equal(t, released, c.Available(), "rule %d", rule)
		assert.Equal(t, 25-released, c.lost, "rule %d", rule)
		c.Advance(Time{Now: 1.3325, Step: 3}, Demand{})
		assert.Equal(t, released+2, c.Available(), "a loop in time releases all that is due")
	}
}

// TestNextPermit: a refused caller may come back when the next permit is due.
func TestNextPermit(t *testing.T) {
	w := newWorld()
	c := w.join(limited(policy.Fair, 100))
	assert.InDelta(t, 1.1, c.NextPermit(1), 1e-9, "a round")
	c.share = 20
	assert.InDelta(t, 1.05, c.NextPermit(1), 1e-9, "the time of one permit of the share")
	c.share = 1
	assert.InDelta(t, 1.1, c.NextPermit(1), 1e-9)
	c.receive(5, 1.3, 0.01, 1, 1, 1)
	assert.InDelta(t, 1.3, c.NextPermit(1), 1e-9)
}

// TestCovered: the next step is soon enough for a new caller while a request is on its way or a
// batch has not started.
func TestCovered(t *testing.T) {
	w := newWorld()
	c := w.join(limited(policy.Fair, 10))
	c.Advance(Time{Now: 1}, Demand{})
	assert.False(t, c.Covered(1))
	assert.True(t, c.Idle())
	r := c.Next(1, Demand{Waiting: 1, Anybody: true})
	assert.True(t, c.Covered(1))
	assert.False(t, c.Idle())
	assert.Nil(t, c.Next(1, Demand{Waiting: 1, Anybody: true}), "a request is on its way")
	w.do(r, 1)
	r.Allocate.Reply.Start = 0.5
	c.Answered(r, 1.1, 1.1)
	assert.True(t, c.Covered(1.5))
	assert.False(t, c.Covered(1.7), "the batch has started")
}
