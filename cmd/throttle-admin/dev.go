package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

func newDevCommand(app *app) *cobra.Command {
	var dir, listen string
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run an etcd for policies until Ctrl-C; needs nothing but this program",
		Long: `Run an etcd of one member for policies, until Ctrl-C, and print the environment that finds it.

Permits are kept by each process for itself (memory:). To share a limit between processes, start a
Redis and set THROTTLE_LEDGER=redis://127.0.0.1:6379 instead.`,
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
			}
			etcd, err := startEtcd(ctx, dir, listen, kept)
			if err != nil {
				return fmt.Errorf("dev: %w", err)
			}
			defer etcd.Close()
			if _, err := fmt.Fprintf(app.stdout, "export THROTTLE_STORE=%s\nexport THROTTLE_LEDGER=memory:\n", etcdURL(etcd)); err != nil {
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
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "host:port for clients; port 0 takes a free one")
	return cmd
}

// startEtcd starts an etcd of one member with its data in dir; sync says that they must survive a crash of the machine.
func startEtcd(ctx context.Context, dir, listen string, sync bool) (*embed.Etcd, error) {
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.UnsafeNoFsync = !sync
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	client, peer := url.URL{Scheme: "http", Host: listen}, url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", dir, err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err = <-etcd.Err():
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(10 * time.Second):
		err = errors.New("it is not ready after 10 s")
	}
	etcd.Close()
	return nil, fmt.Errorf("start etcd in %s: %w", dir, err)
}

// etcdURL is where the policies of an etcd are.
func etcdURL(etcd *embed.Etcd) string {
	return "etcd://" + etcd.Clients[0].Addr().String() + "/throttle"
}
