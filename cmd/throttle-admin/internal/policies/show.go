package policies

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
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
}

func reportOf(s configstore.Snapshot, entries []policy.Entry, now time.Time) listReport {
	r := listReport{Identity: s.Identity, Revision: s.Revision, Policies: []entryView{}}
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
		Short: "Show all stored policies",
		Long: `Show all stored policies: temporary ones with the time that is left, unreadable
ones with the error. See throttle-admin quota list for quotas.`,
		Example: `  throttle-admin list
  throttle-admin list -o json`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.Policies(cmd.Context())
			if err != nil {
				return err
			}
			now := time.Now()
			r := reportOf(s, s.Entries, now)
			return a.Print(r, func(w *strings.Builder) { r.table(w, now) })
		},
	}
}

func newGetCommand(a *cli.App) *cobra.Command {
	var subscription string
	cmd := &cobra.Command{
		Use:   "get SCOPE",
		Short: "Show the stored policy of one scope",
		Long: `Show the stored policy of one scope. See throttle-admin explain for what a topic
inherits from other scopes.`,
		Example: `  throttle-admin get public/default
  throttle-admin get kafka://public/default/orders --subscription billing -o yaml`,
		Args: cli.Args("SCOPE"),
		RunE: func(cmd *cobra.Command, args []string) error { return get(a, cmd, args[0], nil) },
	}
	cli.AddSubscription(cmd, &subscription)
	return cmd
}

// get shows the stored policy of a scope, or only some fields of it. It reports fault, which its
// caller has found in the arguments, together with its own.
func get(
	a *cli.App, cmd *cobra.Command, scopeText string, fault error, fields ...string,
) error {
	scope, err := a.ScopeOf(cmd, scopeText)
	if err = errors.Join(err, fault); err != nil {
		return cli.Usage(err)
	}
	s, err := a.Policies(cmd.Context())
	if err != nil {
		return err
	}
	var entries []policy.Entry
	for _, e := range s.Entries {
		if e.Section() != policy.PolicySection || e.Scope != scope {
			continue
		}
		if len(fields) > 0 && e.Err == nil {
			if e.Settings = policy.Only(e.Settings, fields...); policy.IsZero(e.Settings) {
				continue
			}
		}
		entries = append(entries, e)
	}
	if len(entries) == 0 {
		return noPolicy(scope)
	}
	now := time.Now()
	r := reportOf(s, entries, now)
	return a.Print(r, func(w *strings.Builder) { r.table(w, now) })
}

func noPolicy(scope policy.Scope) error {
	next := "show all policies: throttle-admin list"
	if scope.Kind == policy.TopicKind || scope.Kind == policy.SubscriptionKind {
		next = "show what it inherits: throttle-admin explain " + cli.Quote(scope)
	}
	return cli.Hint(fmt.Errorf("scope %q: has no policy of its own", scope), next)
}

func newRemoveCommand(a *cli.App) *cobra.Command {
	var f change.Flags
	var subscription string
	cmd := &cobra.Command{
		Use:   "remove SCOPE",
		Short: "Remove the stored policy of a scope",
		Long: `Remove the stored policy of a scope, with its temporary values. The scope then
inherits all fields. To remove an unreadable policy, use the name that list shows.`,
		Example: `  throttle-admin remove public/default --dry-run
  throttle-admin remove kafka://public/default/orders --subscription billing`,
		Args: cli.Args("SCOPE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, scopeErr := a.ScopeOf(cmd, args[0])
			if scopeErr != nil && cmd.Flags().Changed("subscription") {
				return cli.Usage(scopeErr)
			}
			return change.Run(a, cmd, f, change.Plan{
				Review:   "list",
				Removing: true,
				Make: func(s configstore.Snapshot) ([]configstore.Change, error) {
					changes := s.Remove(policy.PolicySection, scope)
					if scopeErr != nil || len(changes) == 0 { // the name of an unreadable one
						unreadable := policy.Scope{Kind: policy.UnreadableKind, Pattern: args[0]}
						changes = s.Remove(policy.PolicySection, unreadable)
					}
					if scopeErr != nil && len(changes) == 0 {
						return nil, cli.Usage(scopeErr)
					}
					if len(changes) == 0 {
						return nil, noPolicy(scope)
					}
					return changes, nil
				},
			})
		},
	}
	cli.AddSubscription(cmd, &subscription)
	f.Add(cmd)
	return cmd
}
