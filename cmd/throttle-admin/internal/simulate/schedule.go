package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	virtual "github.com/dispatchthrottle/throttle/dispatch/simulate"
	"github.com/dispatchthrottle/throttle/policy"
)

// A scheduleScenario is the input of `simulate schedule`.
type scheduleScenario struct {
	Seconds   int
	Seed      uint64
	Policy    map[string]any
	Consumers []virtual.Consumers
	Changes   []struct {
		At     int
		Policy map[string]any
	}
}

func newSimulateScheduleCommand(a *cli.App) *cobra.Command {
	var plot string
	cmd := &cobra.Command{
		Use:   "schedule FILE",
		Short: "Simulate the sharing of a limit",
		Long: `Simulate the sharing of a limit (sharing.mode: fair) by synthetic consumers, in virtual
time. Replicas and the permit store run as in production; messages and call times are synthetic.
FILE is YAML:

  seconds: 20
  seed: 1
  policy: {messageRate: 1000}                 # also burst, round and ramps
  consumers:                                  # without a rate: an unlimited backlog
    - {subscription: billing, replicas: 4, weight: 2}
    - {subscription: audit, rate: 50, reserved: 30, from: 5, until: 15}
  changes:
    - {at: 10, policy: {messageRate: 500}}    # replaces the policy above`,
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
			draw := func() []byte { return plotSchedule(name, seconds) }
			if err := writePlot(plot, draw); err != nil {
				return err
			}
			return a.Print(seconds, func(w *strings.Builder) { writeScheduleSeconds(w, seconds) })
		},
	}
	cmd.Flags().StringVar(&plot, "plot", "", "SVG file to draw the result into")
	return cmd
}

// maxScheduleSeconds bounds a simulation: one second of one replica takes 500 steps.
const maxScheduleSeconds = 3600

// run validates a scenario and runs it.
func (s *scheduleScenario) run(
	ctx context.Context,
) (seconds []virtual.Second, err error) {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.Seconds < 1 || s.Seconds > maxScheduleSeconds {
		fault("seconds %d: is outside 1..%d", s.Seconds, maxScheduleSeconds)
	}
	read := func(what string, fields map[string]any) policy.Policy {
		p, err := policyOf(fields)
		if err != nil {
			fault("%s: %w", what, err)
		}
		return p
	}
	simulation := virtual.Schedule{
		Policy: read("policy", s.Policy), Consumers: s.Consumers, Seed: s.Seed,
	}
	errs = append(errs, simulation.Validate())
	changes := map[int]policy.Policy{}
	for i, c := range s.Changes {
		what := fmt.Sprintf("changes[%d].policy", i)
		other := virtual.Schedule{Policy: read(what, c.Policy), Consumers: s.Consumers}
		if err := other.Validate(); err != nil && simulation.Validate() == nil {
			fault("changes[%d]: %w", i, err)
		}
		if c.At < 1 || c.At > s.Seconds {
			fault("changes[%d].at %d: is outside 1..%d", i, c.At, s.Seconds)
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

// policyOf parses the fields of a policy.
func policyOf(fields map[string]any) (policy.Policy, error) {
	stored := map[string]any{"schema": policy.Schema}
	maps.Copy(stored, fields)
	text, err := json.Marshal(stored)
	if err != nil {
		return policy.Policy{}, err
	}
	settings, err := policy.Unmarshal(policy.PolicySection, text)
	if err != nil {
		return policy.Policy{}, err
	}
	return settings.(policy.Policy), nil
}

// subscriptionsOf returns the names of a run's subscriptions, sorted.
func subscriptionsOf(seconds []virtual.Second) []string {
	return slices.Sorted(maps.Keys(seconds[0].Messages))
}

func writeScheduleSeconds(w *strings.Builder, seconds []virtual.Second) {
	names := subscriptionsOf(seconds)
	header := append([]string{"SECOND", "LIMIT", "ALL", "REQUESTS"}, names...)
	var rows [][]string
	for _, s := range seconds {
		all := int64(0)
		for _, n := range s.Messages {
			all += n
		}
		row := []string{
			fmt.Sprint(s.Time), fmt.Sprintf("%.0f", s.Limit), fmt.Sprint(all),
			fmt.Sprint(s.Requests),
		}
		for _, name := range names {
			row = append(row, fmt.Sprint(s.Messages[name]))
		}
		rows = append(rows, row)
	}
	output.Table(w, header, rows)
}

// plotSchedule draws the messages of each subscription, and those of all beside the limit.
func plotSchedule(name string, seconds []virtual.Second) []byte {
	each := panel{title: "dispatched, messages a second"}
	all := panel{title: "all together", lines: []line{{name: "limit"}, {name: "dispatched"}}}
	names := subscriptionsOf(seconds)
	for _, name := range names {
		each.lines = append(each.lines, line{name: name})
	}
	for _, s := range seconds {
		sum := int64(0)
		for i, name := range names {
			n := s.Messages[name]
			sum += n
			each.lines[i].add(s.Time, float64(n))
		}
		all.lines[0].add(s.Time, s.Limit)
		all.lines[1].add(s.Time, float64(sum))
	}
	return drawChart(name, "seconds", "", each, all)
}
