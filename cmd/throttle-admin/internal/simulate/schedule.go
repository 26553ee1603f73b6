package simulate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A scheduleScenario is a file for `simulate schedule`.
type scheduleScenario struct {
	Seconds int
	Seed    uint64
	Policy  map[string]any
	Readers []dispatch.SimulatedReader
	Changes []struct {
		At     int
		Policy map[string]any
	}
}

func newSimulateScheduleCommand(a *cli.App) *cobra.Command {
	var plot string
	cmd := &cobra.Command{
		Use:   "schedule FILE",
		Short: "Run the sharing of a limit on made-up readers",
		Long: `Run the sharing of a limit (sharing: fair) on made-up readers, in virtual time: replicas decide and the store allocates
as in production; the messages, and the time that a call takes, are made up. FILE is YAML:

  seconds: 20
  seed: 1
  policy: {messageRate: 1000}                 # also burst, round, and ramps
  readers:                                    # without a rate, there is no end of messages
    - {subscription: billing, replicas: 4, weight: 2}
    - {subscription: audit, rate: 50, reserved: 30, from: 5, until: 15}
  changes:
    - {at: 10, policy: {messageRate: 500}}    # instead of the other`,
		Example: `  throttle-admin simulate schedule scenario.yaml
  throttle-admin simulate schedule scenario.yaml --plot scenario.svg -o json`,
		Args: cli.Args("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var s scheduleScenario
			name, err := readScenario(a, args[0], &s)
			if err != nil {
				return err
			}
			seconds, err := s.run(cmd.Context())
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := writePlot(plot, func() []byte { return plotSchedule(name, seconds) }); err != nil {
				return err
			}
			return a.Print(seconds, func(w *strings.Builder) { writeScheduleSeconds(w, seconds) })
		},
	}
	cmd.Flags().StringVar(&plot, "plot", "", "also draw it, into this SVG file")
	return cmd
}

// mostScheduleSeconds bounds a simulation of a schedule: a second of a replica is 500 steps.
const mostScheduleSeconds = 3600

// run checks a scenario, and runs it.
func (s *scheduleScenario) run(ctx context.Context) (seconds []dispatch.SimulatedSecond, err error) {
	var errs []error
	if s.Seconds < 1 || s.Seconds > mostScheduleSeconds {
		errs = append(errs, fmt.Errorf("seconds %d: is outside 1..%d", s.Seconds, mostScheduleSeconds))
	}
	read := func(what string, fields map[string]any) policy.Policy {
		p, err := policyOf(fields)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
		return p
	}
	simulation := dispatch.Simulation{Policy: read("policy", s.Policy), Readers: s.Readers, Seed: s.Seed}
	errs = append(errs, simulation.Validate())
	changes := map[int]policy.Policy{}
	for i, c := range s.Changes {
		what := fmt.Sprintf("changes[%d].policy", i)
		other := dispatch.Simulation{Policy: read(what, c.Policy), Readers: s.Readers}
		if err := other.Validate(); err != nil && simulation.Validate() == nil {
			errs = append(errs, fmt.Errorf("changes[%d]: %w", i, err))
		}
		if c.At < 1 || c.At > s.Seconds {
			errs = append(errs, fmt.Errorf("changes[%d].at %d: is outside 1..%d", i, c.At, s.Seconds))
		}
		changes[c.At] = other.Policy
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for t := 1; t <= s.Seconds; t++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		second := simulation.Second()
		seconds = append(seconds, second)
		if p, ok := changes[t]; ok {
			simulation.Change(p)
		}
	}
	return seconds, nil
}

// policyOf reads the fields of a policy, as people write them.
func policyOf(fields map[string]any) (p policy.Policy, err error) {
	var errs []error
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		one, err := policy.ParseField(field, fmt.Sprint(fields[field]))
		p = p.Overlay(one)
		errs = append(errs, err)
	}
	return p, errors.Join(errs...)
}

// subscriptionsOf are those of a run, by name.
func subscriptionsOf(seconds []dispatch.SimulatedSecond) []string {
	return slices.Sorted(maps.Keys(seconds[0].Messages))
}

func writeScheduleSeconds(w *strings.Builder, seconds []dispatch.SimulatedSecond) {
	names := subscriptionsOf(seconds)
	header := append([]string{"SECOND", "LIMIT", "ALL", "REQUESTS"}, names...)
	var rows [][]string
	for _, s := range seconds {
		all := int64(0)
		for _, n := range s.Messages {
			all += n
		}
		row := []string{fmt.Sprint(s.Time), fmt.Sprintf("%.0f", s.Limit), fmt.Sprint(all), fmt.Sprint(s.Requests)}
		for _, name := range names {
			row = append(row, fmt.Sprint(s.Messages[name]))
		}
		rows = append(rows, row)
	}
	output.Table(w, header, rows)
}

// plotSchedule draws what each subscription was dispatched, and all together beside the limit.
func plotSchedule(name string, seconds []dispatch.SimulatedSecond) []byte {
	each, all := panel{title: "dispatched, messages a second"}, panel{title: "all together", lines: []line{{name: "limit"}, {name: "dispatched"}}}
	names := subscriptionsOf(seconds)
	for _, name := range names {
		each.lines = append(each.lines, line{name: name})
	}
	for _, s := range seconds {
		sum := int64(0)
		for i, name := range names {
			n := s.Messages[name]
			sum += n
			each.lines[i].points = append(each.lines[i].points, point{float64(s.Time), float64(n)})
		}
		all.lines[0].points = append(all.lines[0].points, point{float64(s.Time), s.Limit})
		all.lines[1].points = append(all.lines[1].points, point{float64(s.Time), float64(sum)})
	}
	return drawChart(name, "seconds", "", each, all)
}
