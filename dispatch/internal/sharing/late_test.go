package sharing

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// impatient returns a share whose requests took 1 ms, with a second one on its way since the first
// was given up at 10.043; the share is at 10.05.
func impatient(t *testing.T) (c *client, f *fair, first, second *permits.Request) {
	t.Helper()
	c, f = fairShare(newWorld())
	c.far(0.001)
	f.storeTime, f.rtts = 100, [2]float64{0.0005, 0.001}
	f.share, f.wantedThen, f.shareAt = 50, 50, 10
	first = c.Next(10, one)
	assert.InDelta(t, 110.043, first.Allocate.NotAfter, 1e-9)
	assert.InDelta(t, 10.043, c.WakeAt(10), 1e-9)
	assert.Nil(t, c.Next(10.0429, one))
	second = c.Next(10.05, one)
	assert.InDelta(t, 110.35, second.Allocate.NotAfter, 1e-9)
	assert.NotSame(t, first, second)
	return c, f, first, second
}

// granted answers a request with n slots. The first one is due at once.
func granted(r *permits.Request, n float64, carry schedule.Carry) {
	r.Allocate.Reply = schedule.Reply{
		N: n, Share: 50, Rate: 100, Gap: 0.01, Now: 110.06, Carry: carry,
	}
}

// TestSecondRequest: a request whose answer is late is given up and sent again. The first one is
// void from then on. If the answer to the second one is late, too, the replica goes on at its share
// from when its last batch covers it no more.
func TestSecondRequest(t *testing.T) {
	c, f, _, second := impatient(t)
	assert.Zero(t, f.batching.outage.due)
	assert.InDelta(t, 10.113, c.WakeAt(10.05), 1e-9)
	assert.Nil(t, c.Next(10.114, one))
	assert.InDelta(t, 10, f.batching.outage.due, 1e-9, "callers have waited since then")
	assert.False(t, f.Covered(10.114))
	c.Advance(Time{Now: 10.115}, one)
	assert.EqualValues(t, 6, c.Available())

	granted(second, 7, schedule.Carry{Inc: 5, Seq: 2})
	second.Allocate.Reply.Since = 60
	c.Answered(second, 10.12, 10.12)
	assert.Zero(t, f.batching.outage.due)
	assert.False(t, f.late.second)
	assert.EqualValues(t, 6+7-6, c.Unspent(), "six permits were released while others were served")
	assert.InDelta(t, 0.07, f.rtt(), 1e-9, "the first one took as long: the store is far now")
}

// TestGivenUp: the answer to a request that was given up counts if the request was made.
func TestGivenUp(t *testing.T) {
	known := schedule.Carry{Inc: 5, Seq: 1}
	for name, row := range map[string]struct {
		answer func(r *permits.Request)
		done   float64
		held   int64
		seq    int64
	}{
		"made":          {func(*permits.Request) {}, 10.06, 6, 2},
		"an older one":  {func(r *permits.Request) { r.Allocate.Reply.Carry.Seq = 1 }, 10.06, 6, 1},
		"failed":        {func(r *permits.Request) { r.Err = assert.AnError }, 10.06, 0, 1},
		"too late":      {func(r *permits.Request) { r.Allocate.Reply.Late = true }, 10.06, 0, 1},
		"after a pause": {func(*permits.Request) {}, 10.5, 0, 1},
		"a full line":   {func(r *permits.Request) { r.Allocate.Reply.N = 0 }, 10.06, 0, 1},
		"another line":  {func(r *permits.Request) { r.Allocate.Reply.Carry.Inc = 6 }, 10.06, 0, 1},
	} {
		c, f, first, second := impatient(t)
		f.carry = known
		assert.False(t, f.Idle())
		granted(first, 6, schedule.Carry{Inc: 5, Seq: 2})
		row.answer(first)
		c.Answered(first, row.done, row.done)
		assert.Equal(t, row.held, c.Unspent(), name)
		assert.Equal(t, row.seq, f.carry.Seq, name)
		assert.True(t, f.pending, "%s: the second one is still on its way", name)
		assert.Zero(t, f.failures, name)
		assert.Empty(t, f.late.givenUp, name)
		answered := [2]float64{0.0005, 0.001}
		if name != "failed" && name != "too late" && name != "after a pause" {
			answered = [2]float64{0.001, row.done - 10}
		}
		assert.InDeltaSlice(t, answered[:], f.rtts[:], 1e-9, name)

		granted(second, 4, schedule.Carry{Inc: 5, Seq: 3})
		c.Answered(second, 10.6, 10.6)
		assert.False(t, f.pending, name)
	}
}

// TestFarOrAway: the answer to a second request tells that the store is far, unless a request has
// failed: then the store was away.
func TestFarOrAway(t *testing.T) {
	for _, failed := range []bool{false, true} {
		c, f, first, second := impatient(t)
		first.Allocate.Reply = schedule.Reply{Late: true, Now: 110.06}
		c.Answered(first, 10.06, 10.06)
		sent, want := 10.05, 0.1
		if failed {
			second.Err = assert.AnError
			c.Answered(second, 10.06, 10.06)
			sent, want = 10.15, 0.001
			second = c.Next(sent, one)
		}
		granted(second, 4, schedule.Carry{Inc: 5, Seq: 3})
		c.Answered(second, sent+0.1, sent+0.1)
		assert.InDelta(t, want, f.rtt(), 1e-9, "failed: %v", failed)
	}
}

// TestOtherTerms: what a request that was given up is allocated under an older revision does not
// count.
func TestOtherTerms(t *testing.T) {
	c, f, first, _ := impatient(t)
	f.carry = schedule.Carry{Inc: 5, Seq: 1}
	c.Apply(at(limited(policy.Fair, 100), 50))
	granted(first, 6, schedule.Carry{Inc: 5, Seq: 2})
	c.Answered(first, 10.06, 10.06)
	assert.Zero(t, c.Unspent())
}

// TestNoSecondRequest: no answer is late without a time-out or the store's clock, before a request
// has shown what is usual, after a failure, and if the time-out is sooner.
func TestNoSecondRequest(t *testing.T) {
	for name, change := range map[string]func(c *client, f *fair){
		"no time-out":     func(c *client, _ *fair) { c.env.Timeout = constant(0) },
		"unknown clock":   func(_ *client, f *fair) { f.storeTime = 0 },
		"nothing usual":   func(_ *client, f *fair) { f.rtts = [2]float64{} },
		"a failure":       func(_ *client, f *fair) { f.failures = 1 },
		"sooner time-out": func(_ *client, f *fair) { f.rtts[1] = 0.1 },
	} {
		c, f := fairShare(newWorld())
		c.far(0.001)
		f.storeTime, f.rtts = 100, [2]float64{0.0005, 0.001}
		change(c, f)
		c.Next(10, one)
		assert.Zero(t, f.late.at, name)
		assert.Nil(t, c.Next(10.25, one), name)
	}
}

// TestStaleSecondRequest: a request that is sent long after another was given up is a first one.
func TestStaleSecondRequest(t *testing.T) {
	c, f := fairShare(newWorld())
	c.far(0.001)
	f.storeTime, f.rtts = 100, [2]float64{0.0005, 0.001}
	c.Next(10, one)
	f.late.checkLate(10.05)
	assert.True(t, f.late.second, "of a caller that has left")
	r := c.Next(10.4, one)
	assert.False(t, f.late.second)
	assert.InDelta(t, 110.443, r.Allocate.NotAfter, 1e-9)
}

// TestSteppedClock: a request that came too late by the store's clock, although its answer is not
// late, goes again at once. If that is too late, too, it is a failure as others.
func TestSteppedClock(t *testing.T) {
	c, f := fairShare(newWorld())
	c.far(0.001)
	f.storeTime, f.rtts = 100, [2]float64{0.0005, 0.001}
	r := c.Next(10, one)
	r.Allocate.Reply = schedule.Reply{Late: true, Now: 110.2}
	c.Answered(r, 10.001, 10.001)
	r = c.Next(10.001, one)
	if assert.NotNil(t, r) {
		assert.InDelta(t, 110.5, r.Allocate.NotAfter, 1e-9)
		r.Allocate.Reply = schedule.Reply{Late: true, Now: 110.6}
		c.Answered(r, 10.002, 10.002)
		assert.Nil(t, c.Next(10.002, one))
	}
}

// TestHeldByOthers: a request says for how long replicas may hold slots.
func TestHeldByOthers(t *testing.T) {
	for name, row := range map[string]struct {
		lead, round, done float64
		failures          int
		want              float64
	}{
		"as before":             {0.07, 0.1, 9999.85, 0, 0.07},
		"the line was empty":    {-3, 0.1, 9999.85, 0, 0},
		"a long line":           {0.9, 0.1, 9999.1, 0, 0.9},
		"a while ago":           {0.07, 0.1, 9999.7, 0, 0.1},
		"a longer round":        {0.07, 1.6, 9990, 0, 1.6},
		"an hour ago":           {0.07, 0.1, 6000, 0, 0},
		"a failure":             {0.07, 0.1, 9999.85, 1, 0.07},
		"nobody holds any more": {0.07, 0.1, 9999.7, 1, 0},
	} {
		c, f := fairShare(newWorld())
		f.lead, f.batching.round, f.done, f.failures = row.lead, row.round, row.done, row.failures
		r := c.Next(10_000, one)
		assert.InDelta(t, row.want, r.Allocate.Lead, 1e-9, name)
	}
	c, f := fairShare(newWorld())
	f.lead, f.batching.round, f.done, f.roundRate = 0.8, 0.1, 9999.85, 50
	c.Apply(at(c.Limit, 200))
	c.Advance(Time{Now: 10_000}, one)
	r := c.Next(10_000, one)
	assert.InDelta(t, 0.2, r.Allocate.Lead, 1e-9, "slots are closer to each other at a higher rate")
}

// TestOutcomesOfAGivenUpRequest: outcomes that a request told go with another one only if it was
// not made.
func TestOutcomesOfAGivenUpRequest(t *testing.T) {
	for made, want := range map[bool]float64{true: 0, false: 3} {
		c, f := fairShare(newWorld())
		c.far(0.001)
		f.storeTime, f.rtts = 100, [2]float64{0.0005, 0.001}
		first := c.Next(10, one)
		c.TellOutcomes(first, schedule.Answers{OK: 3})
		c.Next(10.05, one)
		assert.Zero(t, f.unheard.OK)
		first.Allocate.Reply = schedule.Reply{Late: !made, Now: 110.06}
		c.Answered(first, 10.06, 10.06)
		assert.Equal(t, want, f.unheard.OK, "made: %v", made)
	}
}

// TestAnsweredInTurn: a share does not end before the answer to a request that was given up.
func TestAnsweredInTurn(t *testing.T) {
	c, f, first, second := impatient(t)
	second.Err = assert.AnError
	c.Answered(second, 10.06, 10.06)
	assert.Nil(t, c.Drain(11))
	assert.False(t, f.Idle())
	first.Err = assert.AnError
	c.Answered(first, 11, 11)
	assert.Nil(t, c.Drain(11))
	assert.True(t, f.Idle())
}

// TestRetiredWhileLate: a share whose limit no longer applies sends no second request, does not
// spin, and ends when the answer has come, whatever the store does.
func TestRetiredWhileLate(t *testing.T) {
	for name, second := range map[string]bool{"the first": false, "the second": true} {
		c, f, first, r := impatient(t)
		first.Err = assert.AnError
		c.Answered(first, 10.2, 10.2)
		if second {
			c.Next(10.2, one)
			assert.Positive(t, f.batching.outage.due)
		}
		assert.Nil(t, c.Drain(10.21), name)
		assert.Greater(t, c.WakeAt(10.21), 10.21, name)
		assert.False(t, f.Idle(), name)
		r.Err = assert.AnError
		c.Answered(r, 10.3, 10.3)
		assert.Nil(t, c.Drain(11), name)
		assert.True(t, f.Idle(), name)
	}
}
