package busy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
)

// usual is the rule with the defaults of package policy.
var usual = busy.Fraction{Tolerance: 0.01, MinRate: 1}

// A service answers requests up to its capacity well, and all others busy. Its callers send as
// much as they want, up to the limit of Fraction.
type service struct {
	rule      busy.Fraction
	state     busy.State
	now       float64
	wanted    float64   // requests a second
	ok, busy  float64   // answers since reset
	throughOf []float64 // requests sent in each second since reset
}

// run simulates some seconds with this capacity. Every busy answer carries retryAfter.
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

// reset sets the counts to zero.
func (s *service) reset() { s.ok, s.busy, s.throughOf = 0, 0, nil }

// TestSettles: at any demand above the capacity, at least nine tenths of the capacity are used,
// and at most one answer in twenty is busy.
func TestSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Float64Range(20, 100_000).Draw(t, "capacity")
		s := service{rule: usual, wanted: capacity * rapid.Float64Range(1.1, 1000).Draw(t, "times")}
		s.run(5, capacity, 0)
		s.reset()
		s.run(60, capacity, 0)
		if s.ok < 0.9*60*capacity || s.busy > 0.05*(s.ok+s.busy) {
			busy := 100 * s.busy / (s.ok + s.busy)
			t.Fatalf("%.1f %% of the capacity, %.1f %% busy", s.ok/capacity/0.6, busy)
		}
	})
}

// TestRecovers: callers are back at full speed within ten seconds after a service had less
// capacity, or none, for a while.
func TestRecovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wanted := rapid.Float64Range(10, 100_000).Draw(t, "wanted")
		share := rapid.SampledFrom([]float64{0, 0.02, 0.1, 0.5, 0.9}).Draw(t, "share")
		length := rapid.IntRange(1, 300).Draw(t, "seconds")
		s := service{rule: usual, wanted: wanted}
		s.run(5, wanted, 0)
		s.run(length, share*wanted, 0)
		s.run(10, wanted, 0)
		s.reset()
		s.run(5, wanted, 0)
		if s.ok < 0.95*5*wanted {
			t.Fatalf("%.1f %% of full speed", s.ok/wanted/0.05)
		}
	})
}

// TestPause: after a pause in which callers sent little, the limit soon returns to the capacity.
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
		s.reset()
		s.run(3, capacity, 0)
		if s.ok < 0.8*3*capacity {
			t.Fatalf("%.1f %% of the capacity", s.ok/capacity/0.03)
		}
	})
}

// TestOtherLimitOnTheWay: another limit, such as a quota, is lower than the busy limit, so that a
// busy answer leaves the busy limit above the rate that the service is known to bear. The busy
// limit is nevertheless lifted within ten seconds.
func TestOtherLimitOnTheWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wanted := rapid.Float64Range(20, 100_000).Draw(t, "wanted")
		s := service{rule: usual, wanted: wanted}
		s.run(rapid.IntRange(1, 10).Draw(t, "busy"), wanted/1.1, 0)
		s.run(rapid.IntRange(1, 10).Draw(t, "good"), wanted, 0)
		part := rapid.Float64Range(0.1, 1).Draw(t, "part")
		few := part * rapid.Float64Range(0.02, 0.1).Draw(t, "few")
		s.now++
		w := busy.Window{OK: (part - few) * wanted, Busy: few * wanted, Length: 1}
		s.state = s.rule.Next(s.state, w, s.now)
		s.run(10, 10*wanted, 0)
		s.wanted = 2 * wanted
		s.reset()
		s.run(5, 10*wanted, 0)
		if s.ok < 0.95*5*s.wanted {
			t.Fatalf("%.1f %% of full speed, by %+v", s.ok/s.wanted/0.05, s.state)
		}
	})
}

// TestDoubles: when the capacity of a saturated service doubles, 95 % of it are used within ten
// seconds.
func TestDoubles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Float64Range(20, 100_000).Draw(t, "capacity")
		wanted := capacity * rapid.Float64Range(2.2, 1000).Draw(t, "times")
		s := service{rule: usual, wanted: wanted}
		s.run(rapid.IntRange(5, 200).Draw(t, "before"), capacity, 0)
		s.run(10, 2*capacity, 0)
		s.reset()
		s.run(30, 2*capacity, 0)
		if s.ok < 0.95*30*2*capacity {
			t.Fatalf("%.1f %% of the capacity", s.ok/(2*capacity)/0.3)
		}
	})
}

// TestBunches: a pause while the limit grows to a doubled capacity ends in a bunch of busy answers.
// The growth continues instead of starting again: after ten seconds, the service runs at 90 % of
// its capacity or more.
func TestBunches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Float64Range(20, 100_000).Draw(t, "capacity")
		wanted := capacity * rapid.Float64Range(2.2, 1000).Draw(t, "times")
		s := service{rule: usual, wanted: wanted}
		s.run(rapid.IntRange(5, 200).Draw(t, "before"), capacity, 0)
		at := rapid.IntRange(0, 9).Draw(t, "at")
		s.run(at, 2*capacity, 0)
		came := rapid.Float64Range(0.3, 1).Draw(t, "came") * min(s.state.Limit, s.wanted)
		few := came * rapid.Float64Range(0.02, 0.1).Draw(t, "busy")
		s.now++
		s.state = s.rule.Next(s.state, busy.Window{OK: came - few, Busy: few, Length: 1}, s.now)
		s.run(9-at, 2*capacity, 0)
		s.reset()
		s.run(10, 2*capacity, 0)
		if s.ok < 0.9*10*2*capacity {
			t.Fatalf("%.1f %% of the capacity", s.ok/(2*capacity)/0.1)
		}
	})
}

// TestStepsContinue: after few busy answers, the next step is two fifths of the last one; after
// many, it is the first step again.
func TestStepsContinue(t *testing.T) {
	s := busy.State{Limit: 800, Good: 400, Step: 2.5}
	few, many := busy.Window{OK: 760, Busy: 40, Length: 1}, busy.Window{OK: 400, Busy: 400, Length: 1}
	assert.InDelta(t, 0.4, usual.Next(s, few, 100).Step, 1e-9)
	assert.InDelta(t, 0.03, usual.Next(s, many, 100).Step, 1e-9)
	s.Step = 0.02
	assert.InDelta(t, 0.02, usual.Next(s, few, 100).Step, 1e-9)
}

// TestMinRateRises: a higher MinRate applies from the next window on, even without an answer. A
// service that bears less than MinRate does not return to its old rate in one step.
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
	assert.Less(t, s.state.Limit, 60., "after 40 of 50 were answered well")
}

// TestClockBack: the recovery takes as long when the clock steps back in between.
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
	untimed := busy.State{Limit: 5, Good: 6}
	assert.Equal(t, untimed, untimed.Later(-100))
}

// TestLongerBusyLongerWayBack: the longer a service was busy, the longer is the way back.
func TestLongerBusyLongerWayBack(t *testing.T) {
	before := 0
	for _, length := range []int{3, 20, 40} {
		s := service{rule: usual, wanted: 1000}
		s.run(5, 1000, 0)
		s.run(length, 0, 0)
		s.reset()
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

// TestProbes: a service that answers everything busy gets one request a second, in every second.
func TestProbes(t *testing.T) {
	s := service{rule: usual, wanted: 1000}
	s.run(3, 0, 0)
	s.reset()
	s.run(300, 0, 0)
	for _, through := range s.throughOf {
		assert.InDelta(t, 1, through, 0)
	}
	s = service{rule: busy.Fraction{Tolerance: 0.01, MinRate: 0.1}, wanted: 1000}
	s.run(30, 0, 0)
	assert.InDelta(t, 0.1, s.state.Limit, 0)
}

// TestFewBusyAnswers: three busy answers among 100,000 are within the tolerance. An empty window
// changes nothing, also without any tolerance.
func TestFewBusyAnswers(t *testing.T) {
	s := usual.Next(busy.State{}, busy.Window{OK: 100_000, Busy: 3, Length: 1}, 1)
	assert.Zero(t, s.Limit)
	s = usual.Next(busy.State{}, busy.Window{OK: 100, Busy: 3, Length: 1}, 1)
	assert.InDelta(t, 97, s.Limit, 1)
	tolerant, strict := busy.Fraction{Tolerance: 0.05, MinRate: 1}, busy.Fraction{MinRate: 1}
	s = tolerant.Next(busy.State{}, busy.Window{OK: 100, Busy: 3, Length: 1}, 1)
	assert.Zero(t, s.Limit)
	assert.Zero(t, usual.Next(busy.State{}, busy.Window{Length: 1}, 1).Limit)
	s = strict.Next(busy.State{}, busy.Window{OK: 100_000, Busy: 3, Length: 1}, 1)
	assert.Less(t, s.Limit, 100_000., "without tolerance")
	assert.NotZero(t, s.Limit)
	assert.Zero(t, strict.Next(busy.State{}, busy.Window{Length: 1}, 1).Limit)
}

// TestWindows: a window without a length changes nothing, and a window of two seconds has the same
// effect as two windows of one.
func TestWindows(t *testing.T) {
	s := usual.Next(busy.State{}, busy.Window{OK: 1, Busy: 1}, 1)
	assert.Equal(t, busy.State{}, s)
	down := usual.Next(busy.State{}, busy.Window{Busy: 10, Length: 1}, 1)
	long := usual.Next(down, busy.Window{OK: 8, Length: 2}, 3)
	half := busy.Window{OK: 4, Length: 1}
	short := usual.Next(usual.Next(down, half, 2), half, 3)
	assert.InDelta(t, short.Limit, long.Limit, 0)
}

// TestRareProbes: the way back starts with the first good answer, however long after the last probe
// it comes.
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

// TestRetryAfter: until a Retry-After has passed, the limit is the probe rate if all answers were
// busy, and does not grow if some were.
func TestRetryAfter(t *testing.T) {
	s := service{rule: usual, wanted: 1000}
	s.run(5, 1000, 0)
	s.run(1, 0, 20)
	s.reset()
	s.run(20, 1000, 0)
	for _, through := range s.throughOf {
		assert.InDelta(t, 1, through, 0)
	}
	s.run(10, 1000, 0)
	assert.InDelta(t, 1000, s.throughOf[29], 50)

	s = service{rule: usual, wanted: 1000}
	s.run(1, 500, 20)
	s.reset()
	s.run(20, 1000, 0)
	for _, through := range s.throughOf {
		assert.InDelta(t, 475, through, 1)
	}
	s.run(1, 1000, 3600)
	s = service{rule: usual, wanted: 1000}
	s.run(1, 0, 1e9)
	s.run(60, 1000, 0)
	s.run(10, 1000, 0)
	assert.InDelta(t, 1000, s.throughOf[70], 50, "a Retry-After counts for at most a minute")
}
