package sharing

import (
	"fmt"
	"math"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// strict is the mode that paces messages: one every 1/rate, no burst. A replica holds at most one
// slot for each caller that waits, and requests them one by one. A slot that no caller uses in time
// is wasted.
type strict struct {
	*Share
	carry      schedule.Carry    // from the last reply
	paceRate   float64           // the limit's rate when the slots were allocated
	paceRamp   schedule.Ramp     // and its ramp
	demand     Demand            // at the last step
	rev        schedule.Revision // of the limit when Next was last called
	pendingFor purpose           // of the last request

	inc           int64   // incarnation of the schedule that the slots are from
	confirmedAt   float64 // when the newest request was sent that has been answered
	queued        bool    // in the schedule's queue
	newestToStore bool    // the newest slot may go back to the store
	backAt        float64 // when the slot that was released last came back; 0 = it has not
	offset        float64 // the store's clock less ours, from the fastest of the recent replies
	offsetAt      float64 // when it was last looked at; 0 = never
	waitsSince    float64 // when callers began to wait, or one of them last got a slot; 0 = none waits
}

// A purpose is what a request of a strict share is for.
type purpose int

const (
	forWaiting    purpose = iota // get a slot for a caller that waits
	forTrying                    // get a slot that is free now
	forConfirming                // hear whether the schedule is still in force
	forLeaving                   // give the newest slot back, or leave the queue
)

func newStrict(s *Share) *strict {
	s.Paced, s.Waiter = true, fmt.Sprintf("%s|%x", s.env.Process, s.env.Rand.Uint64())
	return &strict{Share: s}
}

// Advance releases the slots that are due, one at a time: the next when a caller has taken this
// one or its time is over. A slot that the loop reaches more than permitExpiry after its time is
// lost.
func (s *strict) Advance(t Time, d Demand) {
	now := t.Now
	s.note(now, d)
	s.observe(&s.Bucket, s.Limit.Round, now, d)
	if step := s.slotBack.Swap(0); step > 0 {
		s.putBack(now, step-1)
	}
	if s.paceRate != s.Limit.Rate || s.paceRamp != s.Limit.Ramp {
		s.void() // the store assumes that slots of the old pace are not used
		s.paceRate, s.paceRamp = s.Limit.Rate, s.Limit.Ramp
	}
	for len(s.batches) > 0 {
		slot := &s.batches[0]
		if slot.state == released && !s.Empty() && now > slot.expires { // no caller came for it
			s.lost += s.withdraw(1)
		}
		if slot.state == released && !s.Empty() && !s.demand.Anybody && s.nextInTurn() != nil { // unused
			slot.recall(s.withdraw(1))
		}
		if slot.state == toCome && now > slot.expires {
			slot.finish()
			s.lost++
		}
		// A taken slot stays first until the next one is due or its time is over: its caller may still
		// give it back.
		if taken := slot.state == released && s.Empty(); now > slot.expires || taken && s.nextDue(now) {
			s.batches = s.batches[1:]
			continue
		}
		if slot.state == released || slot.due > now || s.unconfirmed(now) {
			return
		}
		if next := s.nextServed(); next != s {
			s.passSlot(next)
			next.releaseSlot(t)
			s.env.Serve(next.Share, now)
			continue
		}
		s.releaseSlot(t)
		return
	}
}

// releaseSlot lets a caller take the first slot.
func (s *strict) releaseSlot(t Time) {
	slot := &s.batches[0]
	slot.finish()
	slot.expires = min(slot.expires, s.confirmedAt+schedule.Unconfirmed)
	s.freshFrom.Store(t.Step) // before usableUntil; see engine.Admission.Expired
	s.usableUntil.Store(int64(sinceStart(slot.expires)))
	s.backAt = 0
	s.served(t.Now)
	s.supply(1)
}

// nextDue reports whether the slot behind the first one is due.
func (s *strict) nextDue(now float64) bool { return len(s.batches) > 1 && s.batches[1].due <= now }

// putBack lets another caller take the slot that one took at that step and did not use, unless its
// time is over, or the slot after it was released.
func (s *strict) putBack(now float64, step uint64) {
	if len(s.batches) == 0 || s.batches[0].state == toCome || now > s.batches[0].expires || !s.Fresh(step) {
		s.Waste(1)
		return
	}
	s.Return(1)
	s.backAt = now
}

// unusedNewest reports whether the newest slot may go back to the line: its time has not come, or
// its caller gave it back so long ago that no other will come for it.
func (s *strict) unusedNewest(now float64) bool {
	return s.newestToStore && (s.upcoming(now) != nil || !s.Empty() && len(s.batches) == 1 &&
		s.backAt > 0 && now >= s.backAt+s.Limit.Expiry/4 && now <= s.batches[0].expires)
}

// withdrawNewest takes out the newest slot for the next request, unless a caller has just taken it.
func (s *strict) withdrawNewest(now float64) {
	s.newestToStore = false // the store takes back no slot but the newest
	if s.upcoming(now) != nil {
		s.cancel(now)
	} else if s.withdraw(1) == 1 {
		s.batches = nil
		s.giveBackLater(now, 1)
	}
}

// Next requests a slot for a caller that has none, and gives back the last one if its caller has
// gone.
func (s *strict) Next(now float64, d Demand) *permits.Request {
	s.note(now, d)
	if s.rev != s.Limit.Revision {
		s.rev = s.Limit.Revision
		s.fullUntil.Store(0) // the new limit may have room
	}
	if at, needed := s.confirmAt(); needed && !s.pending && now >= at {
		return s.request(now, forConfirming, schedule.Request{})
	}
	held, keeps := s.Unspent(), s.keeps()
	if !s.mayRequest(now, held >= keeps) {
		return nil
	}
	switch {
	case d.Try && held == 0 && now >= s.full():
		return s.request(now, forTrying, schedule.Request{Want: 1})
	case held < s.wanted(), s.queued && held < keeps: // or it would lose its place
		waiter := ""
		if s.Limit.Queue {
			waiter = s.Waiter
		}
		return s.request(now, forWaiting, schedule.Request{Want: 1, Waiter: waiter})
	case held > keeps && s.handSurplus(held-keeps, now):
		if s.queued {
			return s.leave(now)
		}
		return nil
	case held > keeps && s.unusedNewest(now):
		s.withdrawNewest(now)
		return s.leave(now)
	case s.queued: // each caller has a slot
		return s.leave(now)
	}
	return nil
}

// Drain hands the slots to come to a share whose callers wait, or else gives back the newest, and
// leaves the queue. The other slots are lost.
func (s *strict) Drain(now float64) *permits.Request {
	if other := s.nextInTurn(); other != nil {
		s.handTo(other, now, s.Unspent())
	}
	if !s.mayRequest(now, true) || s.Unspent() == 0 && !s.queued {
		return nil
	}
	returned := s.newestToStore && s.upcoming(now) != nil
	s.newestToStore = false
	s.void()
	s.toStore = 0
	if returned { // void has counted it as lost
		s.lost--
		s.toStore = 1
	}
	return s.leave(now)
}

// mayRequest reports whether a request may be sent now. A replica leaves the queue without delay,
// unless the store has failed.
func (s *strict) mayRequest(now float64, leave bool) bool {
	return !s.pending && (now >= s.retryAt || leave && s.queued && s.failures == 0)
}

// leave takes the share out of the queue. The slot in toStore goes back, if there is one.
func (s *strict) leave(now float64) *permits.Request {
	s.queued = false
	return s.request(now, forLeaving, schedule.Request{Waiter: s.Waiter})
}

// request adds to r what all requests of strict shares have.
func (s *strict) request(now float64, why purpose, r schedule.Request) *permits.Request {
	s.pendingFor = why
	r.Strict, r.Carry = true, s.carry
	if why != forTrying {
		r.MaxReserved = s.Limit.MaxReserved // 0 = only a slot that is free now
	}
	if why != forLeaving {
		r.Demand = s.Limit.Rate // the schedule paces: no share needs to know how many wait
	}
	return s.allocate(now, r)
}

// unconfirmed reports whether a slot must not be used at a time: another schedule may be in force
// by then.
func (s *strict) unconfirmed(at float64) bool { return at-s.confirmedAt > schedule.Unconfirmed }

// confirmAt is when to ask whether the next slot's schedule is still in force, if that is needed:
// half of Unconfirmed before the slot. A quarter is left for a loop that comes late.
func (s *strict) confirmAt() (at float64, needed bool) {
	slot := s.current()
	if slot == nil || !s.unconfirmed(slot.due+schedule.Unconfirmed/4) {
		return 0, false
	}
	at = slot.due - schedule.Unconfirmed/2
	if s.failures > 0 {
		at = max(at, s.retryAt)
	}
	return at, true
}

// wanted is how many slots to have: one for each caller that no other limit holds up, if this one
// holds one up.
func (s *strict) wanted() int64 {
	if s.demand.Waiting > 0 {
		return int64(s.demand.Callers - s.demand.Hindered)
	}
	return 0
}

// keeps is how many slots are kept: more are given back. Other limits may run out of permits for
// a moment: a slot that is given back because of that costs the line a period.
func (s *strict) keeps() int64 {
	switch {
	case s.demand.Waiting > 0:
		return int64(s.demand.Callers)
	case s.demand.Callers > 0, s.demand.Try:
		return s.Unspent()
	}
	return 0
}

// Answered takes in a slot. If there is none, the next request is sent after the time that the
// store names and a random part of a period, so that replicas do not all come back at once. A
// replica in the queue comes in its turn.
func (s *strict) Answered(r *permits.Request, done, now float64) {
	if !s.noteAnswer(r, done, now) {
		s.fullUntil.Store(int64(sinceStart(s.retryAt)))
		return
	}
	reply := &r.Allocate.Reply
	s.carry = reply.Carry
	s.noteRival(reply.Rival, now)
	if reply.Carry.Inc != s.inc { // slots of another schedule are void
		s.void()
		s.inc, s.newestToStore = reply.Carry.Inc, false
	}
	s.confirmedAt = s.sent
	switch s.pendingFor {
	case forConfirming, forLeaving:
		return
	case forTrying:
		s.newestToStore = s.newestToStore && reply.N == 0
		if reply.N == 0 {
			pause := reply.Start + 0.25*s.env.Rand.Float64()*min(1/reply.Rate, 0.1)
			s.fullUntil.Store(int64(sinceStart(now + max(minPause, pause))))
			return
		}
	case forWaiting:
		s.queued = r.Allocate.Waiter != "" && r.Allocate.Want > 0 && reply.N == 0
	}
	switch {
	case s.sentRev != s.Limit.Revision: // a slot of another revision may have the old pace: drop it
	case reply.N > 0:
		s.rate = reply.Rate
		s.allocations++
		delay, known := s.delay(reply)
		s.newestToStore = known && s.pendingFor == forWaiting
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
			s.retryAt = max(now+minWait, s.done-delay+reply.Start)
		}
	case r.Allocate.Want > 0:
		s.retryAt = now + max(minWait, reply.Start) + 0.5*s.env.Rand.Float64()*min(1/reply.Rate, 1)
	}
}

const (
	minPause = 1e-4 // shortest time after which a refused caller may come back, seconds
	minWait  = 1e-3 // shortest time between two requests of callers that wait, seconds
)

// delay estimates how much later a reply came than the fastest of the recent ones, by the store's
// clock: a slot's start counts from the moment at which the fastest would have come. The first
// reply has none to compare it with: its delay is known only if its round trip was short.
func (s *strict) delay(reply *schedule.Reply) (delay float64, known bool) {
	offset := reply.Now - s.done
	known = s.offsetAt != 0 || s.done-s.sent <= s.Limit.Expiry
	if s.offsetAt != 0 {
		s.offset -= 1e-4 * (s.done - s.offsetAt) // clocks drift
	}
	faster := offset > s.offset
	stepped := s.offset-offset > s.done-s.sent // later than its whole round trip: a clock was set
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
		if slot.state == released && s.Empty() { // taken
			continue
		}
		at = slot.due
		if slot.state == released || at <= now { // due and not released: it was not confirmed in time
			at = slot.expires
		}
		break
	}
	if back := s.backAt + s.Limit.Expiry/4; s.backAt > 0 && back > now && !s.Empty() {
		at = min(at, back)
	}
	if s.pending {
		return at
	}
	if confirm, needed := s.confirmAt(); needed {
		at = min(at, max(now, confirm))
	}
	if s.Unspent() < s.wanted() || s.queued {
		at = min(at, max(now, s.retryAt))
	}
	return at
}

// Covered is false: each caller wants a slot of its own.
func (s *strict) Covered(float64) bool { return false }

// NextPermit is when a refused caller may find a slot.
func (s *strict) NextPermit(now float64) float64 {
	if at := s.nextSlot(now); at > 0 {
		return at
	}
	return now + s.Limit.Round
}

// Keep is false: what is held goes back, or to another share.
func (s *strict) Keep(float64) bool { return false }

// Reopen is false: nothing is kept.
func (s *strict) Reopen() bool { return false }

// Idle reports whether no slot is held and none is waited for.
func (s *strict) Idle() bool { return !s.pending && !s.queued && s.Unspent() == 0 }

// Report fills in whether callers are in the queue. The rate is that of all replicas together.
func (s *strict) Report(r *Report) {
	r.Allowed, r.Queued, r.Use = s.rate, s.queued, min(r.Use, s.Limit.Rate)
}

// SlotUntil is until when the next slot of a strict limit may be used; 0 = none is held.
func (s *Share) SlotUntil() float64 {
	for _, slot := range s.batches {
		if slot.state == toCome || !s.Empty() {
			return slot.expires
		}
	}
	return 0
}

// TryRefused reports whether a caller of a strict limit that does not wait is to be refused now: no
// request is on its way, and either no slot is held, or the held one is for later, or another limit
// has no permit for the caller. next is the time before which no slot can be had; 0 = unknown.
func (s *Share) TryRefused(now float64) (next float64, yes bool) {
	next = s.nextSlot(now)
	return next, !s.pending && (s.Unspent() == 0 || !s.Empty() || next > now+2*minWait)
}

// nextSlot is the time before which no slot of a strict limit can be had; 0 = unknown.
func (s *Share) nextSlot(now float64) float64 {
	if full := s.full(); full > now {
		return full
	}
	if slot := s.current(); slot != nil {
		return slot.due
	}
	if s.retryAt > now {
		return s.retryAt
	}
	return 0
}

// full is until when no slot of a strict limit is free, as far as is known.
func (s *Share) full() float64 { return 1 + float64(s.fullUntil.Load())/1e9 }
