// Package dev has the command that runs an etcd for policies and permits.
package dev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/etcd"
)

// Commands returns the commands of this family.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newDevCommand(a)}
}

func newDevCommand(app *cli.App) *cobra.Command {
	var dir, listen string
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run an etcd for policies and permits until Ctrl-C; needs nothing but this program",
		Long: `Run an etcd of one member for policies and permits, until Ctrl-C, and print the environment that finds it.

It allocates some hundred times a second. For more, start a Redis and set
THROTTLE_PERMITS=redis://127.0.0.1:6379 instead.`,
		Example: "  throttle-admin dev --data ./throttle-etcd --listen 127.0.0.1:2379",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
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
				defer func() { _ = lock.Close() }() // which gives the lock back
			}
			server, err := etcd.Start(ctx, dir, listen, kept)
			if err != nil {
				return fmt.Errorf("dev: %w", err)
			}
			defer server.Close()
			if _, err := fmt.Fprintf(app.Stdout, "export THROTTLE_POLICIES=%s\nexport THROTTLE_PERMITS=%[1]s\n", etcd.URL(server)); err != nil {
				return fmt.Errorf("dev: %w", err)
			}
			if kept {
				app.Warn("etcd runs until Ctrl-C; its data stays in %s", dir)
			} else {
				app.Warn("etcd runs until Ctrl-C; its data goes then (keep it with --data DIR)")
			}
			select {
			case <-ctx.Done():
				return nil
			case err := <-server.Err():
				return fmt.Errorf("dev: etcd: %w", err)
			}
		},
	}
	cmd.Flags().StringVar(&dir, "data", "", "directory to keep the policies in (default a temporary one)")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "host:port for clients, :port for those of all machines; port 0 takes a free one")
	return cmd
}

// lockDir makes a directory, and takes it for this process until the lock is closed.
func lockDir(dir string) (*fileutil.LockedFile, error) {
	if err := os.MkdirAll(dir, fileutil.PrivateDirMode); err != nil {
		return nil, err
	}
	lock, err := fileutil.TryLockFile(filepath.Join(dir, "dev.lock"), os.O_WRONLY|os.O_CREATE, fileutil.PrivateFileMode)
	if errors.Is(err, fileutil.ErrLocked) {
		return nil, cli.Hint(fmt.Errorf("%s: is in use by another dev", dir), "end that one, or take another directory: throttle-admin dev --data DIR")
	}
	return lock, err
}
