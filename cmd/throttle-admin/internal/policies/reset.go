package policies

import (
	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

func newResetCommand(a *cli.App) *cobra.Command {
	var f change.Flags
	var subscription string
	cmd := &cobra.Command{
		Use:   "reset SCOPE [FIELD...]",
		Short: "End temporary values of a scope at once",
		Long: `End the temporary values of a scope, which were set with --for, at once: of some fields,
or of all. The values that they replaced apply again.`,
		Example: `  throttle-admin reset kafka://public/default/orders
  throttle-admin reset public/default messageRate paused`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, err := a.ScopeOf(cmd, args[0])
			if err != nil {
				return cli.Usage(err)
			}
			fields := args[1:]
			return change.Run(a, cmd, f, change.Plan{
				Review: "get " + cli.Quote(scope),
				Make: func(s configstore.Snapshot) ([]configstore.Change, error) {
					return change.Reset(s, policy.PolicySection, scope, fields...)
				},
			})
		},
	}
	cli.AddSubscription(cmd, &subscription)
	f.Add(cmd)
	return cmd
}
