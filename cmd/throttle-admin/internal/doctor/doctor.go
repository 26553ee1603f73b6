// Package doctor holds the command that finds what is wrong with a set-up: in the stores, the
// policies and the replicas.
package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
)

// Commands are the commands of this package.
func Commands(a *cli.App) []*cobra.Command { return []*cobra.Command{newCommand(a)} }

// A severity says how bad a finding is.
type severity string

const (
	hint    severity = "hint"    // works, and could be better or was not meant so
	warning severity = "warning" // does not work as the policies say, or soon will not
	fault   severity = "fault"   // does not work
)

// severities are all of them, the worst first.
var severities = []severity{fault, warning, hint}

// A finding is one thing that is wrong.
type finding struct {
	Severity severity `json:"severity"`
	Check    string   `json:"check"`   // names the kind of finding
	Subject  string   `json:"subject"` // what is wrong
	Seen     string   `json:"seen"`
	Why      string   `json:"why"`  // why it matters
	Mend     string   `json:"mend"` // the command that mends it, or what to do
}

// A report is what doctor prints.
type report struct {
	Findings []finding   `json:"findings"` // the worst first
	Stores   []storeView `json:"stores"`
	Replicas int         `json:"replicas"`
	Policies int         `json:"policies"`
}

// A storeView is how fast a store answers.
type storeView struct {
	Store    string  `json:"store"`
	Requests int     `json:"requests"`
	P50      float64 `json:"p50"` // seconds
	P99      float64 `json:"p99"`
}

func newCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong with the stores, the policies and the replicas",
		Long: `Find what is wrong: with the policy store and the permit store, with the policies, and
with the replicas of --cluster that publish their state in the permit store. It changes nothing.

Each finding says what was seen, why it matters, and the command that mends it. A fault is what
does not work, a warning what does not work as the policies say or soon will not, and a hint what
works, but may not be meant so.

Exit status: 0 nothing was found, or hints; 4 warnings; 5 faults.`,
		Example: `  throttle-admin doctor
  throttle-admin doctor -o json`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := gather(cmd.Context(), a)
			if err != nil {
				return err
			}
			r := f.report()
			if err := a.Print(r, r.table); err != nil {
				return err
			}
			switch {
			case r.count(fault) > 0:
				return cli.Exit(cli.ExitFaults)
			case r.count(warning) > 0:
				return cli.Exit(cli.ExitWarnings)
			}
			return nil
		},
	}
}

// checks find what is wrong in the facts.
var checks = []func(*facts) []finding{
	(*facts).unreachable, (*facts).unreadableRecords, (*facts).slow, (*facts).clocks, (*facts).redis, (*facts).etcd,
	(*facts).marker, (*facts).history, (*facts).unreadable, (*facts).ties, (*facts).reservations,
	(*facts).ignoredWeights, (*facts).neverBinding, (*facts).unusedPatterns, (*facts).endingSoon,
	(*facts).missingOverrides, (*facts).heldReplicas, (*facts).others, (*facts).rivals, (*facts).cutOffReplicas,
	(*facts).versions, (*facts).revisions, (*facts).readAhead, (*facts).unknownBacklogs,
	(*facts).sharedReaders,
}

// report runs all checks.
func (f *facts) report() report {
	r := report{Findings: []finding{}, Stores: []storeView{}, Replicas: len(f.replicas)}
	for _, check := range checks {
		r.Findings = append(r.Findings, check(f)...)
	}
	slices.SortStableFunc(r.Findings, func(a, b finding) int {
		return slices.Index(severities, a.Severity) - slices.Index(severities, b.Severity)
	})
	for _, s := range f.stores {
		r.Stores = append(r.Stores, storeView{s.name, s.requests, s.p50.Seconds(), s.p99.Seconds()})
	}
	for _, e := range f.snapshot.Entries {
		if !e.Temporary {
			r.Policies++
		}
	}
	return r
}

func (r report) count(s severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

func (r report) table(w *strings.Builder) {
	for _, f := range r.Findings {
		output.Labelled(w, strings.ToUpper(string(f.Severity))+" ", f.Check+": "+f.Subject)
		output.Labelled(w, "  seen  ", f.Seen)
		output.Labelled(w, "  why   ", f.Why)
		output.Labelled(w, "  mend  ", f.Mend)
		fmt.Fprintln(w)
	}
	for _, s := range r.Stores {
		if s.Requests > 0 {
			output.Text(w, "%s: half of %d requests took up to %s, 99 %% up to %s", s.Store, s.Requests,
				millis(s.P50), millis(s.P99))
		}
	}
	output.Text(w, "%s, %s: %s, %s and %s", cli.Count(r.Policies, "policy"), cli.Count(r.Replicas, "replica"),
		cli.Count(r.count(fault), "fault"), cli.Count(r.count(warning), "warning"), cli.Count(r.count(hint), "hint"))
}

func millis(seconds float64) string {
	return output.Number(seconds*1000) + " ms"
}

// seconds returns a difference of clocks for people.
func seconds(d time.Duration) string { return output.Seconds(d.Abs().Seconds()) }
