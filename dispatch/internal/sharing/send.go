package sharing

import (
	"errors"
	"math"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// send notes that a request is on its way, and returns it.
func (s *Share) send(now float64, r permits.Request) *permits.Request {
	r.Key = s.Limit.Key
	m := s.requestMemory()
	m.request = r
	s.toStore = 0
	s.pending, s.used = true, false
	s.heldUp, s.sent, s.sentRev, s.sentRate = 0, now, s.Limit.Revision, s.rate
	s.timeout = s.env.Timeout()
	return &m.request
}

// allocate completes a request to the schedule.
func (s *Share) allocate(now float64, r schedule.Request) *permits.Request {
	l := &s.Limit
	r.Subscription, r.Weight, r.Reserved = l.Sharer, l.Weight, l.Reserved
	r.Returned, r.Held, r.RTT = float64(s.toStore), float64(s.Unspent()), s.rtt()
	r.Round, r.Burst, r.Rate, r.Ramp, r.Rule = l.Round, l.Burst, l.Rate, l.Ramp, l.Rule
	r.Source, r.Rev = l.Source, l.Revision
	r.Nonce = 1 + s.env.Rand.Int64N(1<<52)
	timeout := s.env.Timeout()
	switch {
	case timeout == 0: // it cannot be late
	case s.storeTime != 0:
		r.NotAfter = now + s.storeTime + timeout
	case s.failures > 0:
		r.Want = 0 // a frozen store may answer this however late: only its clock is wanted
	}
	r.Low, r.High = s.clock.bounds(now)
	m := s.requestMemory()
	m.allocation = permits.Allocate{Request: r}
	return s.send(now, permits.Request{Allocate: &m.allocation})
}

// succeeded notes an answer with the store's clock in it.
func (s *Share) succeeded(clockNow float64) {
	s.failures, s.retryAt = 0, 0
	s.unavailable.Store(false)
	s.storeTime = clockNow - s.done
	s.clock = clock{clockNow, s.sent, s.done}
	s.rtts[0], s.rtts[1] = s.rtts[1], s.done-s.sent
}

// noteAnswer takes in what an answer says of the permit store, and reports whether the request was
// made.
func (s *Share) noteAnswer(r *permits.Request, done, now float64) bool {
	s.pending, s.done = false, done
	if r.Err == nil && s.clock.stoodStill(r.Now(), done) {
		s.void()
		s.lost += s.toStore
		s.toStore = 0
	}
	if errors.Is(r.Err, permits.ErrConflict) {
		s.conflicts++
	} else {
		s.conflicts = 0
	}
	switch {
	case r.Err != nil,
		s.timeout > 0 && done-s.sent > s.timeout+still: // this process has paused, and all is over
		s.failed(now)
		return false
	case r.Late():
		s.storeTime = r.Now() - s.done
		s.failed(now)
		return false
	}
	s.succeeded(r.Now())
	s.unheard = schedule.Answers{}
	return true
}

// failed notes that a request failed, and when to send the next one. Split mode, whose heartbeats
// are rarer, has a delay of its own.
func (s *Share) failed(now float64) {
	if s.failures++; s.failures == 1 {
		s.failedAt, s.awaySince = now, s.sent
	}
	s.unavailable.Store(s.storeDown())
	jitter := s.env.Rand.Float64()
	s.retryAt = now + s.Limit.Round*(0.25+jitter/2)
	if s.failures > 3 { // not all replicas may come back in the same moment
		s.retryAt = now + s.Limit.Round*(0.5+1.5*jitter)
	}
}

// crowded returns a delay before a record is to be replaced again, at random: half of d to one and
// a half. Each time in succession that others were faster, it doubles, up to max, so that many
// replicas that start at once get their turns.
func (s *Share) crowded(d, max float64) float64 {
	return min(d*math.Pow(2, float64(s.conflicts)), max) * (0.5 + s.env.Rand.Float64())
}
