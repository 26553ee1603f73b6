package schedule

import "math"

// voidAfter is how long after a change of the rate slots of the old pace may still be used, in seconds: until then
// everybody knows of the change, and drops them.
const voidAfter = 0.1

// pace goes over to another rate: the first slot is a new period behind the last old one that may have been used, and
// the old ones after it are void.
func (s *State) pace(rate, now float64) {
	last := s.Tail - 1/s.Rate
	if ahead := last - now - voidAfter; ahead > 0 {
		last -= math.Ceil(ahead*s.Rate) / s.Rate
	}
	s.Tail = last + 1/rate
	s.Seq++ // the last slot may be void: who gives it back gives nothing
}

// reserve books the next slot: one permit every 1/Rate, no burst, and no memory of idle time. A slot that is given back
// is free again only if it is the last that was booked. The formula is that of the optimistic permit with a bound on how
// many are reserved (sources: the distributed throttle problem).
func (s *State) reserve(r Request, c Carry, now float64) Reply {
	if r.Returned > 0 && c.Seq == s.Seq {
		s.Tail -= r.Returned / s.Rate
		s.Seq++ // what is last now may be another's
	}
	reply := Reply{Now: now, Rate: s.Rate, Carry: Carry{Inc: s.Inc, Seq: c.Seq}} // of the caller's own last slot
	if r.Want <= 0 {
		return reply
	}
	start := max(now, s.Tail)
	ahead := float64((start - now) * s.Rate)
	if math.Ceil(ahead-1e-6) > r.MaxReserved {
		reply.Start = start - now - r.MaxReserved/s.Rate
		return reply
	}
	s.Tail = start + 1/s.Rate
	s.Seq++
	reply.N, reply.Start, reply.Share, reply.Carry.Seq = 1, start-now, s.Rate, s.Seq
	return reply
}
