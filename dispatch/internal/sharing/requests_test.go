package sharing

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestClockBounds: the store's clock has moved on since the last request at most, and since its
// answer at least, give or take the drift.
func TestClockBounds(t *testing.T) {
	for _, c := range []struct {
		clock     clock
		now       float64
		low, high float64
	}{
		{clock{}, 50, 0, 0}, // no answer yet
		{clock{now: 1000, sent: 10, received: 11}, 11, 1000, 1001 + drift},
		{clock{now: 1000, sent: 10, received: 11}, 111, 1100 - 100*drift, 1101 + 101*drift},
	} {
		low, high := c.clock.bounds(c.now)
		assert.InDelta(t, c.low, low, 1e-9, "%+v at %v", c.clock, c.now)
		assert.InDelta(t, c.high, high, 1e-9, "%+v at %v", c.clock, c.now)
	}
}

// TestConflictDelays: the delay before a record is replaced again doubles with each time in
// succession that other replicas were faster. Another failure ends the succession.
func TestConflictDelays(t *testing.T) {
	w := newWorld()
	s := w.join(splitLimit(10, 0)).Share
	for _, c := range []struct {
		err  error
		mean float64
	}{
		{permits.ErrConflict, 2}, {permits.ErrConflict, 4}, {permits.ErrConflict, 5},
		{errors.New("down"), 1}, {permits.ErrConflict, 2}, {nil, 1},
	} {
		r := permits.Request{Err: c.err, Heartbeat: &permits.Heartbeat{}}
		assert.Equal(t, c.err == nil, s.noteAnswer(&r, 1, 1))
		sum := 0.0
		for range 1000 {
			d := s.crowded(1, 5)
			assert.GreaterOrEqual(t, d, c.mean/2)
			assert.LessOrEqual(t, d, c.mean*1.5)
			sum += d
		}
		assert.InDelta(t, c.mean, sum/1000, 0.05*c.mean, "after %v", c.err)
	}
}

// TestRetryDelays: a failed request is repeated after a random part of a round, from a quarter to
// three quarters. From the fourth failure on, it is half a round to two rounds.
func TestRetryDelays(t *testing.T) {
	w := newWorld()
	s := w.join(limited(policy.Fair, 10)).Share
	for i, c := range []struct {
		low, high float64 // rounds
		outage    bool
	}{
		{0.25, 0.75, false}, {0.25, 0.75, true}, {0.25, 0.75, true},
		{0.5, 2, true}, {0.5, 2, true},
	} {
		var delays []float64
		for range 200 { // the same failure again
			s.failures = i
			s.sent = float64(i)
			s.failed(float64(i) + 0.5)
			delays = append(delays, (s.retryAt-float64(i)-0.5)/0.1)
		}
		low, high := delays[0], delays[0]
		for _, d := range delays {
			low, high = min(low, d), max(high, d)
		}
		assert.InDelta(t, c.low, low, 0.05*(c.high-c.low), "failure %d", i+1)
		assert.InDelta(t, c.high, high, 0.05*(c.high-c.low), "failure %d", i+1)
		assert.GreaterOrEqual(t, low, c.low-1e-9)
		assert.LessOrEqual(t, high, c.high+1e-9)
		assert.Equal(t, c.outage, s.storeDown(), "failure %d", i+1)
		assert.Equal(t, c.outage, s.Unavailable(), "failure %d", i+1)
	}
	assert.Equal(t, 0.0, s.awaySince, "when the first was sent")
	assert.Equal(t, 4.5, s.FailingFor(5), "since the first was noticed")

	s.askAgain()
	assert.NotZero(t, s.retryAt, "a changed limit does not ask a failing store")
	s.done = 6
	s.succeeded(106)
	assert.False(t, s.Unavailable())
	assert.Zero(t, s.FailingFor(7))
	s.retryAt = 8
	s.askAgain()
	assert.Zero(t, s.retryAt)
}

// TestNotAfter: a request has a deadline on the store's clock once that is known. Until then, a
// store that has failed is only asked for its clock, since it may answer at any time.
func TestNotAfter(t *testing.T) {
	w := newWorld()
	s := w.join(limited(policy.Fair, 10)).Share
	s.env.Timeout = constant(0.3)
	want := schedule.Request{Want: 5}
	r := s.allocate(2, want)
	assert.Zero(t, r.Allocate.NotAfter)
	assert.EqualValues(t, 5, r.Allocate.Want)
	s.failures = 1
	assert.Zero(t, s.allocate(2, want).Allocate.Want)
	assert.Zero(t, r.Allocate.Low)

	r.Allocate.Reply = schedule.Reply{Now: 102.1, Late: true}
	assert.False(t, s.noteAnswer(r, 2.1, 2.1), "too late")
	assert.Equal(t, 2, s.failures)
	r = s.allocate(3, want)
	assert.InDelta(t, 103.3, r.Allocate.NotAfter, 1e-9, "a late answer tells the clock")
	assert.EqualValues(t, 5, r.Allocate.Want)

	r.Allocate.Reply = schedule.Reply{Now: 103.1}
	assert.True(t, s.noteAnswer(r, 3.1, 3.1))
	r = s.allocate(4, want)
	assert.InDelta(t, 104-drift*0.9, r.Allocate.Low, 1e-9)
	assert.InDelta(t, 104.1+drift, r.Allocate.High, 1e-9)

	s.env.Timeout = constant(0)
	assert.Zero(t, s.allocate(5, want).Allocate.NotAfter, "a store that answers at once")
}

// TestAnswersAreSentOnce: outcomes go with each request until one of them is answered.
func TestAnswersAreSentOnce(t *testing.T) {
	w := newWorld()
	s := w.join(limited(policy.Fair, 10)).Share
	r := s.allocate(2, schedule.Request{Want: 5})
	s.TellOutcomes(r, schedule.Answers{OK: 1, Busy: 2, RetryAfter: 9})
	s.failed(2)
	r = s.allocate(3, schedule.Request{Want: 5})
	s.TellOutcomes(r, schedule.Answers{OK: 10, Busy: 20, RetryAfter: 5})
	assert.Equal(t, schedule.Answers{OK: 11, Busy: 22, RetryAfter: 9}, r.Allocate.Answers)
	r.Allocate.Reply = schedule.Reply{Now: 3}
	assert.True(t, s.noteAnswer(r, 3, 3))
	s.TellOutcomes(&permits.Request{}, schedule.Answers{OK: 3}) // a request that carries no outcomes
	r = s.allocate(4, schedule.Request{Want: 5})
	s.TellOutcomes(r, schedule.Answers{})
	assert.Equal(t, schedule.Answers{OK: 3}, r.Allocate.Answers)
}

// TestRTT: the time of a request is that of the faster of the last two. The first request of all,
// which may have to connect, does not count.
func TestRTT(t *testing.T) {
	w := newWorld()
	s := w.join(limited(policy.Fair, 10)).Share
	for i, c := range []struct{ took, rtt float64 }{
		{0.5, 0}, {0.02, 0.02}, {0.03, 0.02}, {0.04, 0.03},
	} {
		s.sent = float64(i)
		s.done = s.sent + c.took
		s.succeeded(0)
		assert.InDelta(t, c.rtt, s.rtt(), 1e-9, "answer %d", i)
	}
}
