// Package rights holds the commands that print how users get the rights of their roles in the
// stores.
package rights

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/internal/privileges"
	"github.com/dispatchthrottle/throttle/internal/role"
)

// Commands returns the commands of this package.
func Commands(a *cli.App) []*cobra.Command {
	cmd := &cobra.Command{
		Use:   "rights",
		Short: "Print the commands that give users the rights of their roles in the stores",
		Long: `Print the commands that give users of etcd and of Redis the rights of their roles.
Nothing is changed, and no store is asked.

A ROLE is one of
  admin       changes policies with throttle-admin, and reads all
  replica     a process with a Limiter: reads policies, allocates permits, publishes its status
  ratekeeper  a candidate for the ratekeeper: writes the rates of quotas
  viewer      reads all, and changes nothing: throttle-admin list, explain, quota status

A process with a Limiter that is also a candidate for the ratekeeper has both roles:
--role replica,ratekeeper. docs/security.md says what each role can do to the others.`,
		Example: `  throttle-admin rights etcd --role replica
  throttle-admin rights redis --role viewer -o json`,
		Args: cobra.ArbitraryArgs,
		RunE: cli.Subcommands,
	}
	cmd.AddCommand(newEtcdCommand(a), newRedisCommand(a))
	return []*cobra.Command{cmd}
}

// flags are those of both commands.
type flags struct {
	roles          []string
	user, replicas string
}

func (f *flags) add(cmd *cobra.Command) {
	var names []string
	for _, r := range role.Roles {
		names = append(names, string(r))
	}
	cmd.Flags().StringSliceVar(&f.roles, "role", nil,
		"what the user does: "+strings.Join(names, ", ")+", or several of them")
	cmd.Flags().StringVar(&f.user, "user", "", "name of the user (default throttle-ROLE)")
	cmd.Flags().StringVar(&f.replicas, "replicas", "",
		"write only the records of replicas whose names begin so (default all)")
	complete := cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc("role", complete); err != nil {
		panic(err) // cannot happen: the flag is defined above
	}
}

// A user is whom a command is about, in its output.
type user struct {
	User     string   `json:"user"`
	Roles    []string `json:"roles"`
	Cluster  string   `json:"cluster"`
	Replicas string   `json:"replicas,omitempty"` // how their names begin

	// PasswordFile is the file that the commands take the password from.
	PasswordFile string `json:"passwordFile"`
}

// Names that mean nothing to a shell, to redis-cli and in a pattern.
var (
	userName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	replicaName = regexp.MustCompile(`^[A-Za-z0-9_./:-]{0,200}$`)
)

// parse validates the flags.
func (f *flags) parse(a *cli.App) (u user, s privileges.Subject, err error) {
	var errs []error
	s.Cluster, s.Replicas = a.Cluster, f.replicas
	if len(f.roles) == 0 {
		errs = append(errs, errors.New("--role: missing: want admin, replica, ratekeeper or viewer"))
	}
	for _, name := range f.roles {
		r := role.Role(name)
		if !slices.Contains(role.Roles, r) {
			errs = append(errs, cli.ArgError("--role", name,
				"unknown role: want admin, replica, ratekeeper or viewer"))
		}
		s.Roles = append(s.Roles, r)
	}
	name := f.user
	if name == "" {
		name = "throttle-" + strings.Join(f.roles, "-")
	}
	if !userName.MatchString(name) {
		errs = append(errs, cli.ArgError("--user", name,
			"invalid name: want 1 to 64 letters, digits and _.-, with a letter or digit first"))
	}
	if !replicaName.MatchString(f.replicas) {
		errs = append(errs, cli.ArgError("--replicas", f.replicas,
			"invalid name: want up to 200 letters, digits and _./:-"))
	}
	u = user{
		User: name, Roles: f.roles, Cluster: a.Cluster, Replicas: f.replicas,
		PasswordFile: name + ".password",
	}
	return u, s, cli.Usage(errors.Join(errs...))
}

// plain is an argument that means nothing else to a shell.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./:=%@,-]+$`)

// quote returns an argument for a shell.
func quote(text string) string {
	if plain.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// lines writes lines.
func lines(w *strings.Builder, all []string) {
	for _, line := range all {
		fmt.Fprintln(w, line)
	}
}
