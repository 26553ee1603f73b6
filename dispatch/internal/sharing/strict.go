package sharing

import (
	"fmt"
	"math"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// strict is the mode that paces messages: one every 1/rate, no burst. It holds a slot for each
// caller that waits, allocated one by one, and nothing else. A slot that no caller uses in time is
// wasted.
type strict struct {
	*Share
	carry      schedule.Carry   // from the last reply
	waiter     string           // our name in the line's queue; "" = this share does not queue
	top        float64          // the limit's rate, and
	ramp       schedule.Ramp    // the ramp to it, at which slots were allocated
	demand     Demand           // at the last step
	rev        resolve.Revision // of the limit at the last step
	pendingFor purpose          // of the last request

	inc         int64   // incarnation of the line that the slots are from
	confirmedAt float64 // when the last request was sent that the line has answered
	queued      bool    // in the line's queue
	wokenAt     float64 // when the store last said that our turn has come
	last        bool    // the last slot that was allocated may be given back
	offset      float64 // the store's clock less ours, from the fastest reply of late
	offsetAt    float64 // when it was last looked at; 0 = never
}

// A purpose is what a request of a strict share is for.
type purpose int

const (
	forWaiting    purpose = iota // a slot for a caller that waits, or to give back what is held
	forTrying                    // a slot that is free now
	forConfirming                // whether the line is still in force
)

func newStrict(s *Share) *strict {
	return &strict{Share: s, waiter: fmt.Sprintf("%s|%x", s.env.Process, s.env.Rand.Uint64())}
}

// Advance releases the slots that are due. One that the loop comes to later than permitExpiry is
// never used.
func (s *strict) Advance(t Time, d Demand) {
	now := t.Now
	s.demand = d
	s.observe(now, d)
	if s.top != s.Limit.Rate || s.ramp != s.Limit.Ramp {
		s.void() // the store counts on no replica's using slots of the old pace
		s.top, s.ramp = s.Limit.Rate, s.Limit.Ramp
	}
	for len(s.batches) > 0 {
		slot := &s.batches[0]
		if slot.left == 0 && !s.Empty() && now > slot.expires { // no caller came for it
			s.lost += s.withdraw(1)
		}
		if slot.left > 0 && now > slot.expires {
			slot.left = 0
			s.lost++
		}
		if slot.left == 0 && (s.Empty() || now > slot.expires) {
			s.batches = s.batches[1:]
			continue
		}
		if slot.left == 0 || slot.due > now || s.unconfirmed(now) {
			return
		}
		slot.left = 0
		slot.expires = min(slot.expires, s.confirmedAt+schedule.Unconfirmed)
		s.usableUntil.Store(sinceStart(slot.expires))
		s.supply(1)
		return // one at a time
	}
}

// Next requests a slot for a caller that has none, and gives back the last one if its caller has
// gone.
func (s *strict) Next(now float64, d Demand) *permits.Request {
	s.demand = d
	if s.rev != s.Limit.Revision {
		s.rev = s.Limit.Revision
		s.fullUntil.Store(0)
	}
	if at, needed := s.confirmAt(); needed && !s.pending && now >= at {
		return s.request(now, forConfirming, schedule.Request{Demand: s.Limit.Rate})
	}
	held, wanted := s.held(), s.wanted()
	leaves := s.queued && s.failures == 0 && wanted == 0 // the queue, for which it need not wait
	if s.pending || now < s.retryAt && !leaves {
		return nil
	}
	switch {
	case d.Try && held == 0 && now >= s.full():
		return s.request(now, forTrying, schedule.Request{Demand: s.Limit.Rate, Want: 1})
	case held < wanted:
		waiter := ""
		if s.Limit.Queue {
			waiter = s.waiter
		}
		return s.request(now, forWaiting, schedule.Request{Demand: s.Limit.Rate, Want: 1, Waiter: waiter})
	case held > wanted && s.last && s.upcoming(now) != nil:
		s.last = false // the store takes back no slot but the last
		s.cancel(now)
		return s.leave(now)
	case s.queued: // for no caller any more
		return s.leave(now)
	}
	return nil
}

// Drain gives back the last slot, if it is still to come, and leaves the queue; the other slots
// are wasted.
func (s *strict) Drain(now float64) *permits.Request {
	if s.pending || now < s.retryAt && !(s.queued && s.failures == 0) || s.held() == 0 && !s.queued {
		return nil
	}
	last := s.last && s.upcoming(now) != nil
	s.last = false
	s.void()
	if s.expired = 0; last {
		s.lost--
		s.expired = 1
	}
	return s.leave(now)
}

// leave requests no slot: it gives back what has expired, and takes the waiter out of the queue.
func (s *strict) leave(now float64) *permits.Request {
	s.queued = false
	return s.request(now, forWaiting, schedule.Request{Waiter: s.waiter})
}

func (s *strict) request(now float64, why purpose, r schedule.Request) *permits.Request {
	if r.Strict, r.Carry = true, s.carry; why != forTrying {
		r.MaxReserved = s.Limit.MaxReserved
	}
	s.pendingFor = why
	return s.allocate(now, r)
}

// unconfirmed reports whether a slot must not be used then: its line may have been replaced by
// another.
func (s *strict) unconfirmed(then float64) bool { return then-s.confirmedAt > schedule.Unconfirmed }

// confirmAt is when to ask whether the next slot's line is still in force, if that is needed: half
// a second before it.
func (s *strict) confirmAt() (at float64, needed bool) {
	slot := s.current()
	if slot == nil || !s.unconfirmed(slot.due+schedule.Unconfirmed/4) {
		return 0, false
	}
	if at = slot.due - schedule.Unconfirmed/2; s.failures > 0 {
		at = max(at, s.retryAt)
	}
	return at, true
}

// wanted is how many slots callers want: one for each whom this limit holds up.
func (s *strict) wanted() int64 {
	switch {
	case s.demand.Waiting > 0:
		return int64(s.demand.Callers)
	case s.demand.Callers > 0, s.demand.Try: // they wait for another limit, or for their slot
		return s.held()
	}
	return 0
}

// Answered takes in a slot. If the line is full, the next request is as late as the store says,
// and up to half a period more, so that replicas do not all come back at once. A replica in the
// queue comes in its turn.
func (s *strict) Answered(r *permits.Request, done, now float64) {
	if !s.settle(r, done, now) {
		s.fullUntil.Store(sinceStart(s.retryAt))
		return
	}
	reply := &r.Allocate.Reply
	s.carry = reply.Carry
	if reply.Carry.Inc != s.inc { // slots of another line are void
		s.void()
		s.inc, s.last = reply.Carry.Inc, false
	}
	s.confirmedAt = s.sent
	switch s.pendingFor {
	case forConfirming:
		return
	case forTrying:
		s.last = s.last && reply.N == 0
		if reply.N == 0 {
			pause := reply.Start + s.env.Rand.Float64()*min(0.25/reply.Rate, 0.025)
			s.fullUntil.Store(sinceStart(now + max(minPause, pause)))
			return
		}
	case forWaiting:
		s.queued = r.Allocate.Waiter != "" && r.Allocate.Want > 0 && reply.N == 0
	}
	switch {
	case s.sentRev != s.Limit.Revision: // of the old pace
	case reply.N > 0:
		s.rate = reply.Rate
		s.allocations++
		delay, known := s.delay(reply)
		s.last = known && s.pendingFor == forWaiting
		if !known {
			s.lost++
			return
		}
		due := max(s.sent, s.done-delay) + reply.Start
		slot := batch{n: 1, left: 1, due: due, gap: 1 / s.rate, expires: due + s.Limit.Expiry}
		s.batches = append(s.batches, slot)
	case s.queued:
		if s.wokenAt <= s.sent { // else the turn came while the request was on its way
			delay, _ := s.delay(reply)
			s.retryAt = max(now+0.001, s.done-delay+reply.Start)
		}
	case r.Allocate.Want > 0:
		s.retryAt = now + max(0.001, reply.Start) + s.env.Rand.Float64()/2*min(1/reply.Rate, 1)
	}
}

// minPause is the shortest time after which a refused caller may come back, seconds.
const minPause = 1e-4

// delay is how much later a reply came than the fastest of late, compared by the store's clock: a
// start counts from the moment at which the fastest would have come. Of the first reply of all
// that is known only if it was fast.
func (s *strict) delay(reply *schedule.Reply) (delay float64, known bool) {
	offset := reply.Now - s.done
	known = s.offsetAt != 0 || s.done-s.sent <= s.Limit.Expiry
	if s.offsetAt != 0 {
		s.offset -= 1e-4 * (s.done - s.offsetAt) // clocks drift
	}
	faster, stepped := offset > s.offset, s.offset-offset > s.done-s.sent
	if s.offsetAt == 0 || faster || stepped {
		s.offset = offset
	}
	s.offsetAt = s.done
	return s.offset - offset, known
}

// WakeAt is when the next step is due.
func (s *strict) WakeAt(now float64) float64 {
	at := math.Inf(1)
	for _, slot := range s.batches {
		if at = slot.due; slot.left == 0 || at <= now { // or not confirmed in time
			at = slot.expires
		}
		if slot.left > 0 || !s.Empty() { // else a caller has it: the next one counts
			break
		}
	}
	if s.pending {
		return at
	}
	if confirm, needed := s.confirmAt(); needed {
		at = min(at, max(now, confirm))
	}
	if s.held() < s.wanted() {
		at = min(at, max(now, s.retryAt))
	}
	return at
}

// NextPermit is when a refused caller may find a slot.
func (s *strict) NextPermit(now float64) float64 {
	if full := s.full(); full > now {
		return full
	}
	if slot := s.current(); slot != nil {
		return slot.due
	}
	return now + s.Limit.Round
}

// Idle reports whether no slot is held and none is waited for.
func (s *strict) Idle() bool { return !s.pending && !s.queued && len(s.batches) == 0 && s.Empty() }

// Report fills in the place in the queue. The share in a reply is that of all replicas.
func (s *strict) Report(r *Report) {
	r.Allowed, r.Queued, r.Use = s.rate, s.queued, min(r.Use, s.Limit.Rate)
}

// sinceStart is a time in nanoseconds since the engine's start, at which its clock was 1.
func sinceStart(at float64) int64 { return int64((at - 1) * 1e9) }

// full is until when the line is known to be full.
func (s *strict) full() float64 { return 1 + float64(s.fullUntil.Load())/1e9 }

// TryRefused reports whether a caller that does not wait is to be refused now: no slot is on its
// way to it, or another limit has no permit for it.
func (s *Share) TryRefused() bool { return !s.pending && (s.held() == 0 || !s.Empty()) }

// Waiter is the share's name in the queue of a strict line; "" in other modes.
func (s *Share) Waiter() string {
	if strict, ok := s.Mode.(*strict); ok {
		return strict.waiter
	}
	return ""
}

// Woken has the share ask for its slot now: the permit store says that its turn has come.
func (s *Share) Woken(now float64) {
	if strict, ok := s.Mode.(*strict); ok {
		s.retryAt, strict.wokenAt = 0, now
	}
}
