package cluster

import (
	"math"
	"slices"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A part is what one replica has of a subscription.
type part struct {
	topic    *topic
	group    *group
	replica  *replica
	last     subscription
	at       int64       // when that was, by the replica's clock, Unix milliseconds
	passed   float64     // seconds since the record before; 0 without one
	rates    []limitRate // of last.Limits
	shown    int         // the limit that a view shows, of last.Limits; -1 without one
	requests float64     // to the permit store for all limits, a second, smoothed; NaN = unknown
	waited   bool        // calls had to wait since the record before
	waits    waits       // as of that

	// absent is since when records do not have the subscription; 0 = they do. It is idle then, or
	// left out, if the record has no room for it.
	absent  int64
	leftOut bool
}

type partID struct{ topic, subscription, owner string }

// A limitRate says how many permits of a limit are used a second, smoothed and between the last two
// records. NaN = unknown.
type limitRate struct{ smoothed, measured float64 }

var unknownRate = limitRate{math.NaN(), math.NaN()}

// newPart returns the part that a record of a time has first.
func newPart(t *topic, g *group, r *replica, s subscription, at int64) *part {
	return &part{
		topic: t, group: g, replica: r, last: s, at: at, shown: shownOf(s.Limits), requests: math.NaN(), waits: s.Waits,
		rates: slices.Repeat([]limitRate{unknownRate}, len(s.Limits)),
	}
}

// live reports whether the replica still publishes.
func (p *part) live() bool { return p.replica.gone.IsZero() }

// counted returns the rate at which permits of the limit with a key are used, and whether messages
// are charged to that limit. A subscription that has caught up is charged to some of its limits
// only, or to none. How much of a limit a replica uses that has others is unknown.
func (p *part) counted(key string) (rate limitRate, ok bool) {
	if !p.live() || p.last.Exempt {
		return unknownRate, false
	}
	if i := indexOf(p.last.Limits, key); i >= 0 {
		return p.rates[i], !p.last.Limits[i].Bypassed
	}
	return unknownRate, slices.ContainsFunc(p.last.Limits, func(l limit) bool { return !l.Bypassed })
}

// update takes over the next record that has the subscription, and returns the waits that have
// ended since.
func (p *part) update(s subscription, at int64) dispatch.Histogram {
	passed := float64(at-p.at) / 1000
	waits := s.WaitTimes.histogram().Since(p.last.WaitTimes.histogram())
	rates, asked := make([]limitRate, len(s.Limits)), 0.0
	for i := range s.Limits {
		l := &s.Limits[i]
		rates[i] = unknownRate
		j := indexOf(p.last.Limits, l.Key)
		if j < 0 || passed <= 0 {
			asked = math.NaN()
			continue
		}
		used := l.used() - p.last.Limits[j].used()
		asked += float64(l.Allocations-p.last.Limits[j].Allocations) / passed
		if used >= 0 { // else the counts started again
			measured := float64(used) / passed
			rates[i] = limitRate{smooth(p.rates[j].smoothed, measured, passed), measured}
		}
	}
	if asked < 0 {
		asked = math.NaN()
	}
	p.requests = smooth(p.requests, asked, passed)
	p.waits = p.last.Waits
	p.last, p.at, p.passed, p.rates, p.shown, p.waited = s, at, passed, rates, shownOf(s.Limits), waits.Count > 0
	p.absent, p.leftOut = 0, false
	return waits
}

// miss notes that a record does not have the subscription.
func (p *part) miss(at int64, leftOut bool) {
	if p.absent == 0 {
		p.absent = at
	}
	p.leftOut, p.waited, p.requests, p.passed = leftOut, false, 0, 0
	rate := limitRate{}
	if leftOut {
		rate, p.requests = unknownRate, math.NaN()
	}
	for i := range p.rates {
		p.rates[i] = rate
	}
	l := &p.last
	p.waits = l.Waits
	l.Waiting, l.Reason, l.Backlog, l.BehindSince, l.CaughtUp, l.Exempt, l.Paused = 0, "", -1, 0, false, false, false
	for i := range l.Limits {
		l.Limits[i].Bypassed = false
	}
}

// waitedFor reports whether calls had to wait for the limit since the record before, and how many
// wait now.
func (p *part) waitedFor(l *limit) (waiting int, waited bool) {
	if p.last.Reason == l.Reason {
		waiting = p.last.Waiting
	}
	before, _ := p.waits.of(l.Reason)
	n, _ := p.last.Waits.of(l.Reason)
	return waiting, waiting > 0 || n > before
}

func indexOf(limits []limit, key string) int {
	return slices.IndexFunc(limits, func(l limit) bool { return l.Key == key })
}

// smoothed is the time, in seconds, over which a shown rate is averaged.
const smoothed = 3

// smooth averages a rate with what it was for passed seconds.
func smooth(before, now, passed float64) float64 {
	if math.IsNaN(before) || math.IsNaN(now) {
		return now
	}
	x := before + (now-before)*(1-math.Exp(-passed/smoothed))
	if now == 0 && x < 0.01 {
		return 0 // else it would never be
	}
	return x
}

// shownOf returns which limit a view shows: one of messages, if there is one, and else of bytes; of
// these the lowest, and one in shadow mode, or to which nothing is charged, only if all are. It is
// -1 without a limit.
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
	case l.Bypassed != other.Bypassed:
		return other.Bypassed
	case l.Reason.Bytes() != other.Reason.Bytes():
		return other.Reason.Bytes()
	}
	return l.now() < other.now()
}

// now is the present rate: on a ramp, it is below the limit.
func (l *limit) now() float64 {
	if l.Ramp > 0 {
		return l.Ramp
	}
	return l.Rate
}

// used returns how many permits messages have used.
func (l *limit) used() int64 { return l.Granted - l.Returned + l.Owed }
