package schedule

import "math"

// A Ramp raises a limit from From to its full rate over Over seconds, in steps of one second: the
// modes `scheduled` and `relaxed` of Numaflow's rate limits. The zero value is no ramp: the full
// rate at once.
type Ramp struct {
	From    float64 // permits a second, > 0
	Over    float64 // seconds; 0 = no ramp
	TTL     float64 // seconds without a request, after which the ramp starts again; 0 = never
	Relaxed bool    // rise once in each second with a request for permits; false = with the time
}

// A Line is where a limit is on its ramp, for all replicas that share it: what a permit store
// keeps. The zero value has not started.
type Line struct {
	Rate  float64 // permits a second, from the last step
	Epoch int64   // the whole second of the last step; 0 = not started
	Seen  float64 // the store's clock at the last request
}

// At returns the rate under a limit in permits a second, and the line to keep. now is the store's
// clock. asked reports that permits are requested; a replica without traffic passes false, which
// keeps the line alive. busy reports that allocated slots lie in the future, so that the line is
// in use however long there was no request. Any number of requests of any number of replicas raise
// the line once a second.
//
// With slope = (limit - From)/Over, a scheduled ramp rises by slope for every second that has
// passed. A relaxed ramp rises by slope in each second with a request for permits: it pauses
// without traffic and then continues. A clock that steps back has no effect. A change of the limit
// or of the ramp changes the slope from then on, and a higher From raises the rate at once. So a
// change of the ramp never lowers the rate, and the limit is reached within Over from then on. The
// rate is never above the limit.
func (r Ramp) At(s Line, limit float64, asked, busy bool, now float64) (Line, float64) {
	if r.Over <= 0 {
		return Line{}, limit
	}
	if back := s.Seen - now; back >= 1 {
		s.Epoch = max(1, s.Epoch-int64(back))
	}
	if r.TTL > 0 && now-s.Seen > r.TTL && !busy {
		s = Line{}
	}
	epoch, step := int64(math.Floor(now)), r.step(limit)
	switch {
	case s.Epoch == 0 && r.Relaxed && !asked: // starts with the traffic
		s.Rate = r.From
	case s.Epoch == 0:
		s.Rate, s.Epoch = r.From, epoch
	case epoch <= s.Epoch, r.Relaxed && !asked:
	case r.Relaxed:
		s.Rate, s.Epoch = s.Rate+step, epoch
	default:
		s.Rate, s.Epoch = s.Rate+float64(step*float64(epoch-s.Epoch)), epoch
	}
	s.Rate = min(max(s.Rate, r.From), limit)
	s.Seen = now
	return s, s.Rate
}

func (r Ramp) step(limit float64) float64 { return max(0, (limit-r.From)/r.Over) }

// A slope is a rate from some time on: constant for a second, then rising by step a second up to
// top. It is never above the steps of the ramp.
type slope struct{ rate, step, top float64 }

// slope returns the rate of a limit from the time at on, which is now or later.
func (s *State) slope(now, at float64) slope {
	if s.Line.Epoch == 0 {
		return slope{s.Rate, 0, s.Rate}
	}
	step := s.Ramp.step(s.Top)
	return slope{min(s.Top, s.Rate+float64(step*(math.Floor(at)-math.Floor(now)))), step, s.Top}
}

// atTail is the slope at the next slot. Permits that are given back are counted by it, too: never
// at a lower rate than they were allocated at.
func (s *State) atTail(now float64) slope { return s.slope(now, max(now, s.Tail)) }

// span returns how long n permits take.
func (l slope) span(n float64) float64 {
	if n <= l.rate || l.step <= 0 || l.rate >= l.top {
		return n / l.rate
	}
	n -= l.rate
	up := (l.top - l.rate) / l.step // seconds to the top
	if rising := float64((l.rate + l.top) / 2 * up); n > rising {
		return 1 + up + (n-rising)/l.top
	}
	return 1 + (math.Sqrt(float64(l.rate*l.rate)+float64(2*l.step*n))-l.rate)/l.step
}

// count returns how many permits take d seconds.
func (l slope) count(d float64) float64 {
	if d <= 1 || l.step <= 0 || l.rate >= l.top {
		return float64(d * l.rate)
	}
	d--
	up := (l.top - l.rate) / l.step
	if d > up {
		return l.rate + float64((l.rate+l.top)/2*up) + float64((d-up)*l.top)
	}
	return l.rate + float64(l.rate*d) + float64(l.step*d*d/2)
}
