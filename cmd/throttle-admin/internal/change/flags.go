package change

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// Flags are the flags of each command that changes policies.
type Flags struct {
	DryRun   bool
	Revision int64
	By       configstore.By
}

// Add adds the flags to a command.
func (f *Flags) Add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.DryRun, "dry-run", false,
		"show the change and the known topics that it affects; store nothing")
	cmd.Flags().Int64Var(&f.Revision, "revision", 0,
		"refuse the change (exit status 3) if policies were changed after this revision")
	cmd.Flags().StringVar(&f.By.Author, "as", "",
		"the author that the history names (default: this user at this host)")
	cmd.Flags().StringVarP(&f.By.Reason, "reason", "m", "", "why, for the history")
	cmd.Flags().BoolVar(&f.By.WithoutHistory, "without-history", false,
		"store the change although its record cannot be kept; the history shows an unknown author")
}

// by returns who makes the change.
func (f *Flags) by() configstore.By {
	by := f.By
	if by.Author == "" {
		by.Author = author()
	}
	return by
}

// author names the user of this process.
func author() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	text := name + "@" + host
	return text[:min(len(text), configstore.MaxAuthor)]
}

// SetFlags are the flags of the commands that set fields of one scope.
type SetFlags struct {
	Flags
	Subscription string
	For          string // how long the fields are set; "" means permanently
}

// Add adds the flags to a command.
func (f *SetFlags) Add(cmd *cobra.Command) {
	cli.AddSubscription(cmd, &f.Subscription)
	cmd.Flags().StringVar(&f.For, "for", "",
		"set temporarily, for a duration such as 2h; then the permanent value applies again")
	f.Flags.Add(cmd)
}

// TTL parses --for; 0 means permanent. It refuses the fields that are to be unset: only a value can
// be temporary.
func (f *SetFlags) TTL(cmd *cobra.Command, unset ...string) (time.Duration, error) {
	if !cmd.Flags().Changed("for") {
		return 0, nil
	}
	var unsetErr error
	if len(unset) > 0 {
		unsetErr = errors.New(
			"for: a field cannot be unset temporarily: want FIELD=VALUE, or no --for")
	}
	d, err := policy.ParseDuration(f.For)
	switch {
	case err != nil:
		err = cli.ArgError("for", f.For, "invalid duration: want 90s, 10m or 2h")
	case d < configstore.MinTTL || d > configstore.MaxTTL:
		low, high := policy.Duration(configstore.MinTTL), policy.Duration(configstore.MaxTTL)
		err = cli.ArgError("for", f.For, fmt.Sprintf("out of range: want %s..%s", low, high))
	}
	return d, errors.Join(err, unsetErr)
}
