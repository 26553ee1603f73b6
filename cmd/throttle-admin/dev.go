package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

func newDevCommand(app *app) *cobra.Command {
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
			etcd, err := startEtcd(ctx, dir, listen, kept)
			if err != nil {
				return fmt.Errorf("dev: %w", err)
			}
			defer etcd.Close()
			if _, err := fmt.Fprintf(app.stdout, "export THROTTLE_POLICIES=%s\nexport THROTTLE_PERMITS=%[1]s\n", etcdURL(etcd)); err != nil {
				return fmt.Errorf("dev: %w", err)
			}
			if kept {
				app.warn("etcd runs until Ctrl-C; its data stays in %s", dir)
			} else {
				app.warn("etcd runs until Ctrl-C; its data goes then (keep it with --data DIR)")
			}
			select {
			case <-ctx.Done():
				return nil
			case err := <-etcd.Err():
				return fmt.Errorf("dev: etcd: %w", err)
			}
		},
	}
	cmd.Flags().StringVar(&dir, "data", "", "directory to keep the policies in (default a temporary one)")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "host:port for clients, :port for those of all machines; port 0 takes a free one")
	return cmd
}

// startEtcd starts an etcd of one member with its data in dir; sync says that they must survive a crash of the machine.
func startEtcd(ctx context.Context, dir, listen string, sync bool) (*embed.Etcd, error) {
	if strings.HasPrefix(listen, ":") { // which etcd does not take for every address
		listen = "0.0.0.0" + listen
	}
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.UnsafeNoFsync = !sync
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	client, peer := url.URL{Scheme: "http", Host: listen}, url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("it is not ready after 10 s"))
	defer cancel()
	type outcome struct {
		etcd *embed.Etcd
		err  error
	}
	started := make(chan outcome, 1)
	go func() { // StartEtcd knows no context, and waits for ever if another etcd has the data
		etcd, err := embed.StartEtcd(cfg)
		if err == nil {
			select {
			case <-etcd.Server.ReadyNotify():
			case err = <-etcd.Err():
			case <-ctx.Done():
			}
			if err = cmp.Or(err, context.Cause(ctx)); err != nil {
				etcd.Close()
			}
		}
		started <- outcome{etcd, err}
	}()
	var got outcome
	select {
	case got = <-started:
	case <-ctx.Done():
		got.err = context.Cause(ctx)
		select {
		case got = <-started: // and closed
		case <-time.After(endTimeout):
		}
	}
	if got.err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", dir, got.err)
	}
	return got.etcd, nil
}

// endTimeout is how long an etcd that has begun to start may take to notice that it is not wanted any more.
const endTimeout = 3 * time.Second

// lockDir makes a directory, and takes it for this process until the lock is closed.
func lockDir(dir string) (*fileutil.LockedFile, error) {
	if err := os.MkdirAll(dir, fileutil.PrivateDirMode); err != nil {
		return nil, err
	}
	lock, err := fileutil.TryLockFile(filepath.Join(dir, "dev.lock"), os.O_WRONLY|os.O_CREATE, fileutil.PrivateFileMode)
	if errors.Is(err, fileutil.ErrLocked) {
		return nil, &hintError{fmt.Errorf("%s: is in use by another dev", dir), "end that one, or take another directory: throttle-admin dev --data DIR"}
	}
	return lock, err
}

// etcdURL is where the policies of an etcd are, as this machine finds it.
func etcdURL(etcd *embed.Etcd) string {
	addr := etcd.Clients[0].Addr().String()
	if host, port, err := net.SplitHostPort(addr); err == nil && net.ParseIP(host).IsUnspecified() {
		addr = net.JoinHostPort("127.0.0.1", port)
	}
	return "etcd://" + addr + "/throttle"
}
