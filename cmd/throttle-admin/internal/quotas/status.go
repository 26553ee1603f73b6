package quotas

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/overcommit"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotastate"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/policy"
)

func newQuotaStatusCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what the ratekeeper has decided last, for all ids",
		Long: `Show what the ratekeeper has decided last, for all ids: messages a second, and the cost of one on average.
Target is max(reserved, min(desired, limiting)). One id's calculation: throttle-admin explain tag:NAME

While no ratekeeper leads, it shows what replicas obey meanwhile: the rates that one wrote last or, a minute
later, what is reserved or, if nothing is, the total.

Exit status: 0 a ratekeeper leads, 1 none does, or something failed, 2 misused.`,
		Example: `  throttle-admin quota status --permits redis://127.0.0.1:6379
  throttle-admin quota status -o json`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			permits, err := a.OpenPermits()
			if err != nil {
				return err
			}
			if permits == nil {
				return quotastate.NoPermits()
			}
			defer func() { _ = permits.Close() }() // nothing was written
			s, leads, err := quotastate.Decided(cmd.Context(), a, permits)
			switch {
			case err != nil:
				return err
			case leads:
				err := a.Print(statusView{leads, s}, func(w *strings.Builder) { statusTable(w, s) })
				if a.PoliciesURL == "" {
					return err
				}
				if err := quotastate.With(cmd.Context(), a, func(s configstore.Snapshot, _ *policy.Set) error {
					warnOverCommitted(a, s)
					return nil
				}); err != nil { // what was decided is shown nevertheless
					a.Warn("whether quotas reserve more than the capacity is not known: %v", err)
				}
				return err
			}
			show := func(quotas map[policy.Scope]policy.Quota) error {
				u, err := quotastate.FindUnkept(cmd.Context(), a, permits, quotas)
				if err != nil {
					return err
				}
				return a.Print(u, u.Write)
			}
			if a.PoliciesURL == "" {
				a.Warn("what each id may do follows from its quota: set --policies to see it")
				err = show(nil)
			} else {
				err = quotastate.With(cmd.Context(), a, func(s configstore.Snapshot, set *policy.Set) error {
					err := show(set.Quotas())
					warnOverCommitted(a, s)
					return err
				})
			}
			return errors.Join(err, quotastate.NoRatekeeper(a))
		},
	}
}

// warnOverCommitted says from when on quotas reserve too much.
func warnOverCommitted(a *cli.App, s configstore.Snapshot) {
	now := time.Now()
	if over := overcommit.Quotas(s.Entries, now); over != nil {
		a.Warn("%s", over.Say(now))
	}
}

// A statusView is what a ratekeeper that leads has decided last.
type statusView struct {
	Leads bool `json:"leads"`
	ratekeeper.Status
}

func statusTable(w *strings.Builder, s ratekeeper.Status) {
	output.Text(w, "ratekeeper %s, term %d; %d replicas and backends report, %d ids are tracked", s.Keeper, s.Term, s.Replicas, s.Tracked)
	fmt.Fprintln(w)
	var rows [][]string
	for _, d := range s.Decisions {
		busy := ""
		switch {
		case d.Shadow:
			busy = "shadow: limits nothing"
		case d.Busy:
			busy = "busy"
		}
		rows = append(rows, []string{string(d.ID), output.Number(d.Rate), output.Number(d.AverageCost), output.Number(d.Reserved), output.Number(d.Desired), output.OrNone(d.Limiting), output.Number(d.Target), output.Number(d.Smoothed), busy})
	}
	output.Table(w, []string{"ID", "RATE", "AVERAGE", "RESERVED", "DESIRED", "LIMITING", "TARGET", "IN FORCE", ""}, rows)
	for _, fault := range s.Refused {
		output.Text(w, "refused: %s", fault)
	}
	if s.LeftOut > 0 {
		output.Text(w, "%d ids of the backends' reports are not followed one by one: their cost counts among the others'", s.LeftOut)
	}
}
