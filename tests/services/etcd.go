package services

import (
	"cmp"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// EtcdURL returns the URL of an etcd with a prefix of the test's own, etcd://host:port/prefix: the
// etcd at THROTTLE_TEST_ETCD (host:port) or, without it, one that ends with the test.
func EtcdURL(t testing.TB) string {
	t.Helper()
	endpoint := strings.TrimPrefix(os.Getenv("THROTTLE_TEST_ETCD"), "etcd://")
	if endpoint == "" {
		endpoint = Etcd(t).Endpoint
	}
	return "etcd://" + endpoint + "/" + Name(t)
}

// An EtcdNode is an etcd of one member within the test process. Its methods fail the test if they
// fail, and must be called from the test's goroutine.
type EtcdNode struct {
	Endpoint string // host:port

	t      testing.TB
	tls    Certificates // none: no TLS
	peer   string
	dir    string
	quota  int64       // bytes of data; 0 = etcd's default
	server *embed.Etcd // nil while stopped
}

// Etcd starts an etcd that ends with the test. It ignores the environment.
func Etcd(t testing.TB) *EtcdNode { t.Helper(); return EtcdTLS(t, Certificates{}) }

// EtcdWithQuota is Etcd with a quota of that many bytes for its data.
func EtcdWithQuota(t testing.TB, quota int64) *EtcdNode {
	t.Helper()
	return startEtcd(t, &EtcdNode{quota: quota})
}

// EtcdTLS is Etcd with TLS, if there are certificates; its clients then need one of the same
// authority.
func EtcdTLS(t testing.TB, server Certificates) *EtcdNode {
	t.Helper()
	return startEtcd(t, &EtcdNode{tls: server})
}

func startEtcd(t testing.TB, e *EtcdNode) *EtcdNode {
	t.Helper()
	e.t, e.dir = t, t.TempDir()
	e.Endpoint, e.peer = hostPort(freePort(t)), hostPort(freePort(t))
	e.Start()
	t.Cleanup(e.Stop)
	return e
}

// Start starts a stopped server again, on the same port and with its data, and returns when it is
// ready.
func (e *EtcdNode) Start() {
	e.t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.QuotaBackendBytes = e.dir, e.quota
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.UnsafeNoFsync = true // the data need not survive a power failure
	cfg.BcryptCost = 4       // the default takes a second with the race detector
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	client, peer := url.URL{Scheme: "http", Host: e.Endpoint}, url.URL{Scheme: "http", Host: e.peer}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	if e.tls.CA != "" {
		client.Scheme = "https"
		cfg.ClientTLSInfo = e.tls.info()
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	var server *embed.Etcd
	err := waitFor(10*time.Second, func() (err error) {
		// A process that was being started when this etcd stopped has inherited its socket for a moment.
		if server, err = embed.StartEtcd(cfg); err != nil && !errors.Is(err, syscall.EADDRINUSE) {
			e.t.Fatalf("services: start etcd: %v", err)
		}
		return err
	})
	if err != nil {
		e.t.Fatalf("services: start etcd: %v", err)
	}
	e.server = server
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		e.t.Fatalf("services: start etcd: %v", err)
	case <-time.After(10 * time.Second):
		e.t.Fatal("services: etcd is not ready after 10 s")
	}
}

func (c Certificates) info() transport.TLSInfo {
	return transport.TLSInfo{
		TrustedCAFile: c.CA, CertFile: c.Cert, KeyFile: c.Key, ClientCertAuth: true,
	}
}

// Stop stops the server, and keeps its data for the next Start. A second call does nothing.
func (e *EtcdNode) Stop() {
	if e.server != nil {
		e.server.Close()
		e.server = nil
	}
}

// Backup returns a copy of a stopped server's data.
func (e *EtcdNode) Backup() (dir string) {
	e.t.Helper()
	dir = filepath.Join(e.t.TempDir(), "backup")
	if err := os.CopyFS(dir, os.DirFS(e.dir)); err != nil {
		e.t.Fatalf("services: back etcd up: %v", err)
	}
	return dir
}

// Restore replaces the data of a stopped server by those of Backup.
func (e *EtcdNode) Restore(backup string) {
	e.t.Helper()
	e.dir = backup
}

// Client returns a client of the server, which is closed at the end of the test.
func (e *EtcdNode) Client() *clientv3.Client { e.t.Helper(); return e.UserClient("", "") }

// UserClient is Client for a user.
func (e *EtcdNode) UserClient(user, password string) *clientv3.Client {
	e.t.Helper()
	cfg := clientv3.Config{
		Endpoints: []string{e.Endpoint}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		Username: user, Password: password,
	}
	var err error
	if e.tls.CA != "" {
		if cfg.TLS, err = e.tls.info().ClientConfig(); err != nil {
			e.t.Fatalf("services: etcd client: %v", err)
		}
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		e.t.Fatalf("services: etcd client: %v", err)
	}
	e.t.Cleanup(func() { _ = client.Close() }) // the server may be gone
	return client
}

// Compact removes all history up to now, so that a watch from an earlier revision is refused.
func (e *EtcdNode) Compact() {
	e.t.Helper()
	client := e.Client()
	ctx := e.t.Context()
	now, err := client.Get(ctx, "x")
	if err == nil {
		_, err = client.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err = cmp.Or(err, client.Close()); err != nil {
		e.t.Errorf("services: compact etcd: %v", err)
	}
}
