package busy

// Fraction is the rule that goes by the share of busy answers in a window, so that it is the same at any traffic. Its defaults are the policies'.
type Fraction struct {
	Tolerance float64 // share of busy answers that is nothing yet
	MinRate   float64 // requests a second that are always let through, to see whether the service is back; > 0
}

const (
	mostCut        = 0.05 // below what was answered well
	thin           = 0.75 // of what was to be expected: a window with less says little of what the service can do
	bunch          = 0.1  // share of busy answers up to which a pause of the callers may have been the reason
	backPerBusy    = 0.1  // seconds of the way back to the last good rate, for each second for which the service was busy
	mostBack       = 5.0
	firstStep      = 0.02  // above the last good rate, in the first second there
	stepGrowth     = 2.5   // of the steps after it
	unknownGrowth  = 4.0   // each second, of a service that was never seen healthy: that of TChannel
	mostSteps      = 12    // at once: they are beyond everything then
	mostTimes      = 100.0 // the last good rate: a limit above that is none
	mostRetryAfter = 60.0
)

// A State is what the rule knows of a service. The zero value is one that is not busy.
type State struct {
	Limit   float64 // requests a second; 0: none
	Low     float64 // the limit after the last cut
	Good    float64 // requests a second that were answered well when it was last busy; 0: unknown
	Since   float64 // when it became busy
	Cut     float64 // when the limit was last cut
	Back    float64 // seconds of the way back to Good
	Step    float64 // by how many times Good the limit grows next, when it is there
	NotYet  float64 // no growth before, by the service's own word
	Healthy float64 // requests a second that were last answered without any busy answer
}

// Later returns the state on a clock that has stepped forward by some seconds; back, if they are negative.
func (s State) Later(by float64) State {
	for _, at := range []*float64{&s.Since, &s.Cut, &s.NotYet} {
		if *at > 0 {
			*at += by
		}
	}
	return s
}

// A Window is what was seen of a service in some time.
type Window struct {
	OK, Busy   float64 // answers
	Length     float64 // seconds, 1 at least
	RetryAfter float64 // the longest that was asked for, seconds; 0: none
}

// Next returns what is known after a window that ends now, which is above 0. A window of less than a second changes nothing: whoever
// counts goes on counting.
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
		s.Limit = max(s.Limit, f.MinRate) // which may have risen
	}
	return s
}

// cut lowers the limit to what was answered well, less a little. Where less came than the limit lets through, as when a process stood still,
// only the share of busy answers counts, of what was to be expected.
func (s State) cut(w Window, least, now float64) State {
	came, share := (w.OK+w.Busy)/w.Length, w.Busy/(w.OK+w.Busy)
	known, expected := s.Good, min(s.Limit, 2*max(s.Good, came))
	if s.Limit == 0 {
		known, expected = s.Healthy, s.Healthy
	}
	if s.Limit == 0 || s.Good > 0 && s.Limit >= s.Good { // it was well
		s.Since = now - w.Length
	}
	good := max(w.OK/w.Length, expected*(1-share))
	switch {
	case known > 0 && came < thin*expected:
		s.Good = known
	case good > least:
		s.Good = good
	case w.OK > 0 && s.Limit > 0 && s.Limit <= least: // not even that
		s.Good = least
	case s.Good == 0: // nothing was answered well: back to what was before
		s.Good = s.Healthy
	}
	if share > bunch {
		s.Step = firstStep * (1 + share)
	} else { // two fifths of the last step that was taken
		s.Step = max(firstStep, s.Step/(stepGrowth*stepGrowth))
	}
	s.Limit = max(least, good*(1-min(share, mostCut)))
	s.Low, s.Cut = s.Limit, now
	s.Back = min(share+float64(backPerBusy*(now-s.Since)), mostBack) // float64 keeps a compiler from fusing the two
	if w.RetryAfter > 0 {
		s.NotYet = max(s.NotYet, now+min(w.RetryAfter, mostRetryAfter))
		if w.OK == 0 {
			s.Limit, s.Low = least, least
		}
	}
	return s
}

// grow raises the limit after a window without busy answers: back to what was answered well, and step by step beyond it.
func (s State) grow(w Window, least, now float64) State {
	if w.OK > 0 {
		s.Healthy = w.OK / w.Length
	}
	if s.Limit == 0 || now < s.NotYet || w.OK == 0 && s.Limit <= least { // nobody knows yet
		return s
	}
	steps := min(int(w.Length), mostSteps)
	switch {
	case s.Good == 0: // nobody knows what it can do
		for range steps {
			s.Limit *= unknownGrowth
		}
	case s.Limit < s.Good:
		if s.Limit <= s.Low { // the first good answers: the way back begins with them
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
	if s.Limit >= Max || s.Good > 0 && s.Limit > mostTimes*max(s.Good, s.Low) { // nothing holds it
		return State{Healthy: s.Healthy}
	}
	return s
}
