package pool

import "slices"

// Bounds of what a record may hold: no Heartbeat or Visit writes anything else.
const (
	maxTime   = 1e11  // seconds on any clock
	maxFuture = 86400 // seconds that a time may lie ahead of the store's clock, which may step back
	maxAhead  = 3600  // seconds that a member may be ahead of the record's own clock; over MaxPoolTTL
	maxSize   = 1 << 20
	maxNumber = 1 << 53

	minSeconds, maxSeconds = 1e-9, 1e6 // of terms
)

// within reports whether lowest <= x <= highest; no NaN is.
func within[N int | int64 | float64](x, lowest, highest N) bool {
	return lowest <= x && x <= highest
}

// Sound reports whether s can be a state that Heartbeat or Leave has returned by now, on the
// store's clock. One that cannot is as good as lost: use the zero value.
func (s State) Sound(now float64) bool {
	terms := int64((max(now, 0) + maxFuture) * 1e6) // a term is a time in microseconds
	return within(s.Term, 0, terms) && within(s.Size, 0, maxSize) && within(s.Floor, 0, maxSize) &&
		within(s.Clock, 0, maxTime) && within(s.Last, -maxTime, now+maxFuture) &&
		within(s.Open, 0, s.Clock+maxAhead) &&
		!slices.ContainsFunc(s.Members, func(m Member) bool {
			return !within(m.Until, 0, s.Clock+maxAhead) || !within(m.Joined, 0, terms) ||
				!within(m.Term, 0, terms) || !within(m.Active, 0, maxSize)
		})
}

// Sound reports whether t can be the terms of a policy.
func (t Terms) Sound() bool {
	return within(t.Permits, 0, maxNumber) && within(t.Period, minSeconds, maxSeconds) &&
		within(t.Keep, 0, 1) && within(t.Ahead, 0, maxSeconds) && within(t.TTL, 0, maxSeconds)
}

// Sound reports whether d can be a division that Visit has returned by now, on the store's clock.
// One that cannot is as good as lost: use the zero value.
func (d Division) Sound(now float64) bool {
	times := []map[string]float64{d.Asked}
	for _, members := range d.Members {
		times = append(times, members)
	}
	for _, visits := range times {
		for _, at := range visits {
			if !within(at, 0, d.Clock) {
				return false
			}
		}
	}
	return within(d.Clock, 0, maxTime) && within(d.Last, -maxTime, now+maxFuture) &&
		!slices.ContainsFunc(d.Parts, func(p Part) bool {
			return !within(p.Share, 0, maxNumber) || !within(p.Used, 0, maxNumber) ||
				!within(p.Base, 0, maxNumber) || !within(p.From, 0, 1)
		})
}
