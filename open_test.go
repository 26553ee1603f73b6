package throttle_test

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// blackHole returns an address that accepts connections and never answers.
func blackHole(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
		}
	})
	t.Cleanup(func() { _ = l.Close(); accepting.Wait() })
	return l.Addr().String()
}

// refusing returns an address that refuses connections.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// TestOpenWithoutPolicyStore: Open fails in time, with the address that it tried, the reason, which
// is logged before, and no password.
func TestOpenWithoutPolicyStore(t *testing.T) {
	for name, c := range map[string]struct{ at, want string }{
		"refuses":    {refusing(t), "connection refused"},
		"black hole": {blackHole(t), "accepts connections and does not answer"},
	} {
		for _, user := range []string{"", "me:s3cret@"} {
			t.Run(name+user, func(t *testing.T) {
				t.Parallel()
				throttletest.Until(t, c.want, func() bool { // a probe on a busy machine may end too late
					var log throttletest.Log
					start := time.Now()
					_, err := throttle.Open(t.Context(), "etcd://"+user+c.at, "memory:",
						throttle.WithOpenTimeout(2500*time.Millisecond),
						throttle.WithLogger(log.Logger()))
					assert.GreaterOrEqual(t, time.Since(start), 2500*time.Millisecond)
					require.Error(t, err)
					for _, want := range []string{c.at, "no policies after 2.5s", "start the policy store"} {
						require.ErrorContains(t, err, want)
					}
					require.NotContains(t, err.Error()+log.String(), "s3cret")
					return strings.Contains(err.Error(), c.want) &&
						strings.Contains(log.String(), c.want) // before the end
				})
			})
		}
	}
}

// TestOpenFromCacheFile: a program with a cache file starts without etcd, and follows etcd once it
// is available.
func TestOpenFromCacheFile(t *testing.T) {
	node := services.Etcd(t)
	url, cache := "etcd://"+node.Endpoint, filepath.Join(t.TempDir(), "policies.json")
	const orders = "kafka://public/default/orders"
	scope, err := policy.ParseScope(orders)
	require.NoError(t, err)
	set := func(n int64) {
		store, err := throttle.OpenPolicies(t.Context(), url)
		require.NoError(t, err)
		_, err = store.Apply(t.Context(), configstore.Commit{Changes: []configstore.Change{{
			Key: configstore.Key{Scope: scope}, Settings: policy.Policy{MessageRate: policy.PerSecond(n)},
		}}})
		require.NoError(t, err)
		require.NoError(t, store.Close())
	}
	rate := func(lim *dispatch.Limiter) float64 {
		limits := lim.Stats().Subscriptions[0].Limits
		if len(limits) == 0 {
			return 0
		}
		return limits[0].Rate
	}
	var log throttletest.Log
	open := func(timeout time.Duration) *dispatch.Limiter {
		lim, err := throttle.Open(t.Context(), url, "memory:", throttle.WithCacheFile(cache),
			throttle.WithOpenTimeout(timeout), throttle.WithLogger(log.Logger()))
		require.NoError(t, err)
		_, err = lim.Subscription(orders, "billing")
		require.NoError(t, err)
		return lim
	}
	set(7)
	lim := open(throttletest.Patience)
	assert.InDelta(t, 7, rate(lim), 0)
	require.NoError(t, lim.Close())
	node.Stop()

	lim = open(3 * time.Second)
	assert.InDelta(t, 7, rate(lim), 0)
	assert.Contains(t, log.String(), "cache file")
	assert.Contains(t, log.String(), node.Endpoint+": ")
	assert.NotEmpty(t, lim.Stats().PolicyError)
	node.Start()
	set(9)
	require.Eventually(t, func() bool {
		return rate(lim) == 9 && lim.Stats().PolicyError == ""
	}, throttletest.Patience, 10*time.Millisecond)
	require.NoError(t, lim.Close())
}

// TestOpenMissingFile: a program needs its policy file, unless the URL allows it to be missing.
func TestOpenMissingFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "typo.yaml")
	// at once:
	_, err := throttle.Open(t.Context(), "file:"+name, "memory:", throttle.WithOpenTimeout(time.Hour))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, name)
	for _, url := range []string{"file:", "file:" + name + "?creat=true"} {
		_, err := throttle.Open(t.Context(), url, "memory:")
		require.ErrorContains(t, err, "throttle: policy store URL: ")
	}
	lim, err := throttle.Open(t.Context(), "file:"+name+"?create=true", "memory:")
	require.NoError(t, err)
	require.NoError(t, lim.Close())
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.Equal(t, "schema: 2\npolicies: []\n", string(text))
	require.NoError(t,
		os.WriteFile(name, []byte("schema: 2\npolicies:\n  - {scope: cluster, messageRate: 7/s}\n"), 0o600))
	lim, err = throttle.Open(t.Context(), "file:"+name, "memory:")
	require.NoError(t, err)
	_, err = lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(t, err)
	require.NoError(t, os.Remove(name))
	require.Eventually(t, func() bool { return lim.Stats().PolicyError != "" }, throttletest.Patience, 10*time.Millisecond)
	assert.InDelta(t, 7, lim.Stats().Subscriptions[0].Limits[0].Rate, 0, "the last policies stay in force")
	require.NoError(t, lim.Close())
}

// TestTLSMismatch: the error says that one side only uses TLS, not just that there was no answer.
func TestTLSMismatch(t *testing.T) {
	server, _ := services.TLS(t)
	plain, secure := services.Etcd(t).Endpoint, services.EtcdTLS(t, server).Endpoint
	for url, want := range map[string]string{
		"etcd://" + plain + "?tls=true": plain + ": no TLS handshake: the server seems to have no TLS",
		"etcd://" + secure:              secure + ": the server requires TLS: add ?tls=true",
	} {
		require.Eventually(t, func() bool { // a server on a busy machine may answer too late
			_, err := throttle.Open(t.Context(), url, "memory:", throttle.WithOpenTimeout(1500*time.Millisecond))
			return err != nil && strings.Contains(err.Error(), want)
		}, throttletest.Patience, time.Millisecond)
		permits, err := throttle.OpenPermits(url)
		require.NoError(t, err)
		if strings.HasSuffix(url, "true") {
			assert.Eventually(t, func() bool {
				_, err := permits.Published(t.Context(), "c")
				return err != nil && strings.Contains(err.Error(), want)
			}, throttletest.Patience, 10*time.Millisecond)
		}
		require.NoError(t, permits.Close())
	}
	withTLS := strings.TrimPrefix(services.RedisTLS(t, server).URL, "rediss://")
	without := strings.TrimPrefix(services.Redis(t), "redis://")
	for url, want := range map[string]string{
		"rediss://" + without: "if the server has none, use redis://",
		"redis://" + withTLS:  "if it wants TLS, use rediss://",
	} {
		permits, err := throttle.OpenPermits(url)
		require.NoError(t, err)
		assert.Eventually(t, func() bool {
			_, err = permits.Published(t.Context(), "c")
			return err != nil && strings.Contains(err.Error(), want)
		}, throttletest.Patience, 10*time.Millisecond, "%s: %v", url, err)
		require.NoError(t, permits.Close())
	}
}

// startFromCache opens a Limiter whose stores are both away and which has a cache file, and returns
// how long that took.
func startFromCache(t *testing.T, away func(*testing.T) string) time.Duration {
	t.Helper()
	cache := filepath.Join(t.TempDir(), "policies.json")
	text, err := policy.MarshalSnapshot(policy.Snapshot{
		Set: policy.Single(policy.Policy{MessageRate: policy.PerSecond(7)}), Identity: "a", Revision: 1,
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cache, text, 0o600))
	etcd, redis := "etcd://"+away(t)+"/throttle", "redis://"+away(t)
	start := time.Now()
	lim, err := throttle.Open(t.Context(), etcd, redis, throttle.WithCacheFile(cache))
	took := time.Since(start)
	require.NoError(t, err)
	sub, err := lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(t, err)
	require.InDelta(t, 7, lim.Stats().Subscriptions[0].Limits[0].Rate, 0)
	assert.NoError(t, sub.Close())
	assert.NoError(t, lim.Close())
	return took
}

// places are where a store may be that is away.
var places = map[string]func(*testing.T) string{"silent": blackHole, "refusing": refusing}

// TestStartsFromItsCache: a replica whose stores are both away limits.
func TestStartsFromItsCache(t *testing.T) {
	for name, away := range places {
		t.Run(name, func(t *testing.T) { startFromCache(t, away) })
	}
}

// TestAccuracyStart: a replica waits a second for the policies.
func TestAccuracyStart(t *testing.T) {
	for name, away := range places {
		t.Run(name, func(t *testing.T) {
			accuracy.Measure(t, func(m *accuracy.M) {
				m.AtMost("ready without its stores, s", startFromCache(t, away).Seconds(), 1.05)
			})
		})
	}
}
