package pool

import "math"

// A Ramp raises a limit from From to its full rate over Duration, in steps of one second: the
// modes `scheduled` and `relaxed` of Numaflow's rate limits. The zero value is no ramp: the
// full rate at once.
type Ramp struct {
	From     float64 // permits a second
	Duration float64 // seconds; 0 = no ramp
	TTL      float64 // seconds without a call, after which the ramp begins again; 0 = never
	Relaxed  bool    // move once in each second in which somebody asks; false = with the time
}

// A RampState is where the one line of a pool stands: what a ledger keeps under one key. The
// zero value has not begun.
type RampState struct {
	Rate  float64 `json:"rate"`  // permits a second, from the last step
	Epoch int64   `json:"epoch"` // the whole second of the last step; 0 = not begun
	Seen  float64 `json:"seen"`  // the store's clock at the last call
}

// At returns the rate at the time now, on the store's clock, under a limit in permits a
// second, and the state to keep. asked says that permits were asked for; a replica without
// traffic calls with false, which keeps the line alive. Calls from any number of replicas, in
// any number, move the line once a second.
//
// With slope = (limit - From)/Duration, a scheduled ramp rises by slope for every second that
// went by; a relaxed one by slope in each second in which somebody asks, so that it stands
// still without traffic and goes on from there. A clock that steps back moves nothing. A limit
// that changes on the way changes the slope from there on; the rate is never above it.
func (r Ramp) At(s RampState, limit float64, asked bool, now float64) (RampState, float64) {
	if r.Duration <= 0 || r.From >= limit {
		return RampState{}, limit
	}
	if r.TTL > 0 && now-s.Seen > r.TTL {
		s = RampState{}
	}
	epoch := int64(math.Floor(now))
	step := (limit - r.From) / r.Duration
	switch {
	case s.Epoch == 0:
		s.Rate = r.From
		if r.Relaxed && !asked {
			epoch = 0 // begins with the traffic
		}
	case r.Relaxed && !asked:
		epoch = s.Epoch
	case epoch > s.Epoch && r.Relaxed:
		s.Rate += step
	case epoch > s.Epoch:
		s.Rate += float64(step * float64(epoch-s.Epoch))
	}
	s.Rate = min(s.Rate, limit)
	s.Epoch, s.Seen = epoch, now
	return s, s.Rate
}
