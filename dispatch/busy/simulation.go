package busy

import (
	"fmt"
	"math"
	"strings"
)

// A Simulation is traffic to a service that answers that it is busy for a while, in steps of one
// second.
type Simulation struct {
	Requests Pattern // that callers want to send, in each second
	Busy     Pattern // busy answers in each second; at most the requests sent
	Duration int     // seconds; busy answers in 1..Duration-1, recovery from Duration+1
}

// A Second is one step of a simulation. Rates are requests a second.
type Second struct {
	Time       int     `json:"time"`
	Recovering bool    `json:"recovering,omitempty"` // the service is no longer busy
	Through    float64 `json:"rps"`
	Throttled  float64 `json:"throttled"`
	Busy       float64 `json:"busy"`
	Limit      float64 `json:"limit"` // in force in this second
}

// lastSecond is when a published simulation gives up waiting for the recovery.
const lastSecond = 30

// Run throttles the traffic by a rule: next returns the limit of the next second. The first limit
// is [Max]. Run returns all seconds and the first one in which nothing was throttled; ok is false
// if there was none up to lastSecond.
func (s Simulation) Run(next func(Second) (limit float64)) (all []Second, converged int, ok bool) {
	limit, throttled := float64(Max), 0.0
	for t := 1; t < s.Duration; t++ {
		wanted := s.Requests.at(t)
		through := math.Floor(min(limit, wanted))
		throttled = wanted - through
		now := Second{Time: t, Through: through, Throttled: throttled, Limit: limit}
		now.Busy = min(s.Busy.at(t), through)
		all = append(all, now)
		limit = next(now)
	}
	t := s.Duration
	for last := max(lastSecond, s.Duration+lastSecond-published); throttled != 0; {
		t++
		wanted := s.Requests.at(t)
		through := min(limit, wanted)
		throttled = wanted - through
		now := Second{
			Time: t, Recovering: true, Through: through, Throttled: throttled, Limit: limit,
		}
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

// A Pattern is a number of requests or answers in each second.
type Pattern struct {
	Name  string // one of Patterns
	Start float64
}

// Patterns returns the names of the patterns.
func Patterns() []string {
	return []string{
		"steady", "flappy",
		"linear_grow", "linear_decrease", "exponential_grow", "exponential_decrease",
	}
}

// at returns the number in second t, from 0 to a billion: Start in every second (steady), Start in
// every third second and 0 otherwise (flappy), 100 more or fewer in each second (linear), or twice
// or half as many in each second (exponential).
func (p Pattern) at(t int) float64 {
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

// Published returns a simulation by its name, one of [Patterns]. The output of steady and flappy is
// published; the linear ones are in the published program. The exponential ones have no start
// values there: here, the first grows from 100 requests and 1 busy answer, and the second falls
// from 5000 requests with a steady 3000 busy answers.
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
		known := strings.Join(Patterns(), ", ")
		return Simulation{}, fmt.Errorf("pattern %q: is unknown: use %s", name, known)
	}
	return s, nil
}
