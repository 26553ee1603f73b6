package change

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// Flags are those of every command that changes policies.
type Flags struct {
	DryRun   bool
	Revision int64
}

// Add adds the flags to a command.
func (f *Flags) Add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.DryRun, "dry-run", false, "show the change and the known topics it touches, and store nothing")
	cmd.Flags().Int64Var(&f.Revision, "revision", 0, "refuse (exit status 3) if anything was changed after this revision")
}

// SetFlags are those of the commands that set fields of one scope.
type SetFlags struct {
	Flags
	Subscription, Lasting string
}

// Add adds the flags to a command.
func (f *SetFlags) Add(cmd *cobra.Command) {
	cli.AddSubscription(cmd, &f.Subscription)
	cmd.Flags().StringVar(&f.Lasting, "for", "", "how long, such as 2h; then what was there before comes back")
	f.Flags.Add(cmd)
}

// TTL reads --for; 0 = for good.
func (f *SetFlags) TTL(cmd *cobra.Command) (time.Duration, error) {
	if !cmd.Flags().Changed("for") {
		return 0, nil
	}
	d, err := policy.ParseDuration(f.Lasting)
	switch {
	case err != nil:
		return 0, &policy.FieldError{Field: "for", Value: f.Lasting, Reason: "is no duration: write 90s, 10m or 2h"}
	case d < configstore.MinTTL || d > configstore.MaxTTL:
		return 0, &policy.FieldError{Field: "for", Value: f.Lasting, Reason: fmt.Sprintf("is outside %s..%s",
			policy.Duration(configstore.MinTTL), policy.Duration(configstore.MaxTTL))}
	}
	return d, nil
}

// CheckTemporary refuses to reserve something for a while: what is reserved must fit the total at any time, and each ends for itself.
func CheckTemporary(p policy.Policy, ttl time.Duration) error {
	if r := p.ReservedThroughput; ttl != 0 && r != nil && *r > 0 {
		return &policy.FieldError{Field: "for", Value: policy.Duration(ttl).String(), Reason: "is not for what is reserved: set that for good, or a total alone for a while"}
	}
	return nil
}
