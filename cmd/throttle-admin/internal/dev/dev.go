// Package dev holds the command that runs an etcd for policies and permits.
package dev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/etcd"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/serve"
)

// Commands returns the commands of this package.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newDevCommand(a)}
}

func newDevCommand(app *cli.App) *cobra.Command {
	var dir, listen string
	var remote bool
	var secure serve.TLS
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run an etcd for policies and permits, for development",
		Long: `Run an etcd with one member for policies and permits until Ctrl-C, and print the
environment variables for programs that use it. No other service is needed.

It has no passwords, and listens on this machine only: --allow-remote lets it listen on other
addresses, where everyone can read and change all policies, unless clients need a certificate
(--tls-ca). With TLS, programs need ca=FILE in both URLs, and cert=FILE&key=FILE with --tls-ca.

It can allocate permits some hundred times a second. For more, start a Redis and set
THROTTLE_PERMITS=redis://127.0.0.1:6379.`,
		Example: `  throttle-admin dev
  throttle-admin dev --data ./throttle-etcd --listen 127.0.0.1:2379`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if serve.Remote(listen) && !remote {
				return cli.Usage(cli.ArgError("listen", listen,
					"other machines could read and change all policies without a password: "+
						"want 127.0.0.1:PORT, or --allow-remote as well"))
			}
			if _, err := secure.Config(); err != nil {
				return cli.Usage(err)
			}
			app.WarnOfFiles(secure.Key)
			ctx := cmd.Context()
			kept := dir != ""
			if !kept {
				if dir, err = os.MkdirTemp("", "throttle-dev-"); err != nil {
					return fmt.Errorf("dev: %w", err)
				}
				defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
			} else {
				lock, err := lockDir(dir)
				if err != nil {
					return fmt.Errorf("dev: %w", err)
				}
				defer func() { _ = lock.Close() }() // unlocks the directory
			}
			server, err := etcd.StartTLS(ctx, dir, listen, kept, secure)
			if err != nil {
				return fmt.Errorf("dev: %w", err)
			}
			defer server.Close()
			_, err = fmt.Fprintf(app.Stdout, "export %s=%s\nexport %s=%[2]s\n",
				throttle.EnvPolicies, etcd.URL(server), throttle.EnvPermits)
			if err != nil {
				return fmt.Errorf("dev: %w", err)
			}
			if kept {
				app.Warn("etcd runs until Ctrl-C; its data stays in %s", dir)
			} else {
				app.Warn("etcd runs until Ctrl-C; its data is removed then (--data DIR keeps it)")
			}
			select {
			case <-ctx.Done():
				return nil
			case err := <-server.Err():
				return fmt.Errorf("dev: etcd: %w", err)
			}
		},
	}
	cmd.Flags().StringVar(&dir, "data", "", "directory of the data (default a temporary one)")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0",
		"host:port for clients; port 0 means any free port")
	cmd.Flags().BoolVar(&remote, "allow-remote", false,
		"let --listen name an address that other machines reach; :port is all addresses")
	secure.Flags(cmd.Flags())
	return cmd
}

// lockDir creates a directory and locks it for this process until the lock is closed.
func lockDir(dir string) (*fileutil.LockedFile, error) {
	if err := os.MkdirAll(dir, fileutil.PrivateDirMode); err != nil {
		return nil, err
	}
	name := filepath.Join(dir, "dev.lock")
	lock, err := fileutil.TryLockFile(name, os.O_WRONLY|os.O_CREATE, fileutil.PrivateFileMode)
	if errors.Is(err, fileutil.ErrLocked) {
		return nil, cli.Hint(
			fmt.Errorf("%s: is used by another throttle-admin dev", dir),
			"stop that one, or use another directory: throttle-admin dev --data DIR")
	}
	return lock, err
}
