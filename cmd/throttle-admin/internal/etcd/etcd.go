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

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/serve"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/configstore/etcd"
)

// Start starts an etcd with one member and its data in dir, whose policies it adopts. With sync,
// the data survives a crash of the machine.
func Start(ctx context.Context, dir, listen string, sync bool) (*embed.Etcd, error) {
	return StartTLS(ctx, dir, listen, sync, serve.TLS{})
}

// StartTLS is Start with TLS for clients, if there are files for it.
func StartTLS(
	ctx context.Context, dir, listen string, sync bool, secure serve.TLS,
) (*embed.Etcd, error) {
	if strings.HasPrefix(listen, ":") { // etcd wants an address
		listen = "0.0.0.0" + listen
	}
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.UnsafeNoFsync = !sync
	closeToBrowsers(cfg, listen)
	// Each allocation of permits is a revision; nothing reads old ones.
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, "1m"
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	client := url.URL{Scheme: "http", Host: listen}
	if secure != (serve.TLS{}) {
		client.Scheme = "https"
		cfg.ClientTLSInfo = transport.TLSInfo{
			CertFile: secure.Cert, KeyFile: secure.Key, TrustedCAFile: secure.ClientCA,
			ClientCertAuth: secure.ClientCA != "",
		}
	}
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
				etcd = nil
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
		case got = <-started: // it is closed
		case <-time.After(stopTimeout):
		}
	}
	if got.err == nil {
		got.err = adopt(ctx, got.etcd)
	}
	if got.err != nil {
		if got.etcd != nil {
			got.etcd.Close()
		}
		return nil, fmt.Errorf("start etcd in %s: %w", dir, got.err)
	}
	return got.etcd, nil
}

// closeToBrowsers leaves pages that a browser shows no way to read what is stored: no gateway from
// HTTP/1 to etcd's API, no other origins, and no other hosts, which may be names of the page's own
// that lead here (DNS rebinding). Clients of etcd speak HTTP/2, where the host is not checked.
func closeToBrowsers(cfg *embed.Config, listen string) {
	cfg.EnableGRPCGateway = false
	cfg.CORS = map[string]struct{}{"none": {}} // an empty map allows all
	cfg.HostWhitelist = map[string]struct{}{"localhost": {}, "127.0.0.1": {}, "::1": {}}
	host, _, _ := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		cfg.HostWhitelist[host] = struct{}{}
	}
}

// adopt adopts the policies of a new etcd. All have the same id, so that programs follow the next
// one too.
func adopt(ctx context.Context, server *embed.Etcd) error {
	client := v3client.New(server.Server) // within this process: it needs no certificate
	defer func() { _ = client.Close() }() // ends its context, and says so
	store := etcd.New(client, prefix)
	s, err := store.List(ctx)
	if err == nil && s.Marker == (configstore.Marker{}) {
		_, err = store.Adopt(ctx, configstore.Adoption{ID: "dev"})
	}
	return errors.Join(err, store.Close())
}

const prefix = "/throttle"

// stopTimeout bounds the wait for an etcd that was starting when the context ended.
const stopTimeout = 3 * time.Second

// URL returns the URL of the policy store and the permit store in an etcd, for this machine.
func URL(server *embed.Etcd) string {
	addr := server.Clients[0].Addr().String()
	if host, port, err := net.SplitHostPort(addr); err == nil && net.ParseIP(host).IsUnspecified() {
		addr = net.JoinHostPort("127.0.0.1", port)
	}
	text := "etcd://" + addr + prefix
	if !server.Config().ClientTLSInfo.Empty() {
		text += "?tls=true"
	}
	return text
}
