package sharing

import (
	"errors"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// requests is the record of a share's requests to the permit store. One request is on its way at a
// time.
type requests struct {
	pending bool
	sent    float64 // the last request
	timeout float64 // that it had, seconds; 0 = it cannot be late
	done    float64 // when its answer arrived
	retryAt float64 // no request before
	dated   bool    // a quota's revision is the store's clock

	sentRev  schedule.Revision // of the limit when the last request was sent, and
	sentRate float64           // its rate, permits a second

	failures  int     // in a row
	conflicts int     // of these, in a row, since other replicas were faster
	failedAt  float64 // when the first of them was noticed
	cutAt     float64 // when the first of them was sent

	// Of the last two requests, seconds. The first of all, which may have to connect, does not count.
	rtts      [2]float64
	storeTime float64          // the store's clock less ours, from the last answer; 0 = unknown
	clock     clock            // the last answer that was not late
	unheard   schedule.Answers // outcomes that the store has not been told of

	memory *requestMemory // nil before the first
}

// A requestMemory is the memory of a share's request, which the next one uses again. Most of the
// shares of a process with many topics never send one.
type requestMemory struct {
	request    permits.Request
	allocation permits.Allocate
}

func (r *requests) requestMemory() *requestMemory {
	if r.memory == nil {
		r.memory = new(requestMemory)
	}
	return r.memory
}

// rtt is how long a request takes, seconds; 0 = unknown.
func (r *requests) rtt() float64 { return min(r.rtts[0], r.rtts[1]) }

// send notes that a request is on its way, and returns it.
func (s *Share) send(now float64, r permits.Request) *permits.Request {
	r.Key = s.Limit.Key
	m := s.requestMemory()
	m.request = r
	s.expired = 0
	s.pending, s.used = true, false
	s.heldUp, s.sent, s.sentRev, s.sentRate = 0, now, s.Limit.Revision, s.rate
	s.timeout = s.env.Timeout()
	return &m.request
}

// allocate completes a request to the schedule.
func (s *Share) allocate(now float64, r schedule.Request) *permits.Request {
	l := &s.Limit
	r.Subscription, r.Weight, r.Reserved = l.Sharer, l.Weight, l.Reserved
	r.Returned, r.Held, r.RTT = float64(s.expired), float64(s.held()), s.rtt()
	r.Round, r.Burst, r.Rate, r.Ramp, r.Rule = l.Round, l.Burst, l.Rate, l.Ramp, l.Rule
	r.Rev = l.Revision
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

// A clock is the permit store's clock in an answer, when its request was sent and when it arrived.
type clock struct{ now, sent, received float64 }

// drift is how much two clocks may differ after a second.
const drift = 5e-4

// bounds returns the earliest and the latest time that the store's clock can show now; 0, 0 before
// the first answer.
func (c clock) bounds(now float64) (low, high float64) {
	if c.received == 0 {
		return 0, 0
	}
	low, high = now-c.received, now-c.sent
	return c.now + low - drift*low, c.now + high + drift*high
}

// still is by how many seconds more than its own clock says a process must have missed to have
// stood still. Its clock may stand still, too, as that of a virtual machine that was suspended.
const still = 0.1

// stoodStill reports whether the store's clock has gone further than ours since the last answer.
// Permits allocated before are then too old to be used. (A store's clock that was set looks the
// same, and costs a batch or two.)
func (c clock) stoodStill(store, received float64) bool {
	_, high := c.bounds(received)
	return high > 0 && store > high+still
}

// AddAnswers notes outcomes that the permit store is to be told of. They go with the next request.
func (s *Share) AddAnswers(r *permits.Request, more schedule.Answers) {
	s.keepAnswers(more)
	if r.Allocate != nil {
		r.Allocate.Answers = s.unheard
	}
}

func (s *Share) keepAnswers(more schedule.Answers) {
	s.unheard.OK += more.OK
	s.unheard.Busy += more.Busy
	s.unheard.RetryAfter = max(s.unheard.RetryAfter, more.RetryAfter)
}

// settle takes in what an answer says of the permit store, and reports whether the request was
// made.
func (s *Share) settle(r *permits.Request, done, now float64) bool {
	s.pending, s.done = false, done
	if r.Err == nil && s.clock.stoodStill(r.Now(), done) {
		s.void()
		s.lost += s.expired
		s.expired = 0
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
