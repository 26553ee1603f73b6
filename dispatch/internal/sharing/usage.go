package sharing

import "math"

// A usage is how fast callers take permits, and how many they were refused.
type usage struct {
	use       float64 // permits a second, averaged over 300 ms
	meter     meter   // of the same, for people
	sparse    float64 // permits a second, if the one before was over two rounds ago; else +Inf
	usedAt    float64 // the last step at which something was taken
	used      bool    // something was taken since the last request
	taken     int64   // put - avail at the last step
	steppedAt float64 // the last step

	refusedAt float64 // when a caller was last refused
	patience  float64 // how long a refused caller is thought to stay away, seconds
	asked     int64   // permits that a refused caller is thought to come back for
	heldUp    float64 // seconds since the last request in which callers waited for slots to come
}

func (u *usage) init(now float64) { u.steppedAt, u.sparse = now, math.Inf(1) }

// observe brings the averages up to date.
func (s *Share) observe(now float64, d Demand) {
	round := s.Limit.Round
	if d.Waiting > 0 && s.unreleased() > 0 {
		s.heldUp += now - s.steppedAt
	}
	if dt := now - s.steppedAt; dt > 0 {
		taken := s.put - s.avail.Load()
		used := max(0, taken-s.taken)
		s.taken, s.steppedAt = taken, now
		s.meter.add(used, now)
		s.use += (float64(used)/dt - s.use) * (1 - math.Exp(-dt/0.3))
		if used > 0 {
			s.sparse = math.Inf(1)
			if pause := now - s.usedAt; pause > 2*round { // not a gap between random arrivals
				s.sparse = float64(used) / pause
			}
			s.usedAt, s.used = now, true
		}
	}
	if n := s.refused.Load(); n > 0 {
		s.patience = min(60, max(round, now-s.refusedAt))
		if s.refusedAt == 0 {
			s.patience = 1
		}
		s.refusedAt, s.asked = now, n
	} else if s.asked > 0 && now-s.refusedAt > 2*s.patience {
		s.asked = 0
	}
}

// wants is the permits a second that this replica wants, as far as it shows.
func (s *Share) wants(d Demand) float64 {
	// Just after a permit was taken, the average shows a slow caller as if it were a fast one.
	rate := 1.3*min(s.use, s.sparse) + d.Waiting/s.Limit.Round
	if n := s.refused.Load(); n > 0 {
		rate += float64(n) / s.patience
	}
	if d.Waiting > 0 && s.quick > 0 {
		rate = max(rate, 2*s.quick/s.Limit.Round)
	}
	return rate
}

// pressure is the demand that the schedule is told. A replica whose callers wait for slots shows
// less than they want: its demand d counts only for the time in which they had a choice, but is
// raised by a quarter at most, so that a short burst of a quiet subscription does not cost it its
// credit. Batches are sized by d itself, so that a replica which is taken for greedy by mistake
// requests no slots that it then wastes.
func (s *Share) pressure(now, d float64) float64 {
	if now > s.sent {
		d /= max(0.8, 1-s.heldUp/(now-s.sent))
	}
	return d
}
