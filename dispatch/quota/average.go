package quota

import "math"

const (
	folding    = 10.0 // seconds, of costs and rates
	enough     = 0.3  // part of what comes now that both sums are to hold: four steady seconds, so that a part of one beside a whole one matters little
	mostLag    = 5.0  // seconds after requests in which their costs are looked for
	quiet      = 3.0  // seconds without either, after which the costs of what was have been heard of
	mostMissed = 5    // passes with costs that change nothing, after which the next does: what comes every few seconds never lets sums hold enough
	longAlone  = 10   // passes with requests and without costs, after which it is not lag: nobody counted what they cost
)

// An average is what a request of an id costs: costs by rate, of the last seconds. Requests are counted by replicas when they begin and costs by
// backends when they come, and the second of the one is not that of the other. So the average stays what it was while what comes now is much of
// what is known. The first one is a guess until more is known; there is none where requests and costs were not first heard of in the same pass.
type average struct {
	value   float64 // bytes; 0: unknown
	guessed bool
	apart   bool // the first requests and the first costs were not heard of together
	missed  int  // passes with costs since the value changed
	alone   int  // passes with requests since the last costs

	at           float64 // of the last pass
	asked, spent float64 // the last pass that had requests, and costs
	rate, costs  Smoother
	since        float64 // when there was nothing of both
}

func newAverage() average {
	never := math.Inf(-1)
	return average{asked: never, spent: never, rate: Smoother{Folding: folding}, costs: Smoother{Folding: folding}}
}

// measure takes in what a pass finds, a second, and reports whether the average before was none, or a bad guess.
func (a *average) measure(started, cost, now float64) (anew bool) {
	last := a.at
	if a.at = now; last == 0 {
		last = now - 1
		a.rate.Reset(0, last)
		a.costs.Reset(0, last)
	} else if now-last > 2 { // of what was meanwhile nothing is known
		last = now - 1
		a.rate.at, a.costs.at = last, last
	}
	a.leaveAlone(started, cost, last)
	if a.rate.Total(last) == 0 && a.costs.Total(last) == 0 {
		a.since = last
	}
	a.rate.Set(started, last)
	a.costs.Set(cost, last)
	a.apart = a.apart || a.value == 0 && (started > 0) != (cost > 0)
	if started > 0 {
		a.asked = now
	}
	if cost > 0 {
		a.spent = now
	}
	rate, costs := a.rate.Total(now), a.costs.Total(now)
	timely := cost > 0 && now-a.asked < mostLag || now-max(a.asked, a.spent) >= quiet // the one without the other tells nothing
	if !timely || rate == 0 || costs == 0 {
		return false
	}
	known := rate >= enough*started && costs >= enough*cost || a.missed >= mostMissed
	if !known && !a.guessed && (a.apart || a.value > 0) {
		a.missed++
		return false
	}
	value := max(Page, costs/rate)
	anew = a.value == 0 || a.guessed && (value > a.value*mostGrowth || value < a.value/mostGrowth)
	a.value, a.guessed, a.missed = value, !known, 0
	return anew
}

// leaveAlone forgets requests that came for long before the first costs, or costs before the first request.
func (a *average) leaveAlone(started, cost, last float64) {
	if cost > 0 && a.alone >= longAlone {
		a.rate.Reset(0, last)
	}
	if started > 0 && a.value == 0 && a.rate.Total(last) == 0 {
		a.costs.Reset(0, last)
	}
	if cost > 0 {
		a.alone = 0
	} else if started > 0 {
		a.alone++
	}
}

// lately is the rate of requests a second, of the seconds that are known.
func (a *average) lately() float64 {
	return a.rate.Total(a.at) / -math.Expm1(-max(1, a.at-a.since)/folding)
}
