package services

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A RedisFailover is a Redis with a replica, and three Sentinels for both.
type RedisFailover struct {
	URL             string // redis+sentinel://host:port,host:port,host:port?master=throttle
	Master, Replica *RedisProcess
	Sentinels       []*RedisProcess

	t               testing.TB
	master, replica string // their hosts and ports, as the Sentinels know them
}

// RedisSentinel starts a master, a replica and three Sentinels, which consider the master dead when
// it has not answered for down. It ignores the environment, and returns when a failover is
// possible. All end with the test.
func RedisSentinel(t testing.TB, down time.Duration) *RedisFailover {
	t.Helper()
	return RedisSentinelTLS(t, down, Certificates{})
}

// RedisSentinelTLS is RedisSentinel with TLS between all of them, if there are certificates; see
// [RedisTLS].
func RedisSentinelTLS(t testing.TB, down time.Duration, server Certificates) *RedisFailover {
	t.Helper()
	f := &RedisFailover{t: t}
	start := func(args ...string) (r *RedisProcess, addr string) {
		args = append(args, "--repl-diskless-sync-delay", "0")
		if server.CA == "" {
			r = RedisServer(t, args...)
		} else {
			r = RedisTLS(t, server, append(args, "--tls-replication", "yes")...)
		}
		_, addr, _ = strings.Cut(r.URL, "://")
		return r, strings.Replace(addr, ":", " ", 1)
	}
	f.Master, f.master = start()
	f.Replica, f.replica = start("--replicaof", f.master)
	f.await("the replica", func() error {
		return f.says(f.Replica, "master_link_status:up", "INFO", "replication")
	})
	var addrs []string
	for range 3 {
		port, tlsPort := freePort(t), freePort(t)
		text := fmt.Sprintf(`port %d
bind 127.0.0.1
sentinel monitor throttle %s 2
sentinel down-after-milliseconds throttle %d
sentinel failover-timeout throttle 2000
`, port, f.master, down.Milliseconds())
		addr := hostPort(port)
		if server.CA != "" {
			text += fmt.Sprintf("tls-port %d\ntls-ca-cert-file %s\ntls-cert-file %s\n"+
				"tls-key-file %s\ntls-replication yes\n",
				tlsPort, server.CA, server.Cert, server.Key)
			addr = hostPort(tlsPort)
		}
		conf := filepath.Join(t.TempDir(), "sentinel.conf") // rewritten by the Sentinel
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f.Sentinels = append(f.Sentinels, startRedis(t, port, nil, conf, "--sentinel"))
		do(t, hostPort(port), "SENTINEL", "DEBUG", "PUBLISH-PERIOD", 200, "INFO-PERIOD", 500)
		addrs = append(addrs, addr)
	}
	f.URL = "redis+sentinel://" + strings.Join(addrs, ",") + "?master=throttle"
	for _, s := range f.Sentinels {
		f.await("a Sentinel", func() error {
			return f.says(s,
				"status=ok,address="+strings.Replace(f.master, " ", ":", 1)+",slaves=1,sentinels=3",
				"INFO", "sentinel")
		})
	}
	return f
}

// Elected waits until the Sentinels have made the replica the master, and all of them know.
func (f *RedisFailover) Elected() {
	f.t.Helper()
	for _, s := range f.Sentinels {
		f.await("a new master", func() error {
			return f.says(s, "address="+strings.Replace(f.replica, " ", ":", 1), "INFO", "sentinel")
		})
	}
	f.await("a new master", func() error {
		return f.says(f.Replica, "role:master", "INFO", "replication")
	})
}

// Detach stops the replication: a failover loses what is written to the master from now on.
func (f *RedisFailover) Detach() {
	f.t.Helper()
	// Without these rights the replica cannot reconnect.
	do(f.t, f.Master.Addr, "ACL", "SETUSER", "default", "-psync", "-sync")
	do(f.t, f.Master.Addr, "CLIENT", "KILL", "TYPE", "replica")
	f.await("the replica's end", func() error {
		return f.says(f.Replica, "master_link_status:down", "INFO", "replication")
	})
}

func (f *RedisFailover) says(r *RedisProcess, want string, command ...any) error {
	f.t.Helper()
	if got := fmt.Sprint(do(f.t, r.Addr, command...)); !strings.Contains(got, want) {
		return fmt.Errorf("%s does not say %q but %s", r.Addr, want, got)
	}
	return nil
}

func (f *RedisFailover) await(what string, ready func() error) {
	f.t.Helper()
	if err := waitFor(ready); err != nil {
		f.t.Fatalf("services: wait for %s: %v", what, err)
	}
}
