package services

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// EtcdURL returns the URL of an etcd with a prefix of the test's own, etcd://host:port/prefix: the
// etcd at THROTTLE_TEST_ETCD (host:port) or, without it, one that ends with the test.
func EtcdURL(t testing.TB) string {
	t.Helper()
	endpoint := strings.TrimPrefix(os.Getenv(etcdEnv), "etcd://")
	if endpoint == "" {
		endpoint = Etcd(t).Endpoint
	}
	return "etcd://" + endpoint + "/" + Name(t)
}

// An EtcdNode is an etcd of one member. Its methods fail the test if they fail, and must be called
// from the test's goroutine.
type EtcdNode struct {
	Endpoint string // host:port

	t testing.TB
	etcdMember
}

// Etcd starts an etcd that ends with the test. It ignores the environment.
func Etcd(t testing.TB) *EtcdNode { t.Helper(); return EtcdTLS(t, Certificates{}) }

// EtcdWithQuota is Etcd with a quota of that many bytes for its data.
func EtcdWithQuota(t testing.TB, quota int64) *EtcdNode {
	t.Helper()
	return startEtcd(t, Certificates{}, "--quota-backend-bytes", strconv.FormatInt(quota, 10))
}

// EtcdTLS is Etcd with TLS, if there are certificates; its clients then need one of the same
// authority.
func EtcdTLS(t testing.TB, server Certificates) *EtcdNode {
	t.Helper()
	if server.CA == "" {
		return startEtcd(t, server)
	}
	return startEtcd(t, server, "--client-cert-auth", "--trusted-ca-file", server.CA,
		"--cert-file", server.Cert, "--key-file", server.Key)
}

func startEtcd(t testing.TB, tls Certificates, args ...string) *EtcdNode {
	t.Helper()
	m := etcdMember{
		name: "default", endpoint: hostPort(freePort(t)), tls: tls, dir: t.TempDir(),
		args: append(args, "--heartbeat-interval", "10", "--election-timeout", "100"),
	}
	peer := "http://" + hostPort(freePort(t))
	m.join(peer, peer, m.name+"="+peer)
	e := &EtcdNode{Endpoint: m.endpoint, t: t, etcdMember: m}
	t.Cleanup(func() { e.check(e.end(syscall.SIGKILL)) }) // also if it does not get ready
	e.Start()
	return e
}

func (e *EtcdNode) check(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatalf("services: etcd: %v", err)
	}
}

// Start starts a stopped server again, on the same port and with its data, and returns when it is
// ready.
func (e *EtcdNode) Start() { e.t.Helper(); e.check(e.start()) }

// Stop stops the server, and keeps its data for the next Start. A second call does nothing.
func (e *EtcdNode) Stop() { e.t.Helper(); e.check(e.end(syscall.SIGTERM)) }

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
	cfg.TLS, err = e.tls.client()
	e.check(err)
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
