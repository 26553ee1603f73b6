package schedule_test

import (
	"math"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// TestDamagedStates: a state with a number that Allocate would not have written is as good as lost.
// The next request heals it: it is allocated the first slots of a new state, at its own rate.
func TestDamagedStates(t *testing.T) {
	const now = 1.7e9
	for what, damage := range map[string]func(*schedule.State){
		"a rate that never binds":            func(s *schedule.State) { s.Rate = math.Inf(1) },
		"a rate of 0":                        func(s *schedule.State) { s.Rate = 0 },
		"a top rate that is no number":       func(s *schedule.State) { s.Top = math.NaN() },
		"a rate above the full one":          func(s *schedule.State) { s.Rate = 1e15 },
		"a tail that is never reached":       func(s *schedule.State) { s.Tail = 1e15 },
		"credit that is never reached":       func(s *schedule.State) { s.Quick = 1e15 },
		"a revision that is never exceeded":  func(s *schedule.State) { s.Rev.Number = 1e15 },
		"an epoch in the far future":         func(s *schedule.State) { s.Rev.Epoch = 2e12 },
		"a clock that stands still":          func(s *schedule.State) { s.Last = 1e300 },
		"a last request in two days":         func(s *schedule.State) { s.Last = now + 2*86400 },
		"an incarnation below 0":             func(s *schedule.State) { s.Inc = -1 },
		"allocations below 0":                func(s *schedule.State) { s.Seq = -1 },
		"allocations that cannot be counted": func(s *schedule.State) { s.Seq = 1 << 53 },
		"an epoch that has no next one":      func(s *schedule.State) { s.Epoch = 1 << 53 },
		"a tail in ten years, at a low rate": func(s *schedule.State) {
			s.Rate, s.Top, s.Tail = 0.001, 0.001, now+10*365*86400
		},
		"weights that take all":               func(s *schedule.State) { s.This.Weight = 1e300 },
		"reservations without end":            func(s *schedule.State) { s.Prev.Reserved = math.Inf(1) },
		"a round without end":                 func(s *schedule.State) { s.This.Need = 1e9 },
		"a ramp from 0":                       func(s *schedule.State) { s.Ramp.Over = 10 },
		"a ramp without end":                  func(s *schedule.State) { s.Ramp = schedule.Ramp{From: 1, Over: 1e12} },
		"a ramp in no time":                   func(s *schedule.State) { s.Ramp = schedule.Ramp{From: 1, Over: 1e-300} },
		"a line beyond all rates":             func(s *schedule.State) { s.Line.Rate = 1e300 },
		"a line below all rates":              func(s *schedule.State) { s.Line = schedule.Line{Rate: 1e-300, Epoch: 1} },
		"a line without a ramp":               func(s *schedule.State) { s.Line = schedule.Line{Rate: 1, Epoch: 1, Seen: 1} },
		"an epoch that begins in an hour":     func(s *schedule.State) { s.Start = now + 3600 },
		"a check in an hour":                  func(s *schedule.State) { s.Checked = now + 3600 },
		"a window that begins in the future":  func(s *schedule.State) { s.Outcomes.Since = now * 2 },
		"a busy service with a negative rate": func(s *schedule.State) { s.Outcomes.Service.Limit = -1 },
	} {
		first := request()
		s, sub, reply := schedule.Allocate(schedule.State{}, schedule.Sub{}, first, now)
		damage(&s)
		next := request()
		next.Carry, next.Nonce = reply.Carry, 99
		s, sub, reply = schedule.Allocate(s, sub, next, now+1)
		assert.True(t, reply.Lost, what)
		assert.Equal(t, 25.0, reply.N, what)
		assert.Zero(t, reply.Start, what)
		assert.Equal(t, 1000.0, reply.Rate, what)
		assert.NotEqual(t, reply.Carry.Inc, first.Nonce, what)
		assert.Equal(t, reply.Carry.Inc, s.Inc, what)
		assert.Equal(t, next.Rev, s.Rev, what)
		next.Carry = reply.Carry
		_, _, reply = schedule.Allocate(s, sub, next, now+1)
		assert.False(t, reply.Lost, "%s: once", what)
	}
}

// TestSlightlyDamagedStates: what may be a clock that was set is used, and the reply is sound.
func TestSlightlyDamagedStates(t *testing.T) {
	for what, damage := range map[string]func(*schedule.State){
		"resumed after the last request": func(s *schedule.State) { s.Resumed = s.Last + 0.9 },
		"a service that takes nothing": func(s *schedule.State) {
			s.Outcomes = schedule.Outcomes{Service: busy.State{Limit: 1e-300, Good: 1}, Since: 100}
		},
	} {
		r := request()
		r.Rule = busy.Rule{Mode: busy.ByFraction, Tolerance: 0.01}
		s, sub, reply := schedule.Allocate(schedule.State{}, schedule.Sub{}, r, 100)
		damage(&s)
		r.Carry = reply.Carry
		s, sub, reply = schedule.Allocate(s, sub, r, 100.1)
		assert.False(t, reply.Lost, what)
		assert.True(t, reply.Sound(r), "%s: %+v", what, reply)
		_, _, reply = schedule.Allocate(s, sub, r, 100.2)
		assert.False(t, reply.Lost, what)
		assert.True(t, reply.Sound(r), "%s: %+v", what, reply)
	}
}

// TestDamagedSub: numbers of a subscription that cannot be count as none.
func TestDamagedSub(t *testing.T) {
	s, _, first := schedule.Allocate(schedule.State{}, schedule.Sub{}, request(), 100)
	next := request()
	next.Carry = first.Carry
	_, _, reply := schedule.Allocate(s, schedule.Sub{Epoch: s.Epoch, This: schedule.Part{K: 1e300}}, next, 100)
	assert.False(t, reply.Lost, "the state is sound")
	assert.Equal(t, 1000.0, reply.Share)
}

// TestHealedQueue: a waiter whose time never ends leaves the queue.
func TestHealedQueue(t *testing.T) {
	r := request()
	r.Strict, r.Waiter = true, "p|1"
	s, sub, _ := schedule.Allocate(schedule.State{}, schedule.Sub{}, r, 100)
	s.Queue = []schedule.Waiter{{Name: "p|2", Until: math.Inf(1)}, {Name: "p|3", Until: 1e9}}
	s, _, reply := schedule.Allocate(s, sub, r, 102)
	assert.Equal(t, 1.0, reply.N)
	assert.Empty(t, s.Queue)
}

// TestReplySound: a replica takes no reply with a number that cannot be.
func TestReplySound(t *testing.T) {
	r := request()
	_, _, good := schedule.Allocate(schedule.State{}, schedule.Sub{}, r, 100)
	assert.True(t, good.Sound(r))
	assert.True(t, schedule.Reply{Late: true, Now: 5}.Sound(r))
	assert.False(t, schedule.Reply{Late: true, Now: math.Inf(1)}.Sound(r))
	for what, damage := range map[string]func(*schedule.Reply){
		"more than was wanted":    func(p *schedule.Reply) { p.N = 1e10 },
		"half a permit":           func(p *schedule.Reply) { p.N = 0.5 },
		"less than none":          func(p *schedule.Reply) { p.N = -1 },
		"no round":                func(p *schedule.Reply) { p.Carry.Round = -1 },
		"a slot that never comes": func(p *schedule.Reply) { p.Start = 1e9 },
		"a rate of 0":             func(p *schedule.Reply) { p.Rate = 0 },
	} {
		bad := good
		damage(&bad)
		assert.False(t, bad.Sound(r), what)
	}
	numbers := reflect.ValueOf(&good).Elem()
	for i := range numbers.NumField() {
		if f := numbers.Field(i); f.Kind() == reflect.Float64 {
			was := f.Float()
			f.SetFloat(math.NaN())
			assert.False(t, good.Sound(r), numbers.Type().Field(i).Name)
			f.SetFloat(was)
		}
	}
	r.Want = 0
	assert.False(t, good.Sound(r), "permits for a request that wants none")
}
