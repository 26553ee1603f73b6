package quota

import "math"

const (
	folding    = 10.0 // seconds, of costs and rates
	leastKnown = 5.0  // seconds of what comes now that both are to hold, so that a second of the one beside none of the other matters little
	quiet      = 3.0  // seconds after which the costs of what was have been heard of
)

// An average is what a request of an id costs: costs by rate, of the last seconds. Requests are counted by replicas when they begin and costs by
// backends when they come, and the second of the one is not that of the other. So the average stays what it was while what comes now is most of
// what is known. The first one is a guess until more is known; there is none where requests and costs were not first heard of in the same pass.
type average struct {
	value   float64 // bytes; 0: unknown
	guessed bool
	apart   bool // the first requests and the first costs were not heard of together

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
	}
	if a.rate.Total(last) == 0 && a.costs.Total(last) == 0 {
		a.since = last
	}
	if a.value == 0 && started > 0 && a.rate.Total(last) == 0 {
		a.costs.Reset(0, last) // of requests that nobody counted
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
	enough := -0.8 * math.Expm1(-leastKnown/folding) // the sums of what is steady are a little less than that of what grows
	known := rate >= enough*started && costs >= enough*cost
	guess := a.guessed || a.value == 0 && !a.apart
	timely := cost > 0 && now-a.asked < leastKnown || now-max(a.asked, a.spent) >= quiet // the one without the other tells nothing
	if timely && rate > 0 && costs > 0 && (known || guess) {
		value := max(Page, costs/rate)
		anew = a.value == 0 || a.guessed && (value > a.value*mostGrowth || value < a.value/mostGrowth)
		a.value, a.guessed = value, !known
	}
	return anew
}

// lately is the rate of requests a second, of the seconds that are known.
func (a *average) lately() float64 {
	return a.rate.Total(a.at) / -math.Expm1(-max(1, a.at-a.since)/folding)
}
