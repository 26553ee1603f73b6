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

// A waiter asks again when its turn has come and every showUp seconds or, if there are more than
// 200, so rarely that all together ask a hundred times a second. One that is late by more than
// grace is removed.
const (
	showUp = 2.0
	grace  = 0.25
)

// maxPlace is how long a waiter can be in the queue before it asks again, in seconds: more is
// damage, and would block the queue.
const maxPlace = 86400.0

// A Waiter is a caller in the queue for a slot.
type Waiter struct {
	Name  string
	Until float64 // when it is removed, unless it asks again
}

// pace changes the rate: the first slot is a new period after the last old one that may have been
// used, and the old ones after that are void.
func (s *State) pace(was, now float64) {
	last := s.Tail - 1/was
	if ahead := last - now - voidAfter; ahead > 0 {
		last -= math.Ceil(ahead*was) / was
	}
	s.Tail = last + s.slope(now, now).span(1)
	s.Seq++ // the last slot may be void: giving it back has no effect
}

// reserve allocates the next slot: one permit every 1/Rate, no burst, and no memory of idle time.
// A slot that is given back is free again only if it is the last that was allocated. Waiters in
// the queue come first. The formula is that of the optimistic permit with a bound on how many are
// reserved ("The distributed throttle problem").
func (s *State) reserve(r Request, c Carry, now float64) Reply {
	if r.Returned > 0 && c.Seq == s.Seq {
		s.Tail -= s.atTail(now).span(r.Returned)
		s.Seq++ // the last slot may now be another caller's
	}
	s.leave(func(w Waiter) bool { return !within(w.Until, now, now+maxPlace) })
	place := len(s.Queue)
	if i := slices.IndexFunc(s.Queue, func(w Waiter) bool { return w.Name == r.Waiter }); i >= 0 {
		place = i
	}
	// The caller's last slot stays its own one, unless it is allocated another.
	reply := Reply{Now: now, Rate: s.Rate, Carry: Carry{Inc: s.Inc, Seq: c.Seq}}
	switch {
	case r.Want <= 0:
		s.leave(func(w Waiter) bool { return w.Name == r.Waiter })
	case float64(place) < s.free(r, now):
		start := max(now, s.Tail)
		s.leave(func(w Waiter) bool { return w.Name == r.Waiter })
		reply.Gap = s.slope(now, start).span(1)
		s.Tail = start + reply.Gap
		s.Seq++
		reply.N, reply.Start, reply.Share, reply.Carry.Seq = 1, start-now, s.Rate, s.Seq
	default:
		reply.Start = max(now, s.Tail) - now + (float64(place)-r.MaxReserved)/s.Rate
		if reply.Start = max(reply.Start, 0); r.Waiter != "" {
			reply.Start = min(reply.Start, max(showUp, float64(len(s.Queue))/100))
			s.wait(place, Waiter{r.Waiter, now + reply.Start + grace})
		}
	}
	if len(s.Queue) > 0 && s.Queue[0].Name != r.Waiter && s.free(r, now) >= 1 {
		reply.Wake = s.Queue[0].Name
	}
	return reply
}

// free is how many slots may be allocated now.
func (s *State) free(r Request, now float64) float64 {
	ahead := s.slope(now, now).count(max(now, s.Tail) - now)
	return r.MaxReserved + 1 - math.Ceil(ahead-1e-6)
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
