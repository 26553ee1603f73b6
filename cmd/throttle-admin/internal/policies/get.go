package policies

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/policy"
)

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
