// Package simulate has the commands that run rules on made-up traffic, in virtual time.
package simulate

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/google/renameio/v2/maybe"
	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/dispatch/busy"
)

// Commands returns the commands of this family.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newSimulateCommand(a)}
}

func newSimulateCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "simulate",
		Short:   "Run the rules on made-up traffic, in virtual time",
		Example: "  throttle-admin simulate busy steady",
		RunE:    cli.Subcommands,
	}
	cmd.AddCommand(newSimulateBusyCommand(a), newSimulateQuotaCommand(a), newSimulateScheduleCommand(a))
	return cmd
}

// readScenario reads a scenario's file, and returns what to call it.
func readScenario(a *cli.App, file string, scenario any) (name string, err error) {
	name, text, err := a.Read(file, cli.MaxInput)
	if err != nil {
		return name, err
	}
	if len(text) > cli.MaxInput {
		return name, fmt.Errorf("%s: is longer than %d MiB", name, cli.MaxInput>>20)
	}
	if err := yaml.UnmarshalWithOptions(text, scenario, yaml.Strict()); err != nil {
		return name, errors.New(name + ": " + yaml.FormatError(err, false, true))
	}
	return name, nil
}

// writePlot draws into a file, if one is named.
func writePlot(name string, draw func() []byte) error {
	if name == "" {
		return nil
	}
	write := maybe.WriteFile // replaces the file at once, except on Windows
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() {
		write = os.WriteFile // a link or a device, such as /dev/stdout, is not to be replaced
	}
	if err := write(name, draw(), 0o644); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

// A busyRun is one rule's way through a simulation.
type busyRun struct {
	RecoverRate  float64       `json:"recoverRate,omitempty"`
	RecoverValue float64       `json:"recoverValue,omitempty"`
	Requests     pattern       `json:"requests"`
	Busy         pattern       `json:"busy"`
	Duration     int           `json:"duration"` // seconds
	Seconds      []busy.Second `json:"seconds"`
	Converged    int           `json:"converged,omitempty"` // second in which nothing was throttled any more
	Speed        *int          `json:"speed,omitempty"`     // seconds from the end of the busy answers to it; none: not in time
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
		Short: "Print the simulations published with TChannel's throttling on busy responses",
		Long: `Print the simulations published with TChannel's throttling on busy responses: a service answers that it
is busy for a while, and then no more. The first run lets the limit grow by --recover-rate times itself
a second (3 is to four times; the text says three, the published tables four), the second one by
--recover-value requests a second; a 0 leaves a run out. Each busy answer halves the limit, of 20 a
second at most.

PATTERN is that of the requests and the busy answers, which begin with --rps and --busy:

  steady                (default) 5000 requests a second, 3000 busy answers
  flappy                5000 requests; 3000 busy answers in each third second, none in the others
  linear_grow           100 requests and no busy answer, 100 more of both in each second
  linear_decrease       5000 requests, 100 fewer in each second; 3000 busy answers
  exponential_grow      100 requests and a busy answer, twice as many of both in each second
  exponential_decrease  5000 requests, half as many in each second; 3000 busy answers

--plot draws the first run, and the rule "fraction" on the same traffic, side by side.`,
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
	flags.Float64Var(&recoverRate, "recover-rate", 3, "times itself by which the limit grows each second; 0: not this run")
	flags.Float64Var(&recoverValue, "recover-value", 200, "requests by which the limit grows each second; 0: not this run")
	flags.IntVar(&duration, "duration", 10, "second in which the busy answers end, 1 to 1000")
	flags.Float64Var(&requests, "rps", 0, "requests a second to begin with (default the pattern's)")
	flags.Float64Var(&answers, "busy", 0, "busy answers a second to begin with (default the pattern's)")
	flags.StringVar(&plot, "plot", "", "also draw it, into this SVG file")
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
		for _, rule := range []busy.TChannel{{RecoverRate: recoverRate}, {RecoverValue: recoverValue}} {
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
