package quotas

import (
	"context"
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
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/policy"
)

func newQuotaStatusCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the ratekeeper's latest decisions",
		Long: `Show the ratekeeper's latest decisions for all ids: rates in messages a second,
costs in bytes a message. The target is max(reserved, min(desired, limiting)). See throttle-admin
explain tag:NAME for the calculation of one rate.

While no ratekeeper leads, replicas keep the rates that the last one wrote. After a minute they
fall back to what is reserved or, without a reservation, to the total; status then shows these
rates.

Exit status: 0 a ratekeeper leads, 1 no ratekeeper leads or an error, 2 usage error.`,
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
			defer func() { _ = permits.Close() }() // only read from
			s, leads, err := quotastate.Decided(cmd.Context(), a, permits)
			switch {
			case err != nil:
				return err
			case leads:
				return showDecisions(cmd.Context(), a, s)
			}
			return errors.Join(showUnkept(cmd.Context(), a, permits), quotastate.NoRatekeeper(a))
		},
	}
}

// A statusView is the latest status of the ratekeeper that leads.
type statusView struct {
	Leads bool `json:"leads"` // true; see quotastate.Unkept
	ratekeeper.Status
}

func showDecisions(ctx context.Context, a *cli.App, s ratekeeper.Status) error {
	err := a.Print(statusView{true, s}, func(w *strings.Builder) { statusTable(w, s) })
	if a.PoliciesURL == "" {
		return err
	}
	if policies, err := a.Policies(ctx); err == nil {
		warnOverCommitted(a, policies)
	} else {
		a.Warn("quotas were not compared with the capacity: %v", err)
	}
	return err
}

// showUnkept shows the rates in force while no ratekeeper leads.
func showUnkept(ctx context.Context, a *cli.App, permits dispatch.PermitStore) error {
	var quotas map[policy.Scope]policy.EffectiveQuota
	if a.PoliciesURL == "" {
		a.Warn("the rates of ids depend on their quotas: set --policies to see them")
	} else {
		s, err := a.Policies(ctx)
		if err != nil {
			return err
		}
		defer warnOverCommitted(a, s)
		set, _ := policy.NewSet(s.Entries) // usable without its invalid entries
		quotas = set.Quotas()
	}
	u, err := quotastate.FindUnkept(ctx, a, permits, quotas)
	if err != nil {
		return err
	}
	return a.Print(u, u.Write)
}

// warnOverCommitted warns if quotas reserve, or will reserve, more than the capacity.
func warnOverCommitted(a *cli.App, s configstore.Snapshot) {
	now := time.Now()
	if over := overcommit.Quotas(s.Entries, now); over != nil {
		a.Warn("%s", over.Text(now))
	}
}

func statusTable(w *strings.Builder, s ratekeeper.Status) {
	output.Text(w, "ratekeeper %s, term %d; %d replicas and backends report, %d ids are tracked",
		s.Keeper, s.Term, s.Replicas, s.Tracked)
	fmt.Fprintln(w)
	var rows [][]string
	for _, d := range s.Decisions {
		state := ""
		switch {
		case d.Shadow:
			state = "shadow: not limited"
		case d.Busy:
			state = "busy"
		}
		rows = append(rows, []string{
			string(d.ID), output.Number(d.Rate), output.Number(d.AverageCost),
			output.Number(d.Reserved), output.Number(d.Desired), output.OrNone(d.Limiting),
			output.Number(d.Target), output.Number(d.Smoothed), state,
		})
	}
	output.Table(w, []string{
		"ID", "RATE", "AVERAGE", "RESERVED", "DESIRED", "LIMITING", "TARGET", "IN FORCE", "",
	}, rows)
	for _, fault := range s.Refused {
		output.Text(w, "refused: %s", fault)
	}
	if s.LeftOut > 0 {
		output.Text(w, "%d ids of backends' reports are not tracked: they count as others",
			s.LeftOut)
	}
}
