// Package size holds the command that computes what a fleet needs of one Redis.
package size

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/internal/sizing"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands returns the commands of this package.
func Commands(a *cli.App) []*cobra.Command { return []*cobra.Command{newCommand(a)} }

// A report is what the command prints.
type report struct {
	Fleet  sizing.Fleet `json:"fleet"`
	Needs  sizing.Needs `json:"needs"`
	Advice []string     `json:"advice"` // empty: one Redis is enough
}

func newCommand(a *cli.App) *cobra.Command {
	f := sizing.Fleet{}
	var sharing string
	var round time.Duration
	cmd := &cobra.Command{
		Use:   "size",
		Short: "Compute what a fleet needs of Redis, and of each of its processes",
		Long: `Compute what limits that are used in full need of one Redis as permit store, and of each
replica: a process with a Limiter. No store is asked.

The number of requests follows from the sharing mode. The rest follows from costs that were measured
with Redis 7.0 on two cores; processor time differs between machines, by a factor of two or more.
docs/operating.md says what was measured.`,
		Example: `  throttle-admin size --limits 10 --replicas 1000 --rate 100
  throttle-admin size --limits 200 --replicas 50 --rate 1000 --subscriptions 3
  throttle-admin size --limits 10 --replicas 100 --rate 5 --sharing strict -o json`,
		Args: cli.Args(),
		RunE: func(*cobra.Command, []string) error {
			f.Sharing, f.Round = policy.SharingMode(sharing), round.Seconds()
			if err := check(f); err != nil {
				return cli.Usage(err)
			}
			r := report{Fleet: f, Needs: f.Needs()}
			r.Advice = append([]string{}, f.Advice(r.Needs)...)
			return a.Print(r, func(w *strings.Builder) { write(w, r) })
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&f.Limits, "limits", 0, "limits that are used at the same time")
	flags.IntVar(&f.Replicas, "replicas", 0, "replicas that use each of them")
	flags.Float64Var(&f.Rate, "rate", 0, "of each limit, messages a second")
	flags.IntVar(&f.Subscriptions, "subscriptions", 1, "that share each limit, in each replica")
	flags.DurationVar(&round, "round", 100*time.Millisecond, "the policies' round")
	flags.StringVar(&sharing, "sharing", string(policy.Fair), "fair, strict, split or groups")
	modes := []string{
		string(policy.Fair), string(policy.Strict), string(policy.Split), string(policy.Groups),
	}
	complete := cobra.FixedCompletions(modes, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc("sharing", complete); err != nil {
		panic(err) // cannot happen: the flag is defined above
	}
	return cmd
}

// check validates the flags.
func check(f sizing.Fleet) error {
	var errs []error
	count := func(flag string, n int) {
		if n < 1 || n > 1_000_000 {
			errs = append(errs, cli.ArgError(flag, fmt.Sprint(n), "want 1 to 1000000"))
		}
	}
	count("--limits", f.Limits)
	count("--replicas", f.Replicas)
	count("--subscriptions", f.Subscriptions)
	if !(f.Rate >= 1e-6 && f.Rate <= 1e12) {
		errs = append(errs, cli.ArgError("--rate", fmt.Sprint(f.Rate), "want 0.000001 to 1e12"))
	}
	if f.Round < 0.01 || f.Round > 10 {
		errs = append(errs, cli.ArgError("--round", fmt.Sprint(f.Round, "s"), "want 10ms to 10s"))
	}
	switch f.Sharing {
	case policy.Fair, policy.Strict, policy.Split, policy.Groups:
	default:
		errs = append(errs, cli.ArgError("--sharing", string(f.Sharing),
			"unknown mode: want fair, strict, split or groups"))
	}
	return errors.Join(errs...)
}

func write(w *strings.Builder, r report) {
	n := r.Needs
	output.Table(w, []string{"OF", "WHAT", "NEEDS"}, [][]string{
		{"Redis", "requests for permits", output.Number(n.Requests) + "/s"},
		{"", "commands", output.Number(n.Commands) + "/s"},
		{"", "processor", percent(n.RedisCPU)},
		{"", "memory", size(n.RedisMemory)},
		{"", "received", size(n.In) + "/s"},
		{"", "sent", size(n.Out) + "/s"},
		{"", "connections", fmt.Sprint("up to ", n.Connections)},
		{"each replica", "processor", percent(n.ReplicaCPU)},
		{"", "memory", size(n.ReplicaMemory)},
	})
	fmt.Fprintln(w)
	if len(r.Advice) == 0 {
		output.Text(w, "One Redis is enough.")
	}
	for _, text := range r.Advice {
		output.Item(w, text)
	}
}

func percent(cores float64) string { return output.Number(100*cores) + " % of a core" }

// size returns bytes with a unit and three digits.
func size(bytes float64) string {
	units := []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"}
	i := 0
	for ; math.Round(bytes) >= 1000 && i < len(units)-1; i++ {
		bytes /= 1000
	}
	return output.Number(bytes) + " " + units[i]
}
