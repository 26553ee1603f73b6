package busy

import (
	"fmt"
	"math"
	"strings"
)

// A Simulation is traffic to a service that answers that it is busy for a while, second by second.
type Simulation struct {
	Requests Pattern // wanted
	Busy     Pattern // answers, of those that were let through at most
	Duration int     // seconds: busy answers come from the first to the one before it; the recovery begins with the one after it
}

// A Second of a simulation. Rates are requests a second.
type Second struct {
	Time       int     `json:"time"`
	Recovering bool    `json:"recovering,omitempty"` // no busy answers any more
	Through    float64 `json:"rps"`
	Throttled  float64 `json:"throttled"`
	Busy       float64 `json:"busy"`
	Limit      float64 `json:"limit"` // that was in force
}

// lastSecond is when a recovery is given up.
const lastSecond = 30

// Run has a rule throttle the traffic, which starts with the limit [Max]: next returns the limit of the next second. It returns all
// seconds, and when nothing was throttled any more; ok is false if that did not come within lastSecond.
func (s Simulation) Run(next func(Second) (limit float64)) (all []Second, converged int, ok bool) {
	limit, throttled := float64(Max), 0.0
	for t := 1; t < s.Duration; t++ {
		wanted := s.Requests.At(t)
		through := math.Floor(min(limit, wanted))
		throttled = wanted - through
		now := Second{Time: t, Through: through, Throttled: throttled, Busy: min(s.Busy.At(t), through), Limit: limit}
		all = append(all, now)
		limit = next(now)
	}
	t := s.Duration
	for last := max(lastSecond, s.Duration+lastSecond-published); throttled != 0; {
		t++
		wanted := s.Requests.At(t)
		through := min(limit, wanted)
		throttled = wanted - through
		now := Second{Time: t, Recovering: true, Through: through, Throttled: throttled, Limit: limit}
		all = append(all, now)
		limit = next(now)
		if t > last {
			return all, 0, false
		}
	}
	return all, t, true
}

// published is the duration of the published simulations.
const published = 10

// A Pattern is how many there are in each second.
type Pattern struct {
	Name  string // one of Patterns
	Start float64
}

// Patterns are the names of the patterns.
func Patterns() []string {
	return []string{"steady", "flappy", "linear_grow", "linear_decrease", "exponential_grow", "exponential_decrease"}
}

// At returns how many there are in the second t: steadily so many; so many in each third second, or none; 100 more or less in each; twice
// or half as many in each. Never below 0, and a billion at most.
func (p Pattern) At(t int) float64 {
	n := p.Start
	switch p.Name {
	case "flappy":
		if t%3 != 0 {
			n = 0
		}
	case "linear_grow":
		n += 100 * float64(t)
	case "linear_decrease":
		n -= 100 * float64(t)
	case "exponential_grow":
		n = math.Ldexp(n, t)
	case "exponential_decrease":
		n = math.Ldexp(n, -t)
	}
	return min(max(n, 0), 1e9)
}

// Published returns the simulation of a name: one of [Patterns]. Those of steady and flappy are published with their
// output; the linear ones, with the program. It began the exponential ones without a start: here they grow from 100 requests and 1 busy answer,
// and decrease from 5000 requests, with 3000 busy answers steadily.
func Published(name string) (Simulation, error) {
	const wanted, busy = 5000, 3000
	s := Simulation{Pattern{"steady", wanted}, Pattern{"steady", busy}, published}
	switch name {
	case "steady":
	case "flappy":
		s.Busy.Name = name
	case "linear_grow":
		s.Requests, s.Busy = Pattern{name, 100}, Pattern{name, 0}
	case "exponential_grow":
		s.Requests, s.Busy = Pattern{name, 100}, Pattern{name, 1}
	case "linear_decrease", "exponential_decrease":
		s.Requests.Name = name
	default:
		return Simulation{}, fmt.Errorf("pattern %q: is none; use %s", name, strings.Join(Patterns(), ", "))
	}
	return s, nil
}
