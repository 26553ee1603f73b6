package schedule_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

func request() schedule.Request {
	return schedule.Request{
		Subscription: "group", Weight: 1, Demand: 1e9, Want: 1e9, Round: 0.1, Rate: 1000,
		Rev: schedule.Revision{Epoch: 1, Number: 1}, Nonce: 7,
	}
}

// TestAllocate follows one replica, step by step, at 1000/s.
func TestAllocate(t *testing.T) {
	s, sub, r := schedule.Allocate(schedule.State{}, schedule.Sub{}, request(), 100)
	assert.Equal(t, 25.0, r.N, "a quarter of a round: half for being alone, half for being new")
	assert.Equal(t, 0.0, r.Start)
	assert.Equal(t, 1000.0, r.Share)
	assert.InDelta(t, 100.025, s.Tail, 1e-9)

	next := request()
	next.Carry = r.Carry
	s, sub, r = schedule.Allocate(s, sub, next, 100)
	assert.Equal(t, 50.0, r.N, "half a round")
	assert.InDelta(t, 0.025, r.Start, 1e-9, "goes to the tail")

	other := request() // a second replica of the same subscription
	s, sub, r2 := schedule.Allocate(s, sub, other, 100)
	assert.Equal(t, 500.0, r2.Share)
	assert.Equal(t, 25.0, r2.N)
	assert.Equal(t, 0.0, r2.Start, "a newcomer has credit")

	changed := request()
	changed.Carry, changed.Rate, changed.Rev.Number, changed.Want, changed.Returned = r.Carry, 500, 2, 0, 50
	s, sub, r = schedule.Allocate(s, sub, changed, 100)
	assert.InDelta(t, 100.1, s.Tail, 1e-9, "100 permits were allocated, 50 go back, 50 last twice as long")
	assert.Zero(t, r.N, "no permits are wanted")

	late := request()
	late.NotAfter = 99
	same, _, r := schedule.Allocate(s, sub, late, 100)
	assert.True(t, r.Late)
	assert.Equal(t, s, same)
}

// TestCredit: a replica that is new gets slots among those that are allocated already. Of several
// that come at once, each has them two and a half times as far apart, up to the tail.
func TestCredit(t *testing.T) {
	s, sub, reply := schedule.Allocate(schedule.State{}, schedule.Sub{}, request(), 100)
	for range 3 { // 175 ms of slots are allocated
		busy := request()
		busy.Carry = reply.Carry
		s, sub, reply = schedule.Allocate(s, sub, busy, 100)
	}
	assert.InDelta(t, 100.175, s.Tail, 1e-9)
	for i := range 200 {
		quiet := request()
		quiet.Subscription, quiet.Demand, quiet.Want = fmt.Sprint("quiet ", i), 1, 1
		s, _, reply = schedule.Allocate(s, schedule.Sub{}, quiet, 100)
		if i < 90 { // the first has a credit of 150 ms, and each a slot less of it
			assert.InDelta(t, 0.025+0.0025*float64(i), reply.Start, 1e-9, i)
		}
	}
	assert.Less(t, s.Tail-100-reply.Start, 0.003, "hardly any credit is left")
}

// TestComesBack: a replica that was away for long counts by its demand; one that is not known,
// as half of a share at least.
func TestComesBack(t *testing.T) {
	for _, known := range []bool{false, true} {
		busy, quiet := request(), request()
		quiet.Subscription, quiet.Demand, quiet.Want = "quiet", 10, 1
		s, sub, _ := schedule.Allocate(schedule.State{}, schedule.Sub{}, busy, 100)
		s, quietSub, reply := schedule.Allocate(s, schedule.Sub{}, quiet, 100)
		if known {
			quiet.Carry = reply.Carry
		}
		for at := 101.0; at < 105; at++ { // epochs begin
			s, sub, reply = schedule.Allocate(s, sub, busy, at)
			busy.Carry = reply.Carry
		}
		s, _, _ = schedule.Allocate(s, quietSub, quiet, 105)
		_, _, reply = schedule.Allocate(s, sub, busy, 105)
		if known {
			assert.InDelta(t, 990, reply.Share, 5)
		} else {
			assert.InDelta(t, 667, reply.Share, 10)
		}
	}
}

// TestEpochs: a rate of a later epoch is newer, whatever its number is; one of an earlier epoch
// changes nothing.
func TestEpochs(t *testing.T) {
	before, after := schedule.Revision{Epoch: 1, Number: 100}, schedule.Revision{Epoch: 2, Number: 1}
	allocate := func(s schedule.State, rate float64, rev schedule.Revision) schedule.State {
		r := request()
		r.Rate, r.Rev = rate, rev
		s, _, reply := schedule.Allocate(s, schedule.Sub{}, r, 100)
		assert.Equal(t, s.Rate, reply.Rate)
		return s
	}
	s := allocate(schedule.State{}, 1000, before)
	s = allocate(s, 500, after)
	assert.Equal(t, after, s.Rev)
	assert.Equal(t, 500.0, s.Rate)
	s = allocate(s, 1000, before)
	assert.Equal(t, after, s.Rev)
	assert.Equal(t, 500.0, s.Rate)
}

// TestTwoRates: of two rates of one revision the lower one is in force. One that no policy has is
// damage, and binds neither the first request nor the ones after it.
func TestTwoRates(t *testing.T) {
	for _, strict := range []bool{false, true} {
		r := request()
		r.Strict, r.Sole, r.MaxReserved = strict, true, 64
		first, _, reply := schedule.Allocate(schedule.State{}, schedule.Sub{}, r, 100)
		r.Carry = reply.Carry
		for name, c := range map[string]struct{ stored, given, want float64 }{
			"the same":           {1000, 1000, 1000},
			"a lower one":        {1000, 500, 500},
			"a higher one":       {1000, 2000, 1000},
			"one without limits": {1e15, 1000, 1000},
		} {
			s := first
			s.Rate, s.Top, r.Rate = c.stored, c.stored, c.given
			before := s.Tail
			s, _, reply := schedule.Allocate(s, schedule.Sub{}, r, 100)
			assert.False(t, reply.Lost, name)
			assert.Equal(t, c.want, reply.Rate, name)
			assert.Equal(t, c.want, s.Top, name)
			assert.InDelta(t, before+reply.N/c.want, s.Tail, 0.002, name)
			assert.LessOrEqual(t, reply.N, c.want/10, name)
		}
	}
}

// TestLostLine: a new line begins behind what all replicas hold of the lost one, as far as the
// first of them knows. If they hold nothing, as after an hour without a call, it begins at once.
// Other replicas of the lost line come later: what they hold is counted already, and they have no
// credit, as new replicas would.
func TestLostLine(t *testing.T) {
	state, sub, r := schedule.Allocate(schedule.State{}, schedule.Sub{}, request(), 100)
	for name, c := range map[string]struct {
		state             schedule.State
		held, lead, start float64
	}{
		"lost":           {schedule.State{}, 25, 0.2, 0.2},
		"an old one":     {state, 25, 0.2, 0.2},
		"an older one":   {state, 25, 0, 0.025},
		"nothing held":   {schedule.State{}, 0, 0, 0},
		"by others":      {schedule.State{}, 0, 0.15, 0.15},
		"much more held": {schedule.State{}, 500, 0.2, 0.5},
	} {
		again := request()
		again.Carry, again.Held, again.Lead, again.Nonce = r.Carry, c.held, c.lead, 8
		again.Carry.Seq++ // of an allocation that the state knows nothing of
		s, sub, second := schedule.Allocate(c.state, sub, again, 100)
		assert.InDelta(t, c.start, second.Start, 1e-9, name)
		assert.NotEqual(t, r.Carry.Inc, second.Carry.Inc, name)

		for inc, start := range map[int64]float64{
			r.Carry.Inc: max(s.Tail-100, 0.04), second.Carry.Inc: s.Tail - 100, 5: s.Tail - 100 + 0.04,
		} {
			other := request()
			other.Carry, other.Held = schedule.Carry{Inc: inc, Epoch: 2, Eff: 1}, 40
			_, _, third := schedule.Allocate(s, sub, other, 100)
			assert.InDelta(t, start, third.Start, 1e-9, "%s: %d", name, inc)
		}
	}
}

// TestLostLead: a line that replaces a lost one is not longer than any other.
func TestLostLead(t *testing.T) {
	r := request()
	r.Carry, r.Lead = schedule.Carry{Inc: 5, Seq: 9}, 3000
	s, _, reply := schedule.Allocate(schedule.State{}, schedule.Sub{}, r, 100)
	assert.InDelta(t, 102, s.Tail, 1e-9)
	assert.True(t, reply.Sound(r))
}

// TestLostRamp: held permits of a lost line take as long as they do on the ramp, which begins
// again.
func TestLostRamp(t *testing.T) {
	again := request()
	again.Ramp = schedule.Ramp{From: 10, Over: 2}
	again.Held, again.Carry = 60, schedule.Carry{Inc: 3, Seq: 9, Epoch: 2, Round: 0.1}
	s, _, r := schedule.Allocate(schedule.State{}, schedule.Sub{}, again, 100)
	assert.InDelta(t, 101.43, s.Tail, 0.01, "10 in the first second, and 50 while it rises by 495/s")
	assert.Zero(t, r.N)
}

// TestFullLine: slots are allocated up to two seconds ahead, or two periods: half of that for a
// replica that was not refused, then nearer and nearer to all of it. A refused replica is told when
// to come back.
func TestFullLine(t *testing.T) {
	for _, c := range []struct {
		rate, rtt float64
		ahead     []float64 // of the tail, after requests that are refused if it is not further
	}{
		{1000, 0.001, []float64{1, 1.5, 1.75, 1.875}},
		{1000, 0.2, []float64{1.2, 1.6, 1.8}},
		{1000, 0.3, []float64{1.8, 1.95}}, // six round trips, at most seven
		{0.5, 0.001, []float64{2, 3, 3.5, 3.75}},
	} {
		first := request()
		first.Rate, first.RTT = c.rate, c.rtt
		s, sub, r := schedule.Allocate(schedule.State{}, schedule.Sub{}, first, 100)
		for refused, ahead := range c.ahead {
			next := first
			next.Carry = r.Carry
			full := s
			full.Tail = 100.01 + ahead
			_, _, asked := schedule.Allocate(full, sub, next, 100)
			assert.Zero(t, asked.N, "%+v", c)
			assert.EqualValues(t, refused+1, asked.Carry.Refused)
			assert.Greater(t, asked.Share, 0.0)
			room := full
			room.Tail = 100 + ahead - 1/c.rate
			after, _, got := schedule.Allocate(room, sub, next, 100)
			assert.EqualValues(t, 1, got.N, "%+v", c)
			assert.LessOrEqual(t, after.Tail, 100+ahead+1e-9)
			assert.Zero(t, got.Carry.Refused)

			later := next // when it was told to come
			later.Carry = asked.Carry
			_, _, got = schedule.Allocate(full, sub, later, 100+asked.Start+1e-6)
			assert.Positive(t, got.N, "%+v", c)
			assert.InDelta(t, full.Tail-100, asked.Start+asked.Gap, 1e-9, "then the line is empty")
			r.Carry = asked.Carry
		}
	}
}

// TestWake: a reply names the first waiter in the queue as soon as there is a slot for it, unless
// that is the one that asks.
func TestWake(t *testing.T) {
	var s schedule.State
	call := func(waiter string, want, returned float64, c schedule.Carry) (reply schedule.Reply) {
		r := request()
		r.Strict, r.Sole, r.Rate, r.MaxReserved = true, true, 10, 1
		r.Want, r.Waiter, r.Returned, r.Carry = want, waiter, returned, c
		s, _, reply = schedule.Allocate(s, schedule.Sub{}, r, 100)
		return reply
	}
	held := call("a", 1, 0, schedule.Carry{})
	held = call("a", 1, 0, held.Carry)
	first, second := call("b", 1, 0, schedule.Carry{}), call("c", 1, 0, schedule.Carry{})
	for _, reply := range []schedule.Reply{first, second} {
		assert.Zero(t, reply.N, "the line is full")
		assert.Empty(t, reply.Wake)
	}
	assert.Equal(t, "b", call("a", 0, 1, held.Carry).Wake, "a slot came back")
	first = call("b", 1, 0, first.Carry)
	assert.Equal(t, 1.0, first.N)
	assert.Empty(t, first.Wake, "the line is full again")
}

// Of a strict limit that another one paces, only the last slots of the line go back.
func TestReturnsToAStrictLine(t *testing.T) {
	for _, others := range []bool{false, true} {
		r := request()
		r.MaxReserved, r.Want = 64, 3
		s, sub, reply := schedule.Allocate(schedule.State{}, schedule.Sub{}, r, 100)
		if others {
			strict := r
			strict.Strict, strict.Want, strict.Carry = true, 1, schedule.Carry{}
			s, _, _ = schedule.Allocate(s, schedule.Sub{}, strict, 100)
		}
		tail := s.Tail
		r.Carry, r.Want, r.Returned = reply.Carry, 0, 2
		s, _, _ = schedule.Allocate(s, sub, r, 100)
		if others {
			assert.InDelta(t, tail, s.Tail, 1e-9)
		} else {
			assert.InDelta(t, tail-2/r.Rate, s.Tail, 1e-9)
		}
	}
}

// TestDeepCut: slots that a lower rate would spread over more than the line may have are void. A
// new line begins a period later, which knows no replica.
func TestDeepCut(t *testing.T) {
	s, sub, r := schedule.Allocate(schedule.State{}, schedule.Sub{}, request(), 100)
	s.Tail = 100.2
	for _, c := range []struct {
		rate float64
		deep bool
	}{{500, false}, {50, false}, {40, true}, {1, true}, {1.0 / 3600, true}} {
		low := request()
		low.Rate, low.Rev.Number, low.Nonce = c.rate, 2, 8
		low.Carry, low.Returned = r.Carry, 25
		after, counted, got := schedule.Allocate(s, sub, low, 100)
		if !c.deep {
			assert.InDelta(t, 200-25+got.N, (after.Tail-100)*c.rate, 1e-6, "%v/s", c.rate)
			assert.Equal(t, s.Inc, after.Inc)
			continue
		}
		assert.EqualValues(t, 8, after.Inc)
		assert.EqualValues(t, 8, got.Carry.Inc)
		assert.InDelta(t, 1+got.N, (after.Tail-100)*c.rate, 1e-6, "%v/s", c.rate)
		assert.InDelta(t, 1, after.This.Weight, 1e-9)
		assert.InDelta(t, 1, counted.This.K, 1e-9, "each replica counts once")

		other := low // another replica gives back slots of the old line
		other.Carry = schedule.Carry{Inc: s.Inc, Seq: 1, Epoch: s.Epoch}
		again, _, _ := schedule.Allocate(after, schedule.Sub{}, other, 100)
		assert.GreaterOrEqual(t, again.Tail, after.Tail, "they are void")
	}
}

// TestRaisedRate: the time that a replica must wait for a permit falls as the rate rises.
func TestRaisedRate(t *testing.T) {
	low := request()
	low.Rate = 2
	s, sub, _ := schedule.Allocate(schedule.State{}, schedule.Sub{}, low, 100)
	assert.InDelta(t, 0.5, s.This.Need, 1e-9)
	high := request()
	high.Rev.Number, high.Rate = 2, 200
	s, _, _ = schedule.Allocate(s, sub, high, 100)
	assert.InDelta(t, 0.01, s.This.Need, 1e-9)
}

// TestLifetime: an unused schedule is kept for as long as it may matter.
func TestLifetime(t *testing.T) {
	const hour, week = 3600.0, 7 * 24 * 3600.0
	for _, c := range []struct {
		rate, ahead, fair, strict float64
	}{
		{1000, 0, hour, hour},
		{0.1, 0, hour, 10_000},
		{1 / hour, 0, 2 * hour, week},
		{0.5 / week, 0, 4 * week, 20 * week},
		{1000, 2 * week, 4 * week, 4 * week},
	} {
		s := schedule.State{Rate: c.rate, Tail: 100 + c.ahead}
		assert.InEpsilon(t, c.fair, s.Lifetime(false, 100), 1e-9, c)
		assert.InEpsilon(t, c.strict, s.Lifetime(true, 100), 1e-9, c)
	}
}

// TestAllocateLaws: for any requests and any clock, an allocation moves the tail by its permits,
// never lies in the past nor makes the line longer than it may be, gives at least one permit and at
// most a quantum unless the line is full, and keeps the state finite.
func TestAllocateLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s schedule.State
		subs := map[string]schedule.Sub{}
		carries := map[int]schedule.Carry{}
		now := 1e9
		for i := range rapid.IntRange(1, 60).Draw(t, "calls") {
			now += rapid.SampledFrom([]float64{0, 0.001, 0.05, 0.5, 100, -5}).Draw(t, "dt")
			replica := rapid.IntRange(0, 5).Draw(t, "replica")
			r := schedule.Request{
				Subscription: fmt.Sprint(replica % 3),
				Weight:       rapid.SampledFrom([]float64{1, 2, 0.001}).Draw(t, "weight"),
				Reserved:     rapid.SampledFrom([]float64{0, 100, 5000}).Draw(t, "reserved"),
				Demand:       rapid.Float64Range(0, 1e7).Draw(t, "demand"),
				Want:         rapid.Float64Range(0, 1e7).Draw(t, "want"),
				Returned:     float64(rapid.IntRange(0, 20).Draw(t, "returned")),
				Held:         float64(rapid.IntRange(0, 20).Draw(t, "held")),
				Lead:         rapid.Float64Range(0, 1).Draw(t, "lead"),
				RTT:          rapid.Float64Range(0, 1).Draw(t, "rtt"),
				Round:        rapid.SampledFrom([]float64{0.1, 0.02}).Draw(t, "round"),
				Burst:        rapid.SampledFrom([]float64{0, 50}).Draw(t, "burst"),
				Rate:         rapid.SampledFrom([]float64{1.0 / 3600, 10, 1e6}).Draw(t, "rate"),
				Rev: schedule.Revision{
					Epoch: 1, Number: int64(rapid.IntRange(1, 3).Draw(t, "rev")),
				}, Nonce: int64(i + 1),
				Carry: carries[replica],
			}
			after, sub, reply := schedule.Allocate(s, subs[r.Subscription], r, now)
			if r.Want > 0 && reply.N == 0 {
				if after.Tail < now+max(0, 1-1/after.Rate)-1e-3 {
					t.Fatalf("refused although the line ends %v s ahead", after.Tail-now)
				}
			} else if r.Want > 0 {
				if after.Tail > max(s.Tail, now+max(7*2.0/3, 2/after.Rate))+1e-6 && s.Rate == after.Rate &&
					reply.Carry.Inc == r.Carry.Inc {
					t.Fatalf("the line ends %v s ahead", after.Tail-now)
				}
				if reply.N < 1 || reply.N != math.Floor(reply.N) || reply.N > math.Max(1, math.Floor(r.Want+0.5)) {
					t.Fatalf("%v permits for %v wanted", reply.N, r.Want)
				}
				if reply.Start < -r.Burst/after.Rate-1e-6 {
					t.Fatalf("start %v lies in the past", reply.Start)
				}
				if after.Tail < now-r.Burst/after.Rate+reply.N/after.Rate-1e-3 {
					t.Fatalf("tail %v for %v permits at %v", after.Tail, reply.N, now)
				}
			}
			if reply.Lost || !reply.Sound(r) {
				t.Fatalf("a state that Allocate has returned is sound, and so is a reply: %+v, %+v", s, reply)
			}
			for _, x := range []float64{
				after.Tail, after.This.Weight, after.Prev.Weight, reply.Share, reply.Carry.Fraction,
			} {
				if math.IsNaN(x) || math.IsInf(x, 0) {
					t.Fatalf("%+v", after)
				}
			}
			s, subs[r.Subscription], carries[replica] = after, sub, reply.Carry
		}
	})
}
