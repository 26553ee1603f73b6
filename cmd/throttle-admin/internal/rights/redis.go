package rights

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/internal/privileges"
)

// A redisReport is what rights redis prints.
type redisReport struct {
	user
	Rules    []string `json:"rules"`    // of ACL SETUSER
	Commands []string `json:"commands"` // for redis-cli

	// Password is a command for a shell, which sets the password from the file.
	Password string `json:"password"`
}

func newRedisCommand(a *cli.App) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "redis",
		Short: "Print the ACL SETUSER line that gives a user the rights of a role",
		Long: `Print the line of redis-cli that gives a user the rights of a role, and takes all
other rights from it. Redis 7.0 or later is required. With --permits redis+cluster:, or with a
database, the user gets the rights that these need.

Run it on every server, on those that replicate too: Redis does not pass users on. The line has no
password: a new user cannot connect before it has one, and a known one keeps its own.`,
		Example: `  throttle-admin rights redis --role replica
  throttle-admin rights redis --role replica --user billing --replicas billing-
  throttle-admin rights redis --role viewer | redis-cli -h 10.0.0.5`,
		Args: cli.Args(),
		RunE: func(*cobra.Command, []string) error {
			u, s, err := f.parse(a)
			if err != nil {
				return err
			}
			server, err := redisServer(a)
			if err != nil {
				return err
			}
			r := redisReport{user: u, Rules: privileges.Redis(s, server)}
			var line strings.Builder
			line.WriteString("ACL SETUSER " + u.User)
			for _, rule := range r.Rules {
				if strings.ContainsAny(rule, " *(){}&") { // names have no quotes, see policy
					rule = `"` + rule + `"`
				}
				line.WriteString(" " + rule)
			}
			r.Commands = []string{line.String()}
			r.Password = fmt.Sprintf(
				`sed -n '1s/^..*$/>&/p' %s | tr -d '\n' | redis-cli -x ACL SETUSER %s`,
				u.PasswordFile, u.User)
			a.Warn("run it on every server; ACL SAVE or CONFIG REWRITE keeps it")
			a.Warn("a new user needs a password; from a file: %s", r.Password)
			return a.Print(r, func(w *strings.Builder) { lines(w, r.Commands) })
		},
	}
	f.add(cmd)
	return cmd
}

// redisServer returns what --permits says of the Redis.
func redisServer(a *cli.App) (privileges.Server, error) {
	if a.PermitsURL == "" {
		return privileges.Server{}, nil
	}
	if !strings.HasPrefix(a.PermitsURL, "redis") {
		return privileges.Server{}, cli.Usage(fmt.Errorf("--permits: not the URL of a Redis: " +
			"want the permit store, such as redis://127.0.0.1:6379, or none"))
	}
	opened, err := a.OpenPermits()
	if err != nil {
		return privileges.Server{}, err
	}
	store := opened.(*redispermits.Store)
	server := privileges.Server{Sharded: store.Sharded(), Database: store.Database()}
	return server, store.Close()
}
