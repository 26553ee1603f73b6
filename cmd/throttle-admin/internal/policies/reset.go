package policies

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
)

func newResetCommand(a *cli.App) *cobra.Command {
	var f change.Flags
	var subscription string
	cmd := &cobra.Command{
		Use:   "reset SCOPE [FIELD...]",
		Short: "End temporary values of a scope at once",
		Long: `End the temporary values of a scope, which were set with --for, at once: of some fields,
or of all. What is below them is in force again.`,
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
				Make: func(s configstore.Snapshot) (changes []configstore.Change, err error) {
					var left []string
					for _, e := range s.Entries {
						if e.Scope != scope || !e.Temporary {
							continue
						}
						if len(fields) == 0 || slices.Contains(fields, e.Field) {
							changes = append(changes, configstore.Change{Key: configstore.KeyOf(e)})
						}
						left = append(left, e.Field)
					}
					var errs []error
					for _, field := range fields {
						if !slices.Contains(left, field) {
							errs = append(errs, cli.ArgError("FIELD", field, "not temporary now"))
						}
					}
					if len(left) == 0 {
						return nil, cli.Hint(fmt.Errorf("scope %q: has no temporary values", scope),
							"show all policies: throttle-admin list")
					}
					return changes, cli.Usage(errors.Join(errs...))
				},
			})
		},
	}
	cli.AddSubscription(cmd, &subscription)
	f.Add(cmd)
	return cmd
}
