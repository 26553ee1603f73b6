package schedule

import "github.com/dispatchthrottle/throttle/dispatch/busy"

// Answers count the answers to what a replica has dispatched.
type Answers struct {
	OK, Busy   float64
	RetryAfter float64 // the longest delay that an answer asked for, seconds; 0 = none
}

// Outcomes are the answers that slow a limit down.
type Outcomes struct {
	Service busy.State
	Window  Answers // of the present window
	Since   float64 // when it began; 0 = there is none
}

// slow takes in the request's answers, which may change the limit's rate. A window that is a second
// old ends first; the answers count in the next one, so that those of a replica that was silent
// for long do not stretch it.
func (a *allocation) slow() {
	r, now, o := &a.r, a.now, &a.Outcomes
	if r.Rule.Mode == busy.None {
		return
	}
	if o.Since == 0 || o.Since > now {
		o.Since = now
	}
	if length := now - o.Since; length >= 1 {
		over := busy.Window{
			OK: o.Window.OK, Busy: o.Window.Busy, Length: length, RetryAfter: o.Window.RetryAfter,
		}
		o.Service = r.Rule.Next(o.Service, over, now)
		o.Window, o.Since = Answers{}, now
	}
	o.Window.OK += r.Answers.OK
	o.Window.Busy += r.Answers.Busy
	o.Window.RetryAfter = max(o.Window.RetryAfter, r.Answers.RetryAfter)
	pace := a.Top
	if o.Service.Limit > 0 {
		pace = min(a.Top, max(o.Service.Limit, minRate))
	}
	if pace != a.Rate {
		if !a.newer {
			a.allocated = a.slope(now, now).count(a.Tail - now)
		}
		a.Rate, a.otherPace = pace, true
	}
}
