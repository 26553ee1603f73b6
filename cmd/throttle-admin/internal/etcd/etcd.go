// Package etcd runs an etcd of one member in this process.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Start starts an etcd of one member with its data in dir; sync says that they must survive a crash of the machine.
func Start(ctx context.Context, dir, listen string, sync bool) (*embed.Etcd, error) {
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

// URL is where the policies of an etcd are, as this machine finds it.
func URL(etcd *embed.Etcd) string {
	addr := etcd.Clients[0].Addr().String()
	if host, port, err := net.SplitHostPort(addr); err == nil && net.ParseIP(host).IsUnspecified() {
		addr = net.JoinHostPort("127.0.0.1", port)
	}
	return "etcd://" + addr + "/throttle"
}
