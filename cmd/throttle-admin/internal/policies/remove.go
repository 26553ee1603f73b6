package policies

import (
	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

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
