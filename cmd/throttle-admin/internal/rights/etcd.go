package rights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	configetcd "github.com/dispatchthrottle/throttle/configstore/etcd"
	etcdpermits "github.com/dispatchthrottle/throttle/dispatch/permits/etcd"
	"github.com/dispatchthrottle/throttle/internal/privileges"
)

// An etcdReport is what rights etcd prints.
type etcdReport struct {
	user
	Servers []etcdServer `json:"servers"`
}

// An etcdServer is one etcd; there are two if the stores are in different ones.
type etcdServer struct {
	Endpoints   []string                `json:"endpoints"`
	Permissions []privileges.Permission `json:"permissions"`
	Commands    []string                `json:"commands"` // for a shell

	granted privileges.Permissions
}

func newEtcdCommand(a *cli.App) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "Print the etcdctl commands that create a user with a role",
		Long: `Print the etcdctl commands that create a user with the rights of a role, and a role of
etcd with the same name. The endpoints and the prefix are those of --policies and --permits, as far
as they are in etcd.

The commands read the user's password from the first line of a file, throttle-ROLE.password by
default. To apply changed rights, delete the role of etcd first: etcdctl role delete NAME.`,
		Example: `  throttle-admin rights etcd --role replica
  throttle-admin rights etcd --role replica --user billing --replicas billing-
  throttle-admin rights etcd --role viewer | sh`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			u, s, err := f.parse(a)
			if err != nil {
				return err
			}
			servers, err := etcdServers(cmd.Context(), a, s)
			if err != nil {
				return cli.Usage(err)
			}
			for i := range servers {
				servers[i].finish(u)
			}
			a.Warn("the password is read from %s, which no one else should be able to read",
				u.PasswordFile)
			a.Warn("etcd checks rights only after: etcdctl user add root; etcdctl auth enable")
			r := etcdReport{u, servers}
			return a.Print(r, func(w *strings.Builder) {
				for _, server := range r.Servers {
					lines(w, server.Commands)
				}
			})
		},
	}
	f.add(cmd)
	return cmd
}

// etcdServers returns what a user needs in the etcd of each store that is in one.
func etcdServers(
	ctx context.Context, a *cli.App, s privileges.Subject,
) (servers []etcdServer, err error) {
	at := func(endpoints []string) privileges.Permissions {
		slices.Sort(endpoints) // in another order, they are the same etcd
		for _, server := range servers {
			if slices.Equal(server.Endpoints, endpoints) {
				return server.granted
			}
		}
		granted := privileges.Permissions{}
		servers = append(servers, etcdServer{Endpoints: endpoints, granted: granted})
		return granted
	}
	if strings.HasPrefix(a.PoliciesURL, "etcd:") {
		text, err := a.PoliciesOptions.Add(a.PoliciesURL)
		if err != nil {
			return nil, fmt.Errorf("policy store %w", err)
		}
		opened, err := throttle.OpenPolicies(ctx, text)
		if err != nil {
			return nil, err
		}
		store := opened.(*configetcd.Store)
		at(store.Endpoints()).Policies(s, store.Keys())
		if err := store.Close(); err != nil {
			return nil, err
		}
	}
	if strings.HasPrefix(a.PermitsURL, "etcd:") {
		opened, err := a.OpenPermits()
		if err != nil {
			return nil, err
		}
		store := opened.(*etcdpermits.Store)
		at(store.Endpoints()).Permits(s, store.Prefix())
		if err := store.Close(); err != nil {
			return nil, err
		}
	}
	if len(servers) == 0 {
		return nil, errors.New("--policies, --permits: no etcd: " +
			"want one of them to be such as etcd://127.0.0.1:2379/throttle")
	}
	return servers, nil
}

// finish fills in what follows from the permissions.
func (server *etcdServer) finish(u user) {
	server.Permissions = server.granted.List()
	// As a flag, etcdctl would refuse them beside its environment's.
	server.Commands = []string{"export ETCDCTL_ENDPOINTS=" + quote(strings.Join(server.Endpoints, ","))}
	run := func(args ...string) {
		var line strings.Builder
		line.WriteString("etcdctl")
		for _, arg := range args {
			line.WriteString(" " + quote(arg))
		}
		server.Commands = append(server.Commands, line.String())
	}
	run("role", "add", u.User)
	for _, p := range server.Permissions {
		args := []string{"role", "grant-permission", u.User, p.Type, p.Key}
		if p.Prefix {
			args = append(args, "--prefix")
		}
		run(args...)
	}
	run("user", "add", u.User, "--interactive=false")
	server.Commands[len(server.Commands)-1] += " < " + u.PasswordFile
	run("user", "grant-role", u.User, u.User)
}
