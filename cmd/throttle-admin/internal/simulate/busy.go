package simulate

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/policy"
)

// A busyRun is a simulation under one rule.
type busyRun struct {
	RecoverRate  float64       `json:"recoverRate,omitempty"`
	RecoverValue float64       `json:"recoverValue,omitempty"`
	Requests     pattern       `json:"requests"`
	Busy         pattern       `json:"busy"`
	Duration     int           `json:"duration"` // seconds
	Seconds      []busy.Second `json:"seconds"`

	// Converged is the first second without throttling, 0 if there is none, and Speed the seconds
	// from Duration to it.
	Converged int  `json:"converged,omitempty"`
	Speed     *int `json:"speed,omitempty"`
}

type pattern struct {
	Name  string  `json:"pattern"`
	Start float64 `json:"start"`
}

func newSimulateBusyCommand(a *cli.App) *cobra.Command {
	var (
		recoverRate, recoverValue, requests, answers float64
		duration                                     int
		plot                                         string
	)
	cmd := &cobra.Command{
		Use:   "busy [PATTERN]",
		Short: "Run the simulations published with TChannel's throttling on busy answers",
		Long: `Run the simulations published with TChannel's throttling on busy answers: a service
answers that it is busy until --duration, and then no more. In the first run, the limit grows each
second by --recover-rate times itself (3 makes it four times as large, as in the published tables;
the text says three times). In the second run, it grows by --recover-value requests a second. A
value of 0 skips a run. Each of at most 20 busy answers a second halves the limit.

PATTERN describes the requests and the busy answers; --rps and --busy are their first values:

  steady                (default) 5000 requests a second, 3000 busy answers
  flappy                5000 requests; 3000 busy answers in each third second, none in the others
  linear_grow           100 requests and no busy answer, 100 more of both in each second
  linear_decrease       5000 requests, 100 fewer in each second; 3000 busy answers
  exponential_grow      100 requests and a busy answer, twice as many of both in each second
  exponential_decrease  5000 requests, half as many in each second; 3000 busy answers

--plot draws the first run beside the rule "fraction" on the same traffic.`,
		Example: `  throttle-admin simulate busy steady
  throttle-admin simulate busy flappy --recover-rate 1 --recover-value 0
  throttle-admin simulate busy steady --rps 200 --busy 2 -o json
  throttle-admin simulate busy flappy --plot flappy.svg`,
		Args: func(cmd *cobra.Command, got []string) error {
			if len(got) == 0 {
				return nil
			}
			return cli.Args("PATTERN")(cmd, got)
		},
		ValidArgs: busy.Patterns(),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Float64Var(&recoverRate, "recover-rate", 3,
		"growth of the limit each second, as a multiple of itself; 0 skips the run")
	flags.Float64Var(&recoverValue, "recover-value", 200,
		"growth of the limit each second, in requests a second; 0 skips the run")
	flags.IntVar(&duration, "duration", 10, "second in which the busy answers end, 1..1000")
	flags.Float64Var(&requests, "rps", 0, "requests in the first second (default the pattern's)")
	flags.Float64Var(&answers, "busy", 0,
		"busy answers in the first second (default the pattern's)")
	flags.StringVar(&plot, "plot", "", "SVG file to draw the result into")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := "steady"
		if len(args) == 1 {
			name = args[0]
		}
		s, unknown := busy.Published(name)
		s.Duration = duration
		if flags.Changed("rps") {
			s.Requests.Start = requests
		}
		if flags.Changed("busy") {
			s.Busy.Start = answers
		}
		if err := errors.Join(unknown, checkSimulation(s, recoverRate, recoverValue)); err != nil {
			return cli.Usage(err)
		}
		var runs []busyRun
		rules := []busy.TChannel{{RecoverRate: recoverRate}, {RecoverValue: recoverValue}}
		for _, rule := range rules {
			if rule != (busy.TChannel{}) {
				runs = append(runs, simulate(s, rule))
			}
		}
		if err := writePlot(plot, func() []byte { return plotBusy(s, runs[0]) }); err != nil {
			return err
		}
		return a.Print(runs, func(w *strings.Builder) {
			for _, r := range runs {
				r.write(w)
			}
		})
	}
	return cmd
}

// checkSimulation validates a simulation.
func checkSimulation(s busy.Simulation, recoverRate, recoverValue float64) error {
	var errs []error
	const limit = 1e9
	for _, f := range []struct {
		flag  string
		value float64
	}{
		{"--recover-rate", recoverRate}, {"--recover-value", recoverValue},
		{"--rps", s.Requests.Start}, {"--busy", s.Busy.Start},
	} {
		if !(f.value >= 0 && f.value <= limit) { // also true for NaN
			errs = append(errs, fmt.Errorf("%s %v: is outside 0..%.0f", f.flag, f.value, limit))
		}
	}
	if s.Duration < 1 || s.Duration > 1000 {
		errs = append(errs, fmt.Errorf("--duration %d: is outside 1..1000", s.Duration))
	}
	if recoverRate == 0 && recoverValue == 0 {
		errs = append(errs, errors.New("--recover-rate, --recover-value: want one above 0"))
	}
	return errors.Join(errs...)
}

// simulate runs a simulation with TChannel's rule.
func simulate(s busy.Simulation, rule busy.TChannel) busyRun {
	r := busyRun{
		RecoverRate: rule.RecoverRate, RecoverValue: rule.RecoverValue, Duration: s.Duration,
		Requests: pattern(s.Requests), Busy: pattern(s.Busy),
	}
	var ok bool
	r.Seconds, r.Converged, ok = s.Run(func(now busy.Second) float64 {
		return rule.Next(now.Limit, int(now.Busy))
	})
	if ok {
		r.Speed = new(r.Converged - s.Duration)
	}
	return r
}

// write writes a run in the format of TChannel's program: numbers are truncated.
func (r busyRun) write(w *strings.Builder) {
	if r.RecoverRate > 0 {
		fmt.Fprintf(w, "started with recover_rate: %.0f\n", math.Trunc(r.RecoverRate))
	} else {
		fmt.Fprintf(w, "started with recover_value: %.0f\n", math.Trunc(r.RecoverValue))
	}
	fmt.Fprintf(w, "start rps=%.0f (%s) throttled=0 busy=%.0f (%s) limit=%d\n",
		math.Trunc(r.Requests.Start), r.Requests.Name,
		math.Trunc(r.Busy.Start), r.Busy.Name, busy.Max)
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
			sign, s.Time, math.Trunc(s.Through), math.Trunc(s.Throttled), math.Trunc(s.Busy),
			math.Trunc(s.Limit))
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

// plotBusy draws a run beside the rule fraction on the same traffic.
func plotBusy(s busy.Simulation, tchannel busyRun) []byte {
	var state busy.State
	defaults := policy.Policy{}.WithDefaults().Busy
	usual := busy.Fraction{Tolerance: *defaults.Tolerance, MinRate: *defaults.MinRate}
	fraction, _, _ := s.Run(func(now busy.Second) float64 {
		window := busy.Window{OK: now.Through - now.Busy, Busy: now.Busy, Length: 1}
		state = usual.Next(state, window, float64(now.Time))
		if state.Limit == 0 {
			return busy.Max
		}
		return state.Limit
	})
	rule := fmt.Sprintf("tchannel, recover_rate %v", tchannel.RecoverRate)
	if tchannel.RecoverRate == 0 {
		rule = fmt.Sprintf("tchannel, recover_value %v", tchannel.RecoverValue)
	}
	title := fmt.Sprintf("%v requests a second (%s), %v busy answers (%s)",
		s.Requests.Start, s.Requests.Name, s.Busy.Start, s.Busy.Name)
	return drawChart(title, "seconds", "requests a second",
		panelOf(rule, tchannel.Seconds), panelOf("fraction", fraction))
}

// panelOf returns the panel of one rule.
func panelOf(name string, seconds []busy.Second) panel {
	p := panel{title: name, lines: []line{
		{name: "requested"}, {name: "admitted"}, {name: "answered busy"},
	}}
	for _, s := range seconds {
		for i, y := range []float64{s.Through + s.Throttled, s.Through, s.Busy} {
			p.lines[i].add(s.Time, y)
		}
	}
	return p
}
