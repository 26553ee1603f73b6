package policies

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// An entryView is one stored policy.
type entryView struct {
	Scope     string        `json:"scope"`
	Policy    policy.Policy `json:"policy,omitzero"`
	Temporary bool          `json:"temporary,omitempty"`
	Expires   time.Time     `json:"expires,omitzero"`
	Left      float64       `json:"secondsLeft,omitempty"` // until Expires
	Revision  int64         `json:"revision"`              // at which it was written
	Error     string        `json:"error,omitempty"`       // why it cannot be read
}

type listReport struct {
	Identity string      `json:"identity"`
	Revision int64       `json:"revision"`
	Policies []entryView `json:"policies"`

	Held   []cli.Held    `json:"held,omitempty"`   // replicas that keep other policies than these
	Others []cli.KnownID `json:"others,omitempty"` // policies of other stores that replicas follow
}

func reportOf(s configstore.Snapshot, entries []policy.Entry, now time.Time) listReport {
	r := listReport{Identity: s.Marker.ID, Revision: s.Revision, Policies: []entryView{}}
	for _, e := range entries {
		if e.Section() != policy.PolicySection {
			continue
		}
		v := entryView{
			Scope: e.Scope.String(), Policy: e.Policy(), Temporary: e.Temporary, Expires: e.Expires,
			Revision: e.Revision,
		}
		if e.Temporary && e.Err == nil {
			v.Left = max(e.Expires.Sub(now), 0).Round(time.Millisecond).Seconds()
		}
		if e.Err != nil {
			v.Error = e.Err.Error()
		}
		r.Policies = append(r.Policies, v)
	}
	return r
}

// addReplicas adds the replicas that do not follow what is listed, and warns of them.
func (r *listReport) addReplicas(ctx context.Context, a *cli.App) {
	ctx, cancel := context.WithTimeout(ctx, cli.StoreTimeout)
	defer cancel()
	replicas, err := a.Replicas(ctx)
	if err != nil {
		a.Warn("whether replicas follow these policies is not known: %v", err)
	}
	r.Held, r.Others = cli.HeldBy(replicas), cli.Others(replicas, r.Identity)
	for _, held := range r.Held {
		a.Warn("%s", held)
	}
	for _, other := range r.Others {
		a.Warn("%s", other)
	}
}

func (r listReport) table(w *strings.Builder, now time.Time) {
	var rows [][]string
	for _, p := range r.Policies {
		row := []string{p.Scope, output.Fields(p.Policy), output.Expires(p.Expires, now)}
		if p.Error != "" {
			row[1], row[2] = "error: "+p.Error, "-"
		}
		rows = append(rows, row)
	}
	if len(rows) > 0 {
		output.Table(w, []string{"SCOPE", "POLICY", "EXPIRES"}, rows)
	}
	fmt.Fprintf(w, "revision %d\n", r.Revision)
}

func newListCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Show all stored policies, and which replicas do not follow them",
		Long: `Show all stored policies: temporary ones with the time that is left, unreadable
ones with the error. With --permits, warn of replicas that do not follow them. See
throttle-admin quota list for quotas.`,
		Example: `  throttle-admin list
  throttle-admin list -o json`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.Policies(cmd.Context())
			if err != nil {
				return err
			}
			now := time.Now()
			if s.Marker != (configstore.Marker{}) {
				if err := s.Marker.Check(s.Entries, now); err != nil {
					a.Warn("replicas do not follow these policies: %v", err)
				}
			} else if len(s.Entries) > 0 {
				a.Warn("the policy store has no marker, so that replicas do not notice another one in its place: " +
					"run throttle-admin adopt, or change a policy")
			}
			r := reportOf(s, s.Entries, now)
			r.addReplicas(cmd.Context(), a)
			return a.Print(r, func(w *strings.Builder) { r.table(w, now) })
		},
	}
}
