package schedule

import "math"

// A Ramp raises a limit from From to its full rate over Over, in steps of one second: the modes `scheduled` and
// `relaxed` of Numaflow's rate limits. The zero value is no ramp: the full rate at once.
type Ramp struct {
	From    float64 // permits a second, > 0
	Over    float64 // seconds; 0 = no ramp
	TTL     float64 // seconds without a call, after which the ramp begins again; 0 = never
	Relaxed bool    // move once in each second in which somebody asks; false = with the time
}

// A Line is where the one ramp of a limit stands, for all who share it: what a ledger keeps. The zero value has not begun.
type Line struct {
	Rate  float64 // permits a second, from the last step
	Epoch int64   // the whole second of the last step; 0 = not begun
	Seen  float64 // the store's clock at the last call
}

// At returns the rate under a limit in permits a second, and the line to keep. now is the store's clock; at, now or
// later, is the moment for which the rate is wanted: that of the slot to be booked. asked says that permits are asked for; a replica
// without traffic calls with false, which keeps the line alive. Calls of any number of replicas, in any number, move the line
// once a second.
//
// With slope = (limit - From)/Over, a scheduled ramp rises by slope for every second that went by; a relaxed one by slope
// in each second in which somebody asks, so that it stands still without traffic and goes on from there. A clock that
// steps back moves nothing. A limit that changes on the way changes the slope from there on; the rate is never above it.
func (r Ramp) At(s Line, limit float64, asked bool, now, at float64) (Line, float64) {
	if r.Over <= 0 || r.From >= limit {
		return Line{}, limit
	}
	if back := s.Seen - now; back >= 1 {
		s.Epoch = max(1, s.Epoch-int64(back))
	}
	if r.TTL > 0 && now-s.Seen > r.TTL && at <= now { // who has slots to come is not silent
		s = Line{}
	}
	epoch := int64(math.Floor(at))
	step := (limit - r.From) / r.Over
	switch {
	case s.Epoch == 0 && r.Relaxed && !asked: // begins with the traffic
		s.Rate = r.From
	case s.Epoch == 0:
		s.Rate, s.Epoch = r.From, epoch
	case epoch <= s.Epoch, r.Relaxed && !asked:
	case r.Relaxed:
		s.Rate, s.Epoch = s.Rate+step, epoch
	default:
		s.Rate, s.Epoch = s.Rate+float64(step*float64(epoch-s.Epoch)), epoch
	}
	s.Rate = min(s.Rate, limit)
	s.Seen = now
	return s, s.Rate
}
