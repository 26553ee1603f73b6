package simulate

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/policy"
)

// checkSimulation returns all that is wrong with a simulation.
func checkSimulation(s busy.Simulation, recoverRate, recoverValue float64) error {
	var errs []error
	const most = 1e9
	for _, f := range []struct {
		flag  string
		value float64
	}{{"--recover-rate", recoverRate}, {"--recover-value", recoverValue}, {"--rps", s.Requests.Start}, {"--busy", s.Busy.Start}} {
		if !(f.value >= 0 && f.value <= most) { // NaN is neither
			errs = append(errs, fmt.Errorf("%s %v: is outside 0..%.0f", f.flag, f.value, most))
		}
	}
	if s.Duration < 1 || s.Duration > 1000 {
		errs = append(errs, fmt.Errorf("--duration %d: is outside 1..1000", s.Duration))
	}
	if recoverRate == 0 && recoverValue == 0 {
		errs = append(errs, errors.New("--recover-rate, --recover-value: both are 0, so that nothing recovers: set one"))
	}
	return errors.Join(errs...)
}

// simulate runs a simulation under TChannel's rule.
func simulate(s busy.Simulation, rule busy.TChannel) busyRun {
	r := busyRun{
		RecoverRate: rule.RecoverRate, RecoverValue: rule.RecoverValue, Duration: s.Duration,
		Requests: pattern(s.Requests), Busy: pattern(s.Busy),
	}
	var ok bool
	r.Seconds, r.Converged, ok = s.Run(func(now busy.Second) float64 { return rule.Next(now.Limit, int(now.Busy)) })
	if ok {
		r.Speed = new(r.Converged - s.Duration)
	}
	return r
}

// write prints a run as TChannel's program did: numbers without their fractions.
func (r busyRun) write(w *strings.Builder) {
	if r.RecoverRate > 0 {
		fmt.Fprintf(w, "started with recover_rate: %.0f\n", math.Trunc(r.RecoverRate))
	} else {
		fmt.Fprintf(w, "started with recover_value: %.0f\n", math.Trunc(r.RecoverValue))
	}
	fmt.Fprintf(w, "start rps=%.0f (%s) throttled=0 busy=%.0f (%s) limit=%d\n",
		math.Trunc(r.Requests.Start), r.Requests.Name, math.Trunc(r.Busy.Start), r.Busy.Name, busy.Max)
	recovering := false
	for _, s := range r.Seconds {
		sign := "---"
		if s.Recovering {
			sign = "+++"
		}
		if s.Recovering && !recovering {
			recovering = true
			fmt.Fprintln(w, "    ++++ recovering")
		}
		fmt.Fprintf(w, "    %s time=%d rps=%.0f throttled=%.0f busy=%.0f limit=%.0f\n",
			sign, s.Time, math.Trunc(s.Through), math.Trunc(s.Throttled), math.Trunc(s.Busy), math.Trunc(s.Limit))
	}
	if !recovering {
		fmt.Fprintln(w, "    ++++ recovering")
	}
	if r.Speed == nil {
		fmt.Fprintln(w, "    failed to converge")
	} else {
		fmt.Fprintf(w, "    converged at time=%d, speed=%d\n", r.Converged, *r.Speed)
	}
}

// plotBusy draws a run beside one of the rule Fraction on the same traffic.
func plotBusy(s busy.Simulation, tchannel busyRun) []byte {
	var state busy.State
	usual := busy.Fraction{Tolerance: policy.DefaultBusyTolerance, MinRate: policy.DefaultBusyMinRate}
	fraction, _, _ := s.Run(func(now busy.Second) float64 {
		state = usual.Next(state, busy.Window{OK: now.Through - now.Busy, Busy: now.Busy, Length: 1}, float64(now.Time))
		if state.Limit == 0 {
			return busy.Max
		}
		return state.Limit
	})
	rule := fmt.Sprintf("tchannel, recover_rate %v", tchannel.RecoverRate)
	if tchannel.RecoverRate == 0 {
		rule = fmt.Sprintf("tchannel, recover_value %v", tchannel.RecoverValue)
	}
	title := fmt.Sprintf("%v requests a second (%s), %v busy answers (%s)", s.Requests.Start, s.Requests.Name, s.Busy.Start, s.Busy.Name)
	return drawChart(title, "seconds", "requests a second", panelOf(rule, tchannel.Seconds), panelOf("fraction", fraction))
}

// panelOf has the lines of one rule.
func panelOf(name string, seconds []busy.Second) panel {
	p := panel{title: name, lines: []line{{name: "wanted"}, {name: "let through"}, {name: "answered busy"}}}
	for _, s := range seconds {
		for i, y := range []float64{s.Through + s.Throttled, s.Through, s.Busy} {
			p.lines[i].points = append(p.lines[i].points, point{float64(s.Time), y})
		}
	}
	return p
}
