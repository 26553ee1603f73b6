package busy

// Fraction is the rule that uses the share of busy answers in a window, so that it behaves the
// same at any traffic. The defaults of its fields are in package policy.
type Fraction struct {
	Tolerance float64 // share of busy answers, 0 to 1, up to which the service is not busy
	MinRate   float64 // lowest limit, requests a second, to probe whether the service is back; > 0
}

const (
	maxCut        = 0.05 // share by which a cut goes below the rate that was answered well
	thin          = 0.75 // a window with less than this part of the expected answers says little
	bunch         = 0.1  // share of busy answers that a pause of the callers can explain
	backPerBusy   = 0.1  // seconds of the way back to Good for each second of being busy
	maxBack       = 5.0  // seconds of the way back, at most
	firstStep     = 0.02 // growth in the first second at Good, as a part of Good
	stepGrowth    = 2.5  // factor from one step to the next
	unknownGrowth = 4.0  // factor per second if the service was never seen healthy, as in TChannel
	maxSteps      = 12   // steps of one window; more are beyond any limit
	maxTimes      = 100. // multiple of Good above which a limit is lifted
	maxRetryAfter = 60.0 // seconds
)

// A State is what the rule knows of a service. The zero value is a service that is not busy.
type State struct {
	Limit   float64 // requests a second; 0: none
	Low     float64 // the limit after the last cut
	Good    float64 // requests a second answered well when the service was last busy; 0: unknown
	Since   float64 // when the service became busy
	Cut     float64 // when the limit was last cut
	Back    float64 // seconds of the way back to Good
	Step    float64 // next growth of a limit that has reached Good, as a multiple of Good
	NotYet  float64 // no growth before this time: the service's Retry-After
	Healthy float64 // requests a second answered well in the last window without busy answers
}

// Sound reports whether a state can be one that Next has returned, and no time in it is after
// latest.
func (s State) Sound(latest float64) bool {
	const most, earliest = 1 << 53, -1e11 // of anything; of times
	for _, x := range []float64{s.Limit, s.Low, s.Good, s.Back, s.Step, s.Healthy} {
		if !(0 <= x && x <= most) {
			return false
		}
	}
	for _, at := range []float64{s.Since, s.Cut, s.NotYet} {
		if !(earliest <= at && at <= latest) {
			return false
		}
	}
	return true
}

// Later returns the state for a clock that has stepped forward by some seconds, or back if they
// are negative.
func (s State) Later(by float64) State {
	for _, at := range []*float64{&s.Since, &s.Cut, &s.NotYet} {
		if *at > 0 {
			*at += by
		}
	}
	return s
}

// A Window holds the answers of a service over some time.
type Window struct {
	OK, Busy   float64 // answers
	Length     float64 // seconds, 1 or more
	RetryAfter float64 // the longest that an answer asked for, seconds; 0: none did
}

// Next returns the state after a window that ends at now, which is above 0. A window of less than
// a second changes nothing: the caller keeps counting.
func (f Fraction) Next(s State, w Window, now float64) State {
	if !(w.Length >= 1) {
		return s
	}
	if w.Busy > f.Tolerance*(w.OK+w.Busy) {
		s = s.cut(w, f.MinRate, now)
	} else {
		s = s.grow(w, f.MinRate, now)
	}
	if s.Limit > 0 {
		s.Limit = max(s.Limit, f.MinRate) // MinRate may have risen
	}
	return s
}

// cut lowers the limit to slightly less than the rate that was answered well. If far fewer
// requests came than the limit allows, as when a process paused, their number says nothing: cut
// then applies the share of busy answers to the rate that was expected.
func (s State) cut(w Window, minRate, now float64) State {
	came, share := (w.OK+w.Busy)/w.Length, w.Busy/(w.OK+w.Busy)
	known, expected := s.Good, min(s.Limit, 2*max(s.Good, came))
	if s.Limit == 0 {
		known, expected = s.Healthy, s.Healthy
	}
	if s.Limit == 0 || s.Good > 0 && s.Limit >= s.Good { // the service was not busy before
		s.Since = now - w.Length
	}
	good := max(w.OK/w.Length, expected*(1-share))
	switch {
	case known > 0 && came < thin*expected:
		s.Good = known
	case good > minRate:
		s.Good = good
	case w.OK > 0 && s.Limit > 0 && s.Limit <= minRate: // even the probes were answered busy
		s.Good = minRate
	case s.Good == 0: // nothing was answered well: return to the last healthy rate
		s.Good = s.Healthy
	}
	if share > bunch {
		s.Step = firstStep * (1 + share)
	} else { // continue with two fifths of the last step: Step is already the next one
		s.Step = max(firstStep, s.Step/(stepGrowth*stepGrowth))
	}
	s.Limit = max(minRate, good*(1-min(share, maxCut)))
	s.Low, s.Cut = s.Limit, now
	// float64 keeps a compiler from fusing the product and the sum.
	s.Back = min(share+float64(backPerBusy*(now-s.Since)), maxBack)
	if w.RetryAfter > 0 {
		s.NotYet = max(s.NotYet, now+min(w.RetryAfter, maxRetryAfter))
		if w.OK == 0 {
			s.Limit, s.Low = minRate, minRate
		}
	}
	return s
}

// grow raises the limit after a window without busy answers: back to Good, then beyond it in steps.
func (s State) grow(w Window, minRate, now float64) State {
	if w.OK > 0 {
		s.Healthy = w.OK / w.Length
	}
	if s.Limit == 0 || now < s.NotYet || w.OK == 0 && s.Limit <= minRate { // no news of the service
		return s
	}
	steps := min(int(w.Length), maxSteps)
	switch {
	case s.Good == 0: // its capacity is unknown
		for range steps {
			s.Limit *= unknownGrowth
		}
	case s.Limit < s.Good:
		if s.Limit <= s.Low { // the way back starts with the first good answers
			s.Cut = max(s.Cut, now-w.Length)
		}
		part := 0.0
		if left := s.Back - (now - max(s.Cut, s.NotYet)); left > 0 {
			part = left / s.Back
		}
		s.Limit = max(s.Limit, s.Good-float64((s.Good-s.Low)*part*part*part))
	default:
		s.Step = max(firstStep, s.Step)
		for range steps {
			s.Limit += float64(s.Good * s.Step)
			s.Step *= stepGrowth
		}
	}
	if s.Limit >= Max || s.Good > 0 && s.Limit > maxTimes*max(s.Good, s.Low) { // out of reach
		return State{Healthy: s.Healthy}
	}
	return s
}
