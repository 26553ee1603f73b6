package schedule_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// TestRampVectors are Numaflow's: its pods' even floors of a limit's rate in each second.
func TestRampVectors(t *testing.T) {
	for _, c := range []struct {
		limit, from, duration float64
		pods                  int
		floors                []int64
	}{
		{60, 15, 10, 2, []int64{7, 9, 12, 14, 16, 18, 21, 23, 25, 27, 30}},
		{20, 10, 10, 2, []int64{5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10}},
		{20, 10, 10, 1, []int64{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}},
	} {
		for _, relaxed := range []bool{false, true} {
			r := schedule.Ramp{From: c.from, Over: c.duration, Relaxed: relaxed}
			var s schedule.Line
			for second, floor := range c.floors {
				var rate float64
				for pod := range c.pods { // all ask in each second, one after the other
					s, rate = r.At(s, c.limit, true, false, 1000.25+float64(second)+float64(pod)/4)
				}
				want := c.from + (c.limit-c.from)/c.duration*float64(second)
				assert.InDelta(t, want, rate, 1e-9)
				assert.Equal(t, floor, int64(rate/float64(c.pods)+1e-9), "%+v in second %d", c, second)
			}
		}
	}
}

func TestRamp(t *testing.T) {
	type call struct {
		now   float64
		asked bool
		rate  float64
	}
	for name, c := range map[string]struct {
		ramp  schedule.Ramp
		calls []call
	}{
		"scheduled": {schedule.Ramp{From: 10, Over: 9, TTL: 30}, []call{
			{1000.5, false, 10}, // begins with the first call
			{1000.9, true, 10},
			{1001.0, true, 20},
			{1001.0, true, 20},   // once
			{1004.0, false, 50},  // by time
			{999.0, true, 50},    // a clock that steps back
			{1000.0, true, 60},   // continues from there
			{1030.0, true, 100},  // not above
			{1061.0, false, 10},  // no call for a ttl
			{1062.0, false, 20},  //
			{1091.0, false, 100}, // resumed after 29 seconds
		}},
		"relaxed": {schedule.Ramp{From: 10, Over: 9, TTL: 30, Relaxed: true}, []call{
			{1000, false, 10}, // not started
			{1005, false, 10},
			{1010, true, 10}, // starts
			{1010.5, true, 10},
			{1011, true, 20},
			{1011.9, true, 20},
			{1020, false, 20}, // stands still
			{1029, false, 20},
			{1040, true, 30}, // where it was, one step
			{1060, false, 30},
			{1069, true, 40}, // resumed after a restart
			{1100, true, 10}, // no call for a ttl
		}},
		"never again": {schedule.Ramp{From: 10, Over: 9}, []call{{1000, true, 10}, {9000, true, 100}}},
		"no ramp":     {schedule.Ramp{}, []call{{1000, false, 100}, {1001, true, 100}}},
		"no way up":   {schedule.Ramp{From: 100, Over: 9}, []call{{1000, false, 100}}},
		"from above":  {schedule.Ramp{From: 200, Over: 9}, []call{{1000, false, 100}}},
	} {
		var s schedule.Line
		for i, call := range c.calls {
			var rate float64
			s, rate = c.ramp.At(s, 100, call.asked, false, call.now)
			assert.InDelta(t, call.rate, rate, 1e-9, "%s, call %d", name, i)
		}
	}
}

// TestRampLimitChanges: the line continues from where it is, at the slope of the new limit, and
// never above it.
func TestRampLimitChanges(t *testing.T) {
	r := schedule.Ramp{From: 10, Over: 9}
	s, _ := r.At(schedule.Line{}, 100, true, false, 1000)
	s, rate := r.At(s, 100, true, false, 1004)
	assert.Equal(t, 50.0, rate)
	s, rate = r.At(s, 28, true, false, 1004)
	assert.Equal(t, 28.0, rate)
	_, rate = r.At(s, 190, true, false, 1005)
	assert.Equal(t, 48.0, rate)
}

// TestRampChanges: a change of the ramp never lowers the rate, and the limit is reached within the
// new Over from the change on.
func TestRampChanges(t *testing.T) {
	for _, c := range []struct {
		name   string
		change schedule.Ramp
		rates  []float64 // from the change on, a second each
	}{
		{"a higher start", schedule.Ramp{From: 500, Over: 10}, []float64{500, 510, 520}},
		{"a lower start", schedule.Ramp{From: 100, Over: 10}, []float64{330, 380, 430, 480, 530, 580, 600}},
		{"longer", schedule.Ramp{From: 150, Over: 45}, []float64{330, 340, 350}},
		{"shorter", schedule.Ramp{From: 150, Over: 3}, []float64{330, 480, 600}},
		{"a start at the limit", schedule.Ramp{From: 600, Over: 3}, []float64{600, 600}},
		{"a start above it", schedule.Ramp{From: 700, Over: 3}, []float64{600, 600}},
		{"none", schedule.Ramp{}, []float64{600, 600}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s schedule.Line
			for second := range 5 {
				s, _ = schedule.Ramp{From: 150, Over: 10}.At(s, 600, true, false, 1000+float64(second))
			}
			for i, want := range c.rates {
				var rate float64
				s, rate = c.change.At(s, 600, true, false, 1004+float64(i))
				assert.InDelta(t, want, rate, 1e-9, "%d s later", i)
			}
		})
	}
}

// TestRampChangesAtRandom is TestRampChanges for any ramps.
func TestRampChangesAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ramp := func() schedule.Ramp {
			return schedule.Ramp{
				From: rapid.Float64Range(0.1, 150).Draw(t, "from"), Over: rapid.Float64Range(0.5, 60).Draw(t, "over"),
				Relaxed: rapid.Bool().Draw(t, "relaxed"),
			}
		}
		const limit = 100.0
		r, now, changed, last := ramp(), 1000.0, 1000.0, 0.0
		var s schedule.Line
		for range rapid.IntRange(1, 60).Draw(t, "seconds") {
			if rapid.IntRange(0, 9).Draw(t, "change") == 0 {
				r, changed = ramp(), now
			}
			var rate float64
			s, rate = r.At(s, limit, true, false, now)
			if rate < last || rate > limit || now >= changed+r.Over+1 && rate < limit-1e-9 || !s.Sound(now) {
				t.Fatalf("%v after %v, %v s after a change to %+v", rate, last, now-changed, r)
			}
			last = rate
			now++
		}
	})
}

// TestRampIsOneLine: however many ask, how often and in which order, the line is what one caller
// a second would see.
func TestRampIsOneLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := schedule.Ramp{
			From: rapid.Float64Range(0, 100).Draw(t, "from"), Over: rapid.Float64Range(0.5, 60).Draw(t, "duration"),
			TTL: 100, Relaxed: rapid.Bool().Draw(t, "relaxed"),
		}
		const limit = 100.0
		var many, one schedule.Line
		now := 1000.0
		for range rapid.IntRange(1, 60).Draw(t, "seconds") {
			asked := rapid.Bool().Draw(t, "asked")
			var rate, want float64
			one, want = r.At(one, limit, asked, false, now)
			for i := range rapid.IntRange(1, 5).Draw(t, "calls") {
				many, rate = r.At(many, limit, asked, false, now+float64(i)/10)
			}
			if math.Abs(rate-want) > 1e-9 || rate < min(r.From, limit) || rate > limit {
				t.Fatalf("%v, one caller alone %v", rate, want)
			}
			now += float64(rapid.IntRange(1, 5).Draw(t, "later"))
		}
	})
}

// From 15 to 60 permits a second in 10 seconds, without requests in the third.
func ExampleRamp_At() {
	r := schedule.Ramp{From: 15, Over: 10, Relaxed: true}
	var s schedule.Line
	for second, asked := range []bool{true, true, false, true} {
		var rate float64
		s, rate = r.At(s, 60, asked, false, 1000+float64(second))
		fmt.Println(rate)
	}
	// Output:
	// 15
	// 19.5
	// 19.5
	// 24
}
