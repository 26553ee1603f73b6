package throttle_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestNoPermitStore: a limit split among a fixed number of replicas needs no permit store; another
// limit follows onOutage.
func TestNoPermitStore(t *testing.T) {
	for sharing, want := range map[policy.SharingMode]int{policy.Split: 100, policy.Fair: 0} {
		synctest.Test(t, func(t *testing.T) {
			permits, err := throttle.OpenPermits("none:")
			require.NoError(t, err)
			p := policy.Policy{
				MessageRate: policy.PerSecond(200), Sharing: policy.Sharing{Mode: sharing, Replicas: new(int64(2))},
				OnOutage: policy.OutageStop,
			}
			lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: dispatch.Fixed(p), Permits: permits})
			require.NoError(t, err)
			sub, err := lim.Subscription("kafka://public/default/orders", "billing")
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			got := 0
			for {
				if _, err := sub.Acquire(ctx, 1); err != nil {
					break
				}
				got++
			}
			cancel()
			assert.LessOrEqual(t, got, want+2)
			assert.GreaterOrEqual(t, got, want*8/10)
			assert.NoError(t, lim.Close())
		})
	}
}

func TestBadURLs(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"", `scheme "": unknown`},
		{"zookeeper://a", `scheme "zookeeper": unknown`},
		{"geheim@host", "no scheme"},
		{"etcd://user:ge/heim@a:1", "percent-encoded"},
		{"etcd://user:ge?heim@a:1", "percent-encoded"},
		{"etcd://h:1:2:3", "host 1:"},
		{"etcd://", "host 1:"},
		{"etcd://a:1?colour=red", "option colour"},
		{"etcd://user:geheim%zz@a:1", "percent-encoded"},
		{"etcd://user:geheim@:1/x?tls=maybe", "host 1:"},
		{"etcd://user:geheim@a:1/x?tls=maybe", "want true or false"},
		{"etcd://user:geheim@a:1?ca=/does/not/exist", "option ca"},
		{"etcd://user:geheim@a:1?password-file=/does/not/exist", "password-file"},
		{"etcd://a:1?key=/does/not/exist", "option cert and option key: one is missing"},
		{"etcd://user:geheim@a:1?tls=false&server-name=b", "option tls: false contradicts option server-name"},
		{"etcd://a:1?cert=/does/not/exist", "option cert and option key: one is missing"},
		{"etcd://a:1?cert=/does/not/exist&key=/does/not/exist", "option cert and option key: open"},
		{"etcd://127.0.0.1:abc", "host 1: want host:port"},
		{"etcd://127.0.0.1:1,127.0.0.1:99999", "host 2: want host:port"},
		{"etcd://a:0", "host 1: want host:port"},
		{"etcd://a:+1", "host 1: want host:port"},
		{"etcd://user:geheim@h1:2379,user:geheim@h2:2379", "before the first host"},
		{"etcd://user:ge@heim@h1:2379", "percent-encoded"},
		{"etcd://user:geheim", "host 1: want host:port"},
		{"etcd://user:ge:heim", "host 1: want host:port"},
		{"etcd://user:ge,heim", "host 1: want host:port"},
		{"etcd://user:ge?heim", "host 1: want host:port"},
	} {
		_, err := throttle.OpenPolicies(t.Context(), c.url)
		require.ErrorContains(t, err, c.want, c.url)
		assert.NotContains(t, err.Error(), "heim")
	}
	for _, c := range []struct{ url, want string }{
		{"", `scheme "": unknown`},
		{"redis://user:geheim@a:1,b:2", "use redis+cluster"},
		{"redis://user:geheim@a:1/orders", "database"},
		{"redis+cluster://:geheim@a:1,b:2/1", "database"},
		{"rediss://user:geheim@a:1?cert=/does/not/exist", "option cert and option key"},
		{"redis://user:geheim@a:1?key=/does/not/exist", "option cert and option key"},
		{"redis://h:abc", "host 1: want host:port"},
		{"redis://default:geheim", "host 1: want host:port"},
		{"redis://default:ge/heim", "host 1: want host:port"},
	} {
		_, err := throttle.OpenPermits(c.url)
		require.ErrorContains(t, err, c.want, c.url)
		assert.NotContains(t, err.Error(), "heim")
	}
}

// TestServerNameTurnsTLSOn: an option that only TLS can check is not ignored.
func TestServerNameTurnsTLSOn(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { assert.NoError(t, ln.Close()) }()
	permits, err := throttle.OpenPermits("redis://" + ln.Addr().String() + "?server-name=x")
	require.NoError(t, err)
	var asked sync.WaitGroup
	asked.Go(func() { _, _ = permits.Published(t.Context(), "c") })
	conn, err := ln.Accept()
	require.NoError(t, err)
	first := make([]byte, 1)
	_, err = conn.Read(first)
	require.NoError(t, err)
	assert.Equal(t, byte(22), first[0], "the first byte is not that of a TLS handshake")
	require.NoError(t, conn.Close())
	require.NoError(t, permits.Close())
	asked.Wait()
}

// TestTimeoutOption: the option timeout is checked, and is what the store begins with.
func TestTimeoutOption(t *testing.T) {
	for _, scheme := range []string{"redis", "redis+cluster", "etcd"} {
		permits, err := throttle.OpenPermits(scheme + "://127.0.0.1:1?timeout=850ms")
		require.NoError(t, err)
		assert.Equal(t, 850*time.Millisecond, permits.Timeout())
		assert.NoError(t, permits.Close())
		for _, wrong := range []string{"850", "9ms", "11s", "-1s"} {
			_, err := throttle.OpenPermits(scheme + "://127.0.0.1:1?timeout=" + wrong)
			assert.ErrorContains(t, err, `option timeout: "`+wrong+`": want a duration of 10ms to 10s`)
		}
	}
	_, err := throttle.OpenPolicies(t.Context(), "etcd://127.0.0.1:1?timeout=1s")
	assert.ErrorContains(t, err, "option timeout: unknown")
}

func TestGoodURLs(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("geheim\n"), 0o600))
	for _, url := range []string{
		"memory:", "redis://localhost", "redis://[::1]:6379/2", "rediss://user:p%40ss@a:1",
		"redis+cluster://a:1,b:2?tls=true", "redis://a?password-file=" + secret,
		"redis://a?timeout=1s", "redis+sentinel://a?master=m&timeout=50ms", "etcd://a?timeout=800ms",
	} {
		permits, err := throttle.OpenPermits(url)
		require.NoError(t, err, url)
		assert.NoError(t, permits.Close())
	}
	for _, url := range []string{"memory:", "etcd://a:1,b,[::1]:3/prefix/of/mine", "etcd://user:p%40ss@a"} {
		store, err := throttle.OpenPolicies(t.Context(), url)
		require.NoError(t, err, url)
		assert.NoError(t, store.Close())
	}
}

func TestFromEnvNamesMissingVariables(t *testing.T) {
	t.Setenv(throttle.EnvPolicies, "")
	t.Setenv(throttle.EnvPermits, "")
	_, err := throttle.FromEnv(t.Context())
	require.ErrorContains(t, err, "THROTTLE_POLICIES")
	require.ErrorContains(t, err, "THROTTLE_PERMITS")
}

// TestFromEnvInNumaflow: a replica has the name that Numaflow gives it, unless an option sets one.
func TestFromEnvInNumaflow(t *testing.T) {
	t.Setenv(throttle.EnvPolicies, "memory:")
	t.Setenv(throttle.EnvPermits, "memory:")
	replica := func(opts ...throttle.Option) string {
		lim, err := throttle.FromEnv(t.Context(), opts...)
		require.NoError(t, err)
		defer func() { require.NoError(t, lim.Close()) }()
		return lim.Stats().Replica
	}
	t.Setenv("NUMAFLOW_NAMESPACE", "team")
	t.Setenv("NUMAFLOW_REPLICA", "2")
	host, err := os.Hostname()
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(replica(), host), "no vertex")
	t.Setenv("NUMAFLOW_PIPELINE_NAME", "fraud")
	t.Setenv("NUMAFLOW_VERTEX_NAME", "score")
	assert.Equal(t, "team/fraud/score-2", replica())
	t.Setenv("NUMAFLOW_UD_CONTAINER_TYPE", "udf")
	assert.Equal(t, "team/fraud/score-2-udf", replica())
	t.Setenv("NUMAFLOW_MONO_VERTEX_NAME", "orders")
	assert.Equal(t, "team/orders-2-udf", replica())
	assert.Equal(t, "mine", replica(throttle.WithReplica("mine")))
}

func TestOpen(t *testing.T) {
	lim, err := throttle.Open(t.Context(), "memory:", "memory:", throttle.WithCluster("c"), throttle.WithReplica("r"))
	require.NoError(t, err)
	assert.Equal(t, "c", lim.Stats().Cluster)
	assert.Equal(t, "r", lim.Stats().Replica)
	require.NoError(t, lim.Close())
	require.NoError(t, lim.Close())
}

// TestNoPolicyStoreWithAnError: an error comes with a nil interface, not with a nil pointer in one.
func TestNoPolicyStoreWithAnError(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, url := range []string{"", "etcd://", "etcd://a:1?colour=red", "file:", "etcd://a:1"} {
		store, err := throttle.OpenPolicies(ended, url)
		require.Error(t, err, url)
		assert.True(t, store == nil, "%s: the store is a %T", url, store)
	}
}
