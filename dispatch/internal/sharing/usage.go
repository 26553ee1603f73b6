package sharing

import "math"

// A usage is how fast callers take permits, and how many they were refused.
type usage struct {
	use       float64 // permits a second, averaged over
	over      float64 // seconds
	meter     meter   // of the same, for people
	sparse    float64 // permits a second, if the one before was over two rounds ago; else +Inf
	usedAt    float64 // the last step at which something was taken
	wantedAt  float64 // the first step since then at which callers waited; 0 = they have not
	used      bool    // something was taken since the last request
	unserved  bool    // callers have come since something was taken
	leftAt    float64 // the first step at which these had given up; 0 = they have not
	taken     int64   // put - avail at the last step
	steppedAt float64 // the last step

	refusals  int64   // permits that were refused before this step
	refusedAt float64 // when a caller was last refused
	patience  float64 // how long a refused caller is thought to stay away, seconds
	asked     int64   // permits that a refused caller is thought to come back for
	heldUp    float64 // seconds since the last request in which callers waited for slots to come
}

// minOver is the shortest time that use is averaged over, seconds. Batches of a far permit store
// are longer; within one the rate of a greedy caller may vary.
const minOver = 0.3

func (u *usage) init(now float64) { u.steppedAt, u.sparse, u.over = now, math.Inf(1), minOver }

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
		s.use += (float64(used)/dt - s.use) * (1 - math.Exp(-dt/s.over))
		if used > 0 {
			s.sparse = math.Inf(1)
			came := now
			if s.wantedAt > 0 {
				came = s.wantedAt // the rest of the pause is the permit store's
			}
			if pause := came - s.usedAt; pause > 2*round { // not a gap between random arrivals
				s.sparse = float64(used) / pause
			}
			s.usedAt, s.used, s.wantedAt = now, true, 0
		}
		if d.Waiting > 0 && s.wantedAt == 0 {
			s.wantedAt = now
		}
		s.unserved = s.unserved && used == 0
	}
	switch {
	case d.Anybody:
		s.unserved, s.leftAt = true, 0
	case !s.unserved:
		s.leftAt = 0
	case s.leftAt == 0:
		s.leftAt = now
	}
	if s.refusals = 0; s.refused.Load() > 0 { // most steps have nothing to take
		s.refusals = s.refused.Swap(0) // what comes from now on is for the next step
	}
	if s.refusals > 0 {
		s.patience = min(60, max(round, now-s.refusedAt))
		if s.refusedAt == 0 {
			s.patience = 1
		}
		s.refusedAt, s.asked = now, s.refusals
	} else if s.asked > 0 && now-s.refusedAt > 2*s.patience {
		s.asked = 0
	}
}

// abandonedAt is when the permits are taken for abandoned: callers have given up, and none has come
// again in a round, nor is one that was refused expected; +Inf = that is not so.
func (s *Share) abandonedAt() float64 {
	switch {
	case s.leftAt == 0:
		return math.Inf(1)
	case s.asked > 0:
		return max(s.leftAt+s.Limit.Round, s.refusedAt+2*s.patience)
	}
	return s.leftAt + s.Limit.Round
}

// wants is the permits a second that this replica wants, as far as it shows.
func (s *Share) wants(d Demand) float64 {
	// Just after a permit was taken, the average shows a slow caller as if it were a fast one.
	rate := 1.3*min(s.use, s.sparse) + d.Waiting/s.Limit.Round
	if s.refusals > 0 {
		rate += float64(s.refusals) / s.patience
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
