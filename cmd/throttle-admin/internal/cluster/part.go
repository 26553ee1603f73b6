package cluster

import (
	"math"
	"slices"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A part is what one replica has of a subscription.
type part struct {
	topic   *topic
	group   *group
	replica *replica
	last    subscription
	rates   []limitRate // of last.Limits
	shown   int         // the limit that a view shows, of last.Limits; -1 without one
	waited  bool        // calls had to wait since the record before
}

type partID struct{ topic, subscription, owner string }

// A limitRate says how many permits of a limit are used, and how often the permit store is asked
// for some, a second. NaN = unknown.
type limitRate struct{ smoothed, measured, requests float64 }

var unknownRate = limitRate{math.NaN(), math.NaN(), math.NaN()}

// newPart returns the part that a first record has.
func newPart(t *topic, g *group, r *replica, s subscription) *part {
	return &part{
		topic: t, group: g, replica: r,
		last: s, shown: shownOf(s.Limits), rates: slices.Repeat([]limitRate{unknownRate}, len(s.Limits)),
	}
}

// live reports whether the replica still publishes.
func (p *part) live() bool { return p.replica.gone.IsZero() }

// counted reports whether permits of the shown limit are used.
func (p *part) counted() bool { return p.live() && p.shown >= 0 && !p.last.Exempt }

// rateOf returns the rate of the limit with a key.
func (p *part) rateOf(key string) limitRate {
	if i := indexOf(p.last.Limits, key); i >= 0 {
		return p.rates[i]
	}
	return unknownRate
}

// update takes over the next record, which is passed seconds later by the replica's clock, and
// returns the waits that have ended between the two.
func (p *part) update(s subscription, passed float64) dispatch.Histogram {
	waits := s.WaitTimes.histogram().Since(p.last.WaitTimes.histogram())
	rates := make([]limitRate, len(s.Limits))
	for i, l := range s.Limits {
		rates[i] = unknownRate
		j := indexOf(p.last.Limits, l.Key)
		if j < 0 || passed <= 0 {
			continue
		}
		used := l.used() - p.last.Limits[j].used()
		asked := l.Allocations - p.last.Limits[j].Allocations
		if used >= 0 && asked >= 0 { // else the counts started again
			measured, requests := float64(used)/passed, float64(asked)/passed
			rates[i] = limitRate{smooth(p.rates[j].smoothed, measured, passed), measured, smooth(p.rates[j].requests, requests, passed)}
		}
	}
	p.last, p.rates, p.shown, p.waited = s, rates, shownOf(s.Limits), waits.Count > 0
	return waits
}

func indexOf(limits []limit, key string) int {
	return slices.IndexFunc(limits, func(l limit) bool { return l.Key == key })
}

// smoothed is the time, in seconds, over which a shown rate is averaged.
const smoothed = 3

// smooth averages a rate with what it was for passed seconds.
func smooth(before, now, passed float64) float64 {
	if math.IsNaN(before) {
		return now
	}
	x := before + (now-before)*(1-math.Exp(-passed/smoothed))
	if now == 0 && x < 0.01 {
		return 0 // else it would never be
	}
	return x
}

// shownOf returns which limit a view shows: one of messages, if there is one, and else of bytes; of
// these the lowest, and one in shadow mode only if all are. It is -1 without a limit.
func shownOf(limits []limit) (shown int) {
	for i := range limits {
		if limits[i].before(&limits[shown]) {
			shown = i
		}
	}
	return min(shown, len(limits)-1)
}

// before reports whether a view shows rather l than another limit.
func (l *limit) before(other *limit) bool {
	switch {
	case l.Shadow != other.Shadow:
		return other.Shadow
	case l.Reason.Bytes() != other.Reason.Bytes():
		return other.Reason.Bytes()
	}
	return l.Rate < other.Rate
}

// used returns how many permits messages have used.
func (l *limit) used() int64 { return l.Granted - l.Returned + l.Owed }
