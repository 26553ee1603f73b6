// Package etcd runs an etcd with one member in this process.
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

// Start starts an etcd with one member and its data in dir. With sync, the data survives a crash
// of the machine.
func Start(ctx context.Context, dir, listen string, sync bool) (*embed.Etcd, error) {
	if strings.HasPrefix(listen, ":") { // etcd wants an address
		listen = "0.0.0.0" + listen
	}
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.UnsafeNoFsync = !sync
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	client := url.URL{Scheme: "http", Host: listen}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("not ready after 10 s"))
	defer cancel()
	type outcome struct {
		etcd *embed.Etcd
		err  error
	}
	started := make(chan outcome, 1)
	go func() { // StartEtcd has no context, and waits forever if another etcd uses the data
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
		case got = <-started: // it is closed already
		case <-time.After(stopTimeout):
		}
	}
	if got.err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", dir, got.err)
	}
	return got.etcd, nil
}

// stopTimeout bounds the wait for an etcd that was starting when the context ended.
const stopTimeout = 3 * time.Second

// URL returns the URL of the policy store and the permit store in an etcd, for this machine.
func URL(etcd *embed.Etcd) string {
	addr := etcd.Clients[0].Addr().String()
	if host, port, err := net.SplitHostPort(addr); err == nil && net.ParseIP(host).IsUnspecified() {
		addr = net.JoinHostPort("127.0.0.1", port)
	}
	return "etcd://" + addr + "/throttle"
}
