package sharing

import "math"

// outage reports whether the permit store is unavailable: a single lost request or reply is no
// outage.
func (r *requests) outage() bool { return r.failures > 1 }

// failed notes that a request failed, and when to send the next one. Split mode, whose heartbeats
// are rarer, has a delay of its own.
func (s *Share) failed(now float64) {
	if s.failures++; s.failures == 1 {
		s.failedAt, s.cutAt = now, s.sent
	}
	s.unavailable.Store(s.outage())
	jitter := s.env.Rand.Float64()
	s.retryAt = now + s.Limit.Round*(0.25+jitter/2)
	if s.failures > 3 { // not all replicas may come back in the same moment
		s.retryAt = now + s.Limit.Round*(0.5+1.5*jitter)
	}
}

// askAgain drops the delay that the next request was given. Modes drop theirs as they see the new
// revision.
func (s *Share) askAgain() {
	if s.failures == 0 {
		s.retryAt = 0
	}
}

// crowded returns a delay before a record is to be replaced again, at random: half of d to one and
// a half. Each time in succession that others were faster, it doubles, up to max, so that many
// replicas that start at once get their turns.
func (s *Share) crowded(d, max float64) float64 {
	return min(d*math.Pow(2, float64(s.conflicts)), max) * (0.5 + s.env.Rand.Float64())
}
