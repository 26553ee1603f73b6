// Package busy is the arithmetic of slowing down for a service that answers that it is busy.
//
// Its rules are pure functions: what was seen in, the next limit out. They read no clock. Rates are requests a second, times are seconds.
package busy

import "math"

// Max is the limit of who is not throttled, requests a second: that of TChannel's simulation.
const Max = 9_999_999

// mostHalvings is how many busy answers of one second count.
const mostHalvings = 20

// TChannel is the rule of TChannel's "Throttling on Busy Responses": each busy answer of a second halves the limit, and each second it
// grows. It goes by counts: with the published growth two busy answers a second cancel it out, three halve the limit, whatever the traffic.
type TChannel struct {
	RecoverRate  float64 // how many times itself the limit grows by each second; the published 3 is to four times
	RecoverValue float64 // requests a second that it grows by each second; 0: RecoverRate counts
	MinRate      float64 // requests a second that are always let through; 0, as published, may mean silence for 7 s
}

// Next returns the limit of the next second, from that of this one and the busy answers in it. The growth comes before the halving,
// and both are of the limit, not of what was sent; fractions are kept. It is at most [Max].
func (r TChannel) Next(limit float64, busy int) float64 {
	if r.RecoverValue > 0 {
		limit += r.RecoverValue
	} else {
		limit += limit * r.RecoverRate
	}
	limit = math.Ldexp(limit, -min(max(busy, 0), mostHalvings))
	return min(max(limit, r.MinRate), Max)
}
