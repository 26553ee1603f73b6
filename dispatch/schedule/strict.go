package schedule

import (
	"math"
	"slices"
)

// Unconfirmed is how long a slot may be used after the last reply from the state that it was
// allocated in, in seconds. A state that replaces another begins that long and a period later, so
// that no slots of the two are closer than a period.
const Unconfirmed = 1.0

// voidAfter is how long after a change of the rate slots of the old rate may still be used, in
// seconds: all replicas know of the change by then, and drop them.
const voidAfter = 0.1

// A waiter asks again when its turn has come and now and then, so that it is known to be there: see
// showUp. One that is late by more than grace, in seconds, is removed.
const grace = 0.25

// showUp is how long a waiter may be silent, in seconds: so short that the waiter behind dead ones
// asks once more before two periods, or two seconds, are over; but all waiters together ask at most
// 200 times a second.
func (s *State) showUp() float64 {
	return max(min(2, max(0.75, 0.75/s.Rate)), float64(len(s.Queue))/200)
}

// maxPlace is how long a waiter can be in the queue before it asks again, in seconds: more is
// damage, and would block the queue.
const maxPlace = 86400.0

// A Waiter is a replica's share in the queue for a slot: its callers wait.
type Waiter struct {
	Name  string
	Until float64 // when it is removed, unless it asks again
}

// paceStrict changes the rate: the first slot is a new period after the last old one that may have
// been used, and the old ones after that are void. Replicas that follow another policy store do not
// hear of its change, and use their old ones.
func (a *allocation) paceStrict() {
	if a.otherPace {
		last := a.Tail - 1/a.was
		if ahead := last - a.now - voidAfter; ahead > 0 && !a.severalStores() {
			last -= math.Ceil(ahead*a.was) / a.was
		}
		a.Tail = last + a.slope(a.now, a.now).span(1)
		a.Seq++ // the last slot may be void: giving it back has no effect
	}
	a.Quick = min(a.Quick, a.Tail)
}

// meetStrict keeps a period between the slots of this state and those of another one, if the
// replica knows another one, or may.
func (a *allocation) meetStrict() {
	if !a.strange() {
		return
	}
	begin := a.now + (Unconfirmed + a.slope(a.now, a.now).span(1))
	switch {
	case a.old: // all slots are void
		a.Tail = begin
	case a.foreign, !a.known && !a.r.Sole: // slots of another state may be in use still
		a.Tail = max(a.Tail, begin)
	}
	a.forget()
}

// reserve allocates the next slot: one permit every 1/Rate, no burst, and no memory of idle time.
// A slot that is given back is free again only if it is the last that was allocated. Waiters in
// the queue come first. The formula is that of the optimistic permit with a bound on how many are
// reserved ("The distributed throttle problem").
func (a *allocation) reserve() Reply {
	r, c, now := &a.r, a.r.Carry, a.now
	if r.Returned > 0 && c.Seq == a.Seq {
		a.Tail -= a.atTail(now).span(r.Returned)
		a.Seq++ // the last slot may now be another caller's
	}
	r.MaxReserved = min(r.MaxReserved, MostReserved(a.Rate))
	a.leave(func(w Waiter) bool { return !within(w.Until, now, now+maxPlace) })
	place := len(a.Queue)
	if i := slices.IndexFunc(a.Queue, func(w Waiter) bool { return w.Name == r.Waiter }); i >= 0 {
		place = i
	}
	// The caller's last slot stays its own one, unless it is allocated another.
	reply := Reply{Carry: Carry{Inc: a.Inc, Seq: c.Seq, Refused: c.Refused}}
	free := a.free()
	if r.Waiter == "" && c.Refused == 0 && r.MaxReserved > 0 {
		free-- // the last one is for those that have been refused
	}
	switch {
	case r.Want <= 0:
		a.leave(func(w Waiter) bool { return w.Name == r.Waiter })
	case float64(place) < free:
		start := max(now, a.Tail)
		a.leave(func(w Waiter) bool { return w.Name == r.Waiter })
		reply.Gap = a.slope(now, start).span(1)
		a.Tail = start + reply.Gap
		a.Seq++
		reply.N, reply.Start, reply.Share = 1, start-now, a.Rate
		reply.Carry.Seq, reply.Carry.Refused = a.Seq, 0
	default:
		reply.Carry.Refused++
		reply.Start = max(now, a.Tail) - now + (float64(place)-r.MaxReserved)/a.Rate
		reply.Start = max(reply.Start, 0)
		if r.Waiter != "" {
			reply.Start = min(reply.Start, a.showUp())
			a.wait(place, Waiter{r.Waiter, now + reply.Start + grace})
		}
	}
	if len(a.Queue) > 0 && a.Queue[0].Name != r.Waiter && a.free() >= 1 {
		reply.Wake = a.Queue[0].Name
	}
	return reply
}

// MostReserved bounds the future slots that are allocated of a strict limit, whatever its policy
// says: two seconds of them, or one. However many replicas are allocated slots and then die, the
// next one waits for two periods or two seconds.
func MostReserved(rate float64) float64 { return max(1, math.Floor(2*rate-1+1e-9)) }

// free is how many slots may be allocated now.
func (a *allocation) free() float64 {
	ahead := a.slope(a.now, a.now).count(max(a.now, a.Tail) - a.now)
	return a.r.MaxReserved + 1 - math.Ceil(ahead-1e-6)
}

// leave removes waiters from the queue, whose memory may be shared with another state.
func (s *State) leave(gone func(Waiter) bool) {
	if slices.ContainsFunc(s.Queue, gone) {
		if s.Queue = slices.DeleteFunc(slices.Clone(s.Queue), gone); len(s.Queue) == 0 {
			s.Queue = nil
		}
	}
}

// wait puts a waiter in the queue, or renews its place.
func (s *State) wait(place int, w Waiter) {
	s.Queue = slices.Clone(s.Queue)
	if place == len(s.Queue) {
		s.Queue = append(s.Queue, w)
	}
	s.Queue[place] = w
}
