package quotas

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/overcommit"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotastate"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// A listReport has all quotas.
type listReport struct {
	Capacity int64              `json:"capacity,omitempty"` // declared; bytes of cost a second
	Reserved int64              `json:"reserved"`           // by all ids; bytes of cost a second
	Quotas   []quotastate.View  `json:"quotas"`
	Over     *overcommit.Excess `json:"overCommitted,omitempty"`
}

func newQuotaListCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "Show all quotas",
		Example: "  throttle-admin quota list",
		Args:    cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.Policies(cmd.Context())
			if err != nil {
				return err
			}
			for _, e := range s.Entries {
				if e.Err != nil && e.Section() == policy.QuotaSection {
					a.Warn("%s cannot be read and is left out: %v", e.Scope, e.Err)
				}
			}
			now := time.Now()
			l := listOf(s, now)
			return a.Print(l, func(w *strings.Builder) { l.table(w, now) })
		},
	}
}

func listOf(s configstore.Snapshot, now time.Time) listReport {
	set, _ := policy.NewSet(s.Entries) // usable without its invalid entries
	l := listReport{
		Capacity: *set.QuotaSettings().Capacity, Quotas: []quotastate.View{},
		Over: overcommit.Quotas(s.Entries, now),
	}
	for id, q := range set.Quotas() {
		l.Quotas = append(l.Quotas, quotastate.ViewOf(id, q, s))
		l.Reserved += q.Reserved
	}
	slices.SortFunc(l.Quotas, func(a, b quotastate.View) int { return strings.Compare(a.ID, b.ID) })
	return l
}

func (l listReport) table(w *strings.Builder, now time.Time) {
	if len(l.Quotas) == 0 {
		fmt.Fprintln(w, "<empty>")
		return
	}
	var rows [][]string
	for _, q := range l.Quotas {
		rows = append(rows, []string{
			q.ID, fmt.Sprint(*q.Reserved), fmt.Sprint(*q.Total), string(q.Mode),
			output.Expires(q.Expires, now),
		})
	}
	output.Table(w, []string{"ID", "RESERVED", "TOTAL", "MODE", "TOTAL EXPIRES"}, rows)
	capacity := "no capacity declared"
	if l.Capacity > 0 {
		capacity = fmt.Sprintf("of a capacity of %d", l.Capacity)
	}
	fmt.Fprintf(w, "reserved by all: %d bytes of cost a second, %s\n", l.Reserved, capacity)
	if l.Over != nil {
		output.Text(w, "%s", l.Over.Text(now))
	}
}
