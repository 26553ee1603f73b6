package busy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
)

// usual is the rule with the policies' defaults.
var usual = busy.Fraction{Tolerance: 0.01, MinRate: 1}

// A service answers so many requests a second well, and the others busy. Its callers want so many, and obey Fraction.
type service struct {
	rule      busy.Fraction
	state     busy.State
	now       float64
	wanted    float64
	ok, busy  float64   // answers, in all
	throughOf []float64 // each second
}

// run lets seconds go by.
func (s *service) run(seconds int, capacity, retryAfter float64) {
	for range seconds {
		through := s.wanted
		if s.state.Limit > 0 {
			through = min(through, s.state.Limit)
		}
		w := busy.Window{OK: min(through, capacity), Length: 1}
		if w.Busy = through - w.OK; w.Busy > 0 {
			w.RetryAfter = retryAfter
		}
		s.now++
		s.ok, s.busy = s.ok+w.OK, s.busy+w.Busy
		s.throughOf = append(s.throughOf, through)
		s.state = s.rule.Next(s.state, w, s.now)
	}
}

// forget begins to count anew.
func (s *service) forget() { s.ok, s.busy, s.throughOf = 0, 0, nil }

// TestSettles: whatever is wanted of a service, nine tenths of its capacity are used, and one answer in twenty is busy at most.
func TestSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Float64Range(20, 100_000).Draw(t, "capacity")
		s := service{rule: usual, wanted: capacity * rapid.Float64Range(1.1, 1000).Draw(t, "times")}
		s.run(5, capacity, 0)
		s.forget()
		s.run(60, capacity, 0)
		if s.ok < 0.9*60*capacity || s.busy > 0.05*(s.ok+s.busy) {
			t.Fatalf("%.1f %% of the capacity, %.1f %% busy", s.ok/capacity/0.6, 100*s.busy/(s.ok+s.busy))
		}
	})
}

// TestRecovers: a service whose capacity grows, is back after it answered nothing but busy, or has all it needs, has its callers' full speed
// within ten seconds.
func TestRecovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wanted := rapid.Float64Range(10, 100_000).Draw(t, "wanted")
		share := rapid.SampledFrom([]float64{0, 0.02, 0.1, 0.5, 0.9}).Draw(t, "share")
		length := rapid.IntRange(1, 300).Draw(t, "seconds")
		s := service{rule: usual, wanted: wanted}
		s.run(5, wanted, 0)
		s.run(length, share*wanted, 0)
		s.run(10, wanted, 0)
		s.forget()
		s.run(5, wanted, 0)
		if s.ok < 0.95*5*wanted {
			t.Fatalf("%.1f %% of full speed", s.ok/wanted/0.05)
		}
	})
}

// TestPause: a pause of the callers, in which hardly anything comes, costs no more than itself.
func TestPause(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Float64Range(100, 10_000).Draw(t, "capacity")
		s := service{rule: usual, wanted: 3 * capacity}
		s.run(rapid.IntRange(10, 30).Draw(t, "seconds"), capacity, 0)
		part := rapid.Float64Range(0.01, 0.5).Draw(t, "part")
		for range rapid.IntRange(1, 2).Draw(t, "windows") {
			came := part * capacity
			few := came * rapid.Float64Range(0.02, 0.15).Draw(t, "busy")
			s.now += 1.5
			s.state = s.rule.Next(s.state, busy.Window{OK: came - few, Busy: few, Length: 1.5}, s.now)
		}
		s.forget()
		s.run(3, capacity, 0)
		if s.ok < 0.8*3*capacity {
			t.Fatalf("%.1f %% of the capacity", s.ok/capacity/0.03)
		}
	})
}

// TestHeldUpOnTheWay: something else lets less through than the limit does, as a quota, so that a busy answer leaves the limit above what the
// service is known to do. It is gone within ten seconds all the same.
func TestHeldUpOnTheWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wanted := rapid.Float64Range(20, 100_000).Draw(t, "wanted")
		s := service{rule: usual, wanted: wanted}
		s.run(rapid.IntRange(1, 10).Draw(t, "busy"), wanted/1.1, 0)
		s.run(rapid.IntRange(1, 10).Draw(t, "good"), wanted, 0)
		part := rapid.Float64Range(0.1, 1).Draw(t, "part")
		few := part * rapid.Float64Range(0.02, 0.1).Draw(t, "few")
		s.now++
		s.state = s.rule.Next(s.state, busy.Window{OK: (part - few) * wanted, Busy: few * wanted, Length: 1}, s.now)
		s.run(10, 10*wanted, 0)
		s.wanted = 2 * wanted
		s.forget()
		s.run(5, 10*wanted, 0)
		if s.ok < 0.95*5*s.wanted {
			t.Fatalf("%.1f %% of full speed, by %+v", s.ok/s.wanted/0.05, s.state)
		}
	})
}

// TestDoubles: a service at its limit whose capacity doubles has 95 % of it within ten seconds.
func TestDoubles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Float64Range(20, 100_000).Draw(t, "capacity")
		s := service{rule: usual, wanted: capacity * rapid.Float64Range(2.2, 1000).Draw(t, "times")}
		s.run(rapid.IntRange(5, 200).Draw(t, "before"), capacity, 0)
		s.run(10, 2*capacity, 0)
		s.forget()
		s.run(30, 2*capacity, 0)
		if s.ok < 0.95*30*2*capacity {
			t.Fatalf("%.1f %% of the capacity", s.ok/(2*capacity)/0.3)
		}
	})
}

// TestBunches: a pause on the way to a capacity that has doubled, after which answers come busy in a bunch, does not begin it anew: 95 % of
// it are there within ten seconds all the same.
func TestBunches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Float64Range(20, 100_000).Draw(t, "capacity")
		s := service{rule: usual, wanted: capacity * rapid.Float64Range(2.2, 1000).Draw(t, "times")}
		s.run(rapid.IntRange(5, 200).Draw(t, "before"), capacity, 0)
		at := rapid.IntRange(0, 9).Draw(t, "at")
		s.run(at, 2*capacity, 0)
		came := rapid.Float64Range(0.3, 1).Draw(t, "came") * min(s.state.Limit, s.wanted)
		few := came * rapid.Float64Range(0.02, 0.1).Draw(t, "busy")
		s.now++
		s.state = s.rule.Next(s.state, busy.Window{OK: came - few, Busy: few, Length: 1}, s.now)
		s.run(9-at, 2*capacity, 0)
		s.forget()
		s.run(10, 2*capacity, 0)
		if s.ok < 0.9*10*2*capacity {
			t.Fatalf("%.1f %% of the capacity", s.ok/(2*capacity)/0.1)
		}
	})
}

// TestStepsGoOn: after a few busy answers with two fifths of the last step, after many with the first.
func TestStepsGoOn(t *testing.T) {
	s := busy.State{Limit: 800, Good: 400, Step: 2.5}
	assert.InDelta(t, 0.4, usual.Next(s, busy.Window{OK: 760, Busy: 40, Length: 1}, 100).Step, 1e-9)
	assert.InDelta(t, 0.03, usual.Next(s, busy.Window{OK: 400, Busy: 400, Length: 1}, 100).Step, 1e-9)
	s.Step = 0.02
	assert.InDelta(t, 0.02, usual.Next(s, busy.Window{OK: 760, Busy: 40, Length: 1}, 100).Step, 1e-9)
}

// TestMinRateRises: what is always let through counts from the next window on, although nobody knows yet, and is less than what is known.
func TestMinRateRises(t *testing.T) {
	s := service{rule: usual, wanted: 1000}
	s.run(5, 1000, 0)
	s.run(1, 0, 60)
	assert.InDelta(t, 1, s.state.Limit, 0)
	s.rule.MinRate = 50
	s.run(1, 1000, 0)
	assert.InDelta(t, 50, s.state.Limit, 0)

	s = service{rule: s.rule, wanted: 1000}
	s.run(5, 1000, 0)
	s.run(20, 40, 0)
	assert.InDelta(t, 50, s.state.Limit, 0)
	s.run(1, 1000, 0)
	assert.Less(t, s.state.Limit, 60., "not back to 1000 in one step, after not even 50 were answered well")
}

// TestClockBack: what is to come, comes as soon, by a clock that goes back.
func TestClockBack(t *testing.T) {
	for _, back := range []float64{0, 10, 3600} {
		s := service{rule: usual, wanted: 1000, now: 10_000}
		s.run(5, 1000, 0)
		s.run(30, 0, 2)
		s.now -= back
		s.state = s.state.Later(-back)
		s.run(10, 1000, 0)
		assert.InDelta(t, 1000, s.throughOf[len(s.throughOf)-1], 50)
	}
	assert.Equal(t, busy.State{Limit: 5, Good: 6}, busy.State{Limit: 5, Good: 6}.Later(-100))
}

// TestLongerBusyLongerBack: after a longer time of busy answers, the way back is longer.
func TestLongerBusyLongerBack(t *testing.T) {
	before := 0
	for _, length := range []int{3, 20, 40} {
		s := service{rule: usual, wanted: 1000}
		s.run(5, 1000, 0)
		s.run(length, 0, 0)
		s.forget()
		s.run(20, 1000, 0)
		back := 0
		for back < len(s.throughOf) && s.throughOf[back] < 950 {
			back++
		}
		assert.Greater(t, back, before, "after %d s", length)
		before = back
	}
	assert.LessOrEqual(t, before, 10)
}

// TestProbes: a service that answers nothing but busy is asked once a second, always.
func TestProbes(t *testing.T) {
	s := service{rule: usual, wanted: 1000}
	s.run(3, 0, 0)
	s.forget()
	s.run(300, 0, 0)
	for _, through := range s.throughOf {
		assert.InDelta(t, 1, through, 0)
	}
	s = service{rule: busy.Fraction{Tolerance: 0.01, MinRate: 0.1}, wanted: 1000}
	s.run(30, 0, 0)
	assert.InDelta(t, 0.1, s.state.Limit, 0)
}

// TestFewBusyAnswers: three busy answers among 100,000 change nothing; nor does a busy window without a word on it.
func TestFewBusyAnswers(t *testing.T) {
	s := usual.Next(busy.State{}, busy.Window{OK: 100_000, Busy: 3, Length: 1}, 1)
	assert.Zero(t, s.Limit)
	s = usual.Next(busy.State{}, busy.Window{OK: 100, Busy: 3, Length: 1}, 1)
	assert.InDelta(t, 97, s.Limit, 1)
	s = busy.Fraction{Tolerance: 0.05, MinRate: 1}.Next(busy.State{}, busy.Window{OK: 100, Busy: 3, Length: 1}, 1)
	assert.Zero(t, s.Limit)
	assert.Zero(t, usual.Next(busy.State{}, busy.Window{Length: 1}, 1).Limit)
	s = busy.Fraction{MinRate: 1}.Next(busy.State{}, busy.Window{OK: 100_000, Busy: 3, Length: 1}, 1)
	assert.Less(t, s.Limit, 100_000., "without tolerance, three are something")
	assert.NotZero(t, s.Limit)
	assert.Zero(t, busy.Fraction{MinRate: 1}.Next(busy.State{}, busy.Window{Length: 1}, 1).Limit)
}

// TestWindows: a window of no length changes nothing, and two seconds are as good as one and one.
func TestWindows(t *testing.T) {
	s := usual.Next(busy.State{}, busy.Window{OK: 1, Busy: 1}, 1)
	assert.Equal(t, busy.State{}, s)
	down := usual.Next(busy.State{}, busy.Window{Busy: 10, Length: 1}, 1)
	long := usual.Next(down, busy.Window{OK: 8, Length: 2}, 3)
	short := usual.Next(usual.Next(down, busy.Window{OK: 4, Length: 1}, 2), busy.Window{OK: 4, Length: 1}, 3)
	assert.InDelta(t, short.Limit, long.Limit, 0)
}

// TestRareProbes: the way back begins with the first good answer, however long nobody could ask.
func TestRareProbes(t *testing.T) {
	rule := busy.Fraction{Tolerance: 0.01, MinRate: 0.1}
	s := service{rule: rule, wanted: 1000}
	s.run(5, 1000, 0)
	s.run(10, 0, 0)
	for range 9 { // no probe is due
		s.now++
		s.state = rule.Next(s.state, busy.Window{Length: 1}, s.now)
	}
	s.now++
	s.state = rule.Next(s.state, busy.Window{OK: 1, Length: 1}, s.now)
	assert.Less(t, s.state.Limit, 900.)
	assert.Greater(t, s.state.Limit, 1.)
}

// TestRetryAfter: who is told to wait probes until then, if all answers were busy, and does not grow, if some were.
func TestRetryAfter(t *testing.T) {
	s := service{rule: usual, wanted: 1000}
	s.run(5, 1000, 0)
	s.run(1, 0, 20)
	s.forget()
	s.run(20, 1000, 0)
	for _, through := range s.throughOf {
		assert.InDelta(t, 1, through, 0)
	}
	s.run(10, 1000, 0)
	assert.InDelta(t, 1000, s.throughOf[29], 50)

	s = service{rule: usual, wanted: 1000}
	s.run(1, 500, 20)
	s.forget()
	s.run(20, 1000, 0)
	for _, through := range s.throughOf {
		assert.InDelta(t, 475, through, 1)
	}
	s.run(1, 1000, 3600)
	s = service{rule: usual, wanted: 1000}
	s.run(1, 0, 1e9)
	s.run(60, 1000, 0)
	s.run(10, 1000, 0)
	assert.InDelta(t, 1000, s.throughOf[70], 50, "a word is good for a minute at most")
}
