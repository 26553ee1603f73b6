package quota

import "math"

const (
	folding = 10.0 // seconds over which costs and rates are smoothed

	// enough is the part of the last pass that both sums must hold: four seconds of steady load.
	// Then a part of a second on one side and a whole one on the other make little difference.
	enough = 0.3

	maxLag    = 5.0 // seconds after requests in which their costs are expected
	quiet     = 3.0 // seconds without requests and costs, after which all costs have been reported
	maxMissed = 5   // passes with costs and no change; the next one changes the average in any case
	maxAlone  = 10  // passes with requests and no costs; then the costs are not late but uncounted
)

// An average is the cost of a request of one id: cost per second divided by requests per second,
// both over the last seconds. Replicas count a request when it starts and backends count its cost
// when it arises, and their reporting seconds differ. So the average stays as it is while the last
// pass makes up much of both sums. The first average is a guess until the sums hold enough; there
// is no guess if the first requests and the first costs were reported in different passes.
type average struct {
	value   float64 // bytes; 0: unknown
	guessed bool
	apart   bool // the first requests and the first costs came in different passes
	missed  int  // passes with costs since the value last changed
	alone   int  // passes with requests since the last costs

	at          float64 // time of the last pass
	lastRequest float64 // time of the last pass with requests
	lastCost    float64 // time of the last pass with costs
	rate, costs Smoother
	since       float64 // when both sums were last 0
}

func newAverage() average {
	never := math.Inf(-1)
	return average{
		lastRequest: never, lastCost: never,
		rate: Smoother{Folding: folding}, costs: Smoother{Folding: folding},
	}
}

// measure adds the requests and costs per second that a pass has found. It reports whether the
// average was unknown or a bad guess before.
func (a *average) measure(started, cost, now float64) (replaced bool) {
	last := a.at
	a.at = now
	if last == 0 {
		last = now - 1
		a.rate.Reset(0, last)
		a.costs.Reset(0, last)
	} else if now-last > 2 { // nothing is known of the time between the passes
		last = now - 1
		a.rate.at, a.costs.at = last, last
	}
	a.dropUnmatched(started, cost, last)
	if a.rate.Total(last) == 0 && a.costs.Total(last) == 0 {
		a.since = last
	}
	a.rate.Set(started, last)
	a.costs.Set(cost, last)
	a.apart = a.apart || a.value == 0 && (started > 0) != (cost > 0)
	if started > 0 {
		a.lastRequest = now
	}
	if cost > 0 {
		a.lastCost = now
	}
	rate, costs := a.rate.Total(now), a.costs.Total(now)
	// Requests without costs say nothing, nor do costs without requests.
	timely := cost > 0 && now-a.lastRequest < maxLag || now-max(a.lastRequest, a.lastCost) >= quiet
	if !timely || rate == 0 || costs == 0 {
		return false
	}
	known := rate >= enough*started && costs >= enough*cost || a.missed >= maxMissed
	if !known && !a.guessed && (a.apart || a.value > 0) {
		a.missed++
		return false
	}
	value := max(Page, costs/rate)
	replaced = a.value == 0 || a.guessed && (value > a.value*maxGrowth || value < a.value/maxGrowth)
	a.value, a.guessed, a.missed = value, !known, 0
	return replaced
}

// dropUnmatched forgets requests that came long before the first costs, and costs that came before
// the first request.
func (a *average) dropUnmatched(started, cost, last float64) {
	if cost > 0 && a.alone >= maxAlone {
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

// lately returns the requests per second over the seconds that are known.
func (a *average) lately() float64 {
	return a.rate.Total(a.at) / -math.Expm1(-max(1, a.at-a.since)/folding)
}
