package schedule

import "github.com/dispatchthrottle/throttle/dispatch/busy"

// Answers are how what a replica dispatched was answered.
type Answers struct {
	OK, Busy   float64
	RetryAfter float64 // the longest that was asked for, seconds; 0 = none
}

// Outcomes are what a limit that slows down for others knows of them.
type Outcomes struct {
	Service busy.State
	Window  Answers // that is not over
	Since   float64 // when it began; 0 = there is none
}

// slowed takes a request's answers in, and returns the rate to go on at. A window that is a second old ends first; answers count from the
// next one on, so that one who was silent for long does not stretch them.
func (s *State) slowed(r Request, now float64) float64 {
	o := &s.Outcomes
	if o.Since == 0 || o.Since > now {
		o.Since = now
	}
	if length := now - o.Since; length >= 1 {
		o.Service = r.Rule.Next(o.Service, busy.Window{OK: o.Window.OK, Busy: o.Window.Busy, Length: length, RetryAfter: o.Window.RetryAfter}, now)
		o.Window, o.Since = Answers{}, now
	}
	o.Window.OK += r.Answers.OK
	o.Window.Busy += r.Answers.Busy
	o.Window.RetryAfter = max(o.Window.RetryAfter, r.Answers.RetryAfter)
	if o.Service.Limit > 0 {
		return min(s.Top, o.Service.Limit)
	}
	return s.Top
}
