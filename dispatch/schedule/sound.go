package schedule

import "math"

// Bounds of what a state, a request or a reply may hold. Allocate writes no value outside of
// them, and no arithmetic on one can be trusted.
const (
	maxInt     = 1 << 53
	maxCounter = 1 << 52 // of what a request may raise
	maxTime    = 1e11    // seconds on any clock
	maxFuture  = 86400   // seconds that a time may lie ahead of the clock, which may step back
	minRate    = 1e-6    // permits a second
	maxRate    = 1 << 53
	maxSeconds = 1e6  // of a ramp
	minSeconds = 1e-9 // that a ramp takes
	maxCount   = 1e15 // of weights, shares and answers
	maxPermits = 1e6  // allocated ahead, beyond those of maxLine
	maxLine    = 60.0 // seconds

	// year bounds how far ahead slots are, in seconds: over 30 periods of the lowest rate.
	year = 365 * 86400.0
)

// Bounds of a Revision. A state with a later one would be taken for damaged.
const (
	MaxEpoch  = 1e13
	MaxNumber = 1e14
)

// Valid reports whether a revision is within bounds.
func (r Revision) Valid() bool {
	return within(float64(r.Epoch), 0, MaxEpoch) && within(float64(r.Number), 0, MaxNumber)
}

// longest is how far ahead of the clock a tail may be, in seconds.
func longest(rate float64) float64 { return min(year, 2*(maxLine+maxPermits/rate)) }

// within reports whether lowest <= x <= highest; no NaN is.
func within(x, lowest, highest float64) bool { return lowest <= x && x <= highest }

// whole reports whether n is within the whole numbers that a float64 holds exactly.
func whole(n, lowest int64) bool { return lowest <= n && n <= maxInt }

// sound reports whether a state can be one that Allocate has returned, at now and given policies of
// that revision. One that cannot is as good as lost.
func (s *State) sound(now float64, given Revision) bool {
	latest := now + maxFuture
	at := func(times ...float64) bool {
		for _, t := range times {
			if !within(t, -maxTime, latest) {
				return false
			}
		}
		return true
	}
	return whole(s.Inc, 1) && whole(s.Seq, 0) && whole(s.Epoch, firstEpoch) &&
		max(s.Seq, s.Epoch) <= maxCounter &&
		s.Rev.Sound(now, given) &&
		at(s.Last, s.Step.At) && max(s.Checked, s.Resumed, s.Start) <= s.Last+1 &&
		min(s.Checked, s.Resumed, s.Start) >= -maxTime &&
		within(s.Rate, minRate, s.Top) && s.Ramp.Sound(s.Top) &&
		within(s.Tail, -maxTime, max(now, s.Last)+longest(s.Rate)) &&
		within(s.Quick, -maxTime, max(now, s.Last)+2*longest(s.Rate)) &&
		within(s.Shifts, -maxTime, maxTime) && within(s.Server, 0, maxInt) &&
		within(s.Step.By, -1, 1) && within(s.Step.Ahead, -1, 1) &&
		s.This.sound() && s.Prev.sound() &&
		s.Line.Sound(now) && (s.Ramp.Over > 0 || s.Line == Line{}) &&
		s.Outcomes.Service.Sound(latest) && s.Outcomes.Window.sound() && at(s.Outcomes.Since) &&
		s.rivalSound(now, given)
}

// Sound reports whether a stored revision can be one, at now on the store's clock. If that tells
// the time of day, the epoch, which is a time, is at most maxFuture ahead of it. A later one is
// sound if the request's policies, those given, are of that epoch or a later one: the machine that
// adopted them has a clock further ahead.
func (r Revision) Sound(now float64, given Revision) bool {
	return r.Valid() &&
		(now < 1e9 || r.Epoch <= given.Epoch || float64(r.Epoch) <= 1000*(now+maxFuture))
}

// sound: sums may be a little below 0, since they are made by adding and subtracting.
func (t *Sums) sound() bool {
	return within(t.Weight, -1, maxCount) && within(t.Reserved, -1, maxRate) &&
		within(t.Need, 0, maxNeed)
}

// Sound reports whether a line can be one that [Ramp.At] has returned by now, on the store's clock.
func (l Line) Sound(now float64) bool {
	latest := now + maxFuture
	none := l.Rate == 0 && l.Epoch == 0
	return (none || within(l.Rate, minRate, maxRate)) && within(float64(l.Epoch), 0, latest) &&
		within(l.Seen, -maxTime, latest)
}

// Sound reports whether a policy can have the ramp, and the rate that it leads to.
func (r Ramp) Sound(rate float64) bool {
	return within(rate, minRate, maxRate) && within(r.From, 0, maxRate) &&
		within(r.Over, 0, maxSeconds) && within(r.TTL, 0, maxSeconds) &&
		(r.Over == 0 || r.From >= minRate && r.Over >= minSeconds)
}

func (a *Answers) sound() bool {
	return within(a.OK, 0, maxCount) && within(a.Busy, 0, maxCount) &&
		within(a.RetryAfter, 0, maxSeconds)
}

func (s *Sub) sound() bool { return whole(s.Epoch, 0) && s.This.sound() && s.Prev.sound() }

func (p *Part) sound() bool {
	return within(p.K, 0, maxCount) && within(p.Weight, 0, maxCount) &&
		within(p.Reserved, 0, maxRate)
}

// Sound reports whether a reply can be one to r. A replica treats another one as none.
func (p Reply) Sound(r Request) bool {
	if !within(p.Now, -maxTime, maxTime) || p.Late {
		return p.Late && within(p.Now, -maxTime, maxTime)
	}
	n := 0.0
	if r.Want > 0 {
		n = max(1, math.Floor(r.Want+0.5))
	}
	ahead, c := longest(max(minRate, min(p.Rate, r.Rate))), p.Carry
	return within(p.N, 0, n) && p.N == math.Floor(p.N) &&
		within(p.Start, -maxTime, ahead) && within(p.Lead, -maxTime, ahead) &&
		within(p.Share, 0, maxRate) && within(p.Rate, minRate, maxRate) &&
		within(p.Gap, 0, 1/minRate) &&
		within(p.Ahead, -1, 1) && within(p.Since, 0, maxTime) && len(p.Rival) <= MaxSource &&
		whole(c.Inc, 1) && whole(c.Seq, 0) && whole(c.Epoch, 0) && within(c.Shifts, -maxTime, maxTime) &&
		within(c.Eff, 0, 1) && within(c.Fraction, 0, maxCount) &&
		within(c.Round, 0, 2*max(maxNeed, r.Round)) && within(c.Refused, 0, maxInt)
}
