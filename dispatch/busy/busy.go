// Package busy computes limits that slow down for a service that answers that it is busy.
//
// Its rules are pure functions: they take what was seen and return the next limit. They read no
// clock. Rates are requests a second, times are seconds.
package busy

import "math"

// Max is the limit of a service that is not throttled, in requests a second. It is the initial
// limit of TChannel's simulation.
const Max = 9_999_999

// maxHalvings is the most busy answers of one second that count.
const maxHalvings = 20

// TChannel is the rule of TChannel's "Throttling on Busy Responses": each busy answer of a second
// halves the limit, and the limit grows every second. Only the number of busy answers counts,
// whatever the traffic: with the published growth, two of them a second cancel the growth and
// three halve the limit.
type TChannel struct {
	RecoverRate  float64 // growth per second, as a multiple of the limit; published: 3
	RecoverValue float64 // growth per second, in requests a second; 0: RecoverRate applies
	MinRate      float64 // lowest limit, requests a second; published: 0, which can block for 7 s
}

// Next returns the limit of the next second, given the limit of this second and its busy answers.
// The limit first grows and is then halved; the rate that was sent does not matter. Fractions are
// kept. The result is at most [Max].
func (r TChannel) Next(limit float64, busy int) float64 {
	if r.RecoverValue > 0 {
		limit += r.RecoverValue
	} else {
		limit += limit * r.RecoverRate
	}
	limit = math.Ldexp(limit, -min(max(busy, 0), maxHalvings))
	return min(max(limit, r.MinRate), Max)
}
