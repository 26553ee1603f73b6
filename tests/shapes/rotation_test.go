package shapes

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

const rotated = "ganz+geheim"

// replace writes what a file with a secret is to hold from now on.
func replace(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
}

// replaceAll replaces the authority, the certificate and the key of a server or client.
func replaceAll(t *testing.T, old, with services.Certificates) {
	t.Helper()
	for name, from := range map[string]string{old.CA: with.CA, old.Cert: with.Cert, old.Key: with.Key} {
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		replace(t, name, string(text))
	}
}

// consuming calls rotate while a Limiter dispatches, and checks that afterwards it allocates
// permits again by itself.
func consuming(t *testing.T, policies dispatch.PolicySource, permitsURL string, rotate func()) {
	t.Helper()
	lim, err := dispatch.Open(t.Context(), dispatch.Config{
		Policies: policies, Permits: open(t, permitsURL), Cluster: services.Name(t),
	})
	require.NoError(t, err)
	sub, err := lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(t, err)
	var consumer sync.WaitGroup
	defer consumer.Wait()
	defer func() { assert.NoError(t, lim.Close()) }()
	consumer.Go(func() {
		for {
			if _, err := sub.Acquire(t.Context(), 1); err != nil {
				return
			}
		}
	})
	allocates := func() {
		t.Helper()
		before := lim.Stats().Permits
		require.Eventually(t, func() bool {
			now := lim.Stats().Permits
			return !now.Unavailable && now.Requests-now.Errors > before.Requests-before.Errors+2
		}, throttletest.Patience, 10*time.Millisecond)
	}
	allocates()
	rotate()
	start := time.Now()
	allocates()
	t.Logf("recovered after %v", time.Since(start))
}

// TestRedisPasswordRotation: the password of a running Redis changes, then the file with it, and
// all connections end.
func TestRedisPasswordRotation(t *testing.T) {
	t.Parallel()
	limit := dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(1000)})
	for user, command := range map[string][]any{
		"":         {"CONFIG", "SET", "requirepass", rotated},
		"throttle": {"ACL", "SETUSER", "throttle", "resetpass", ">" + rotated},
	} {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			r := services.RedisServer(t, "--requirepass", password, "--user", "throttle", "on",
				">"+password, "~*", "&*", "+@all")
			admin := redis.NewClient(&redis.Options{Addr: r.Addr, Password: password})
			defer func() { assert.NoError(t, admin.Close()) }()
			file := secret(t, password)
			url := "redis://" + user + "@" + r.Addr + "?password-file=" + file
			consuming(t, limit, url, func() {
				ctx := t.Context()
				require.NoError(t, admin.Do(ctx, command...).Err())
				replace(t, file, rotated+"\n")
				require.NoError(t, admin.ClientKillByFilter(ctx, "SKIPME", "yes").Err())
			})
			works(t, open(t, url))
		})
	}
}

// TestRedisCertificateRotation: the authority, and all certificates with it, are replaced.
func TestRedisCertificateRotation(t *testing.T) {
	t.Parallel()
	server, client := services.TLS(t)
	nextServer, nextClient := services.TLS(t)
	r := services.RedisTLS(t, server)
	admin := redis.NewClient(&redis.Options{Addr: r.Addr})
	defer func() { assert.NoError(t, admin.Close()) }()
	url := r.URL + "?ca=" + client.CA + "&cert=" + client.Cert + "&key=" + client.Key
	consuming(t, dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(1000)}), url, func() {
		replaceAll(t, server, nextServer)
		replaceAll(t, client, nextClient)
		ctx := t.Context()
		require.NoError(t, admin.Do(ctx, "CONFIG", "SET", "tls-ca-cert-file", server.CA,
			"tls-cert-file", server.Cert, "tls-key-file", server.Key).Err())
		require.NoError(t, admin.ClientKillByFilter(ctx, "SKIPME", "yes").Err())
	})
}

// TestEtcdRotation: the password of an etcd's user changes, then the file with it; later the
// authority and all certificates are replaced while etcd restarts. Policies are followed, too.
func TestEtcdRotation(t *testing.T) {
	t.Parallel()
	server, client := services.TLS(t)
	nextServer, nextClient := services.TLS(t)
	e := etcdWithUsers(t, server)
	file := secret(t, password)
	options := "?password-file=" + file + "&ca=" + client.CA + "&cert=" + client.Cert + "&key=" + client.Key
	url := "etcd://throttle@" + e.Endpoint + "/throttle" + options
	rootURL := strings.Replace(url, "throttle@", "root@", 1)
	rootURL = strings.Replace(rootURL, file, secret(t, password), 1)
	set := func(rate int64) {
		t.Helper()
		root, err := throttle.OpenPolicies(t.Context(), rootURL)
		require.NoError(t, err)
		defer func() { assert.NoError(t, root.Close()) }()
		_, err = configstore.Edit(t.Context(), root, configstore.By{}, func(s configstore.Snapshot) ([]configstore.Change, error) {
			return s.Set(policy.ClusterScope(), policy.Policy{MessageRate: policy.PerSecond(rate)}), nil
		})
		require.NoError(t, err)
	}
	set(1000)
	policies, err := throttle.OpenPolicies(t.Context(), url)
	require.NoError(t, err)
	defer func() { assert.NoError(t, policies.Close()) }()
	lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: configstore.Source(policies), Permits: open(t, "memory:")})
	require.NoError(t, err)
	defer func() { assert.NoError(t, lim.Close()) }()
	_, err = lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(t, err)
	follows := func(rate float64) {
		t.Helper()
		require.Eventually(t, func() bool {
			limits := lim.Stats().Subscriptions[0].Limits
			return len(limits) == 1 && limits[0].Rate == rate
		}, throttletest.Patience, 10*time.Millisecond)
	}
	follows(1000)
	consuming(t, configstore.Source(policies), url, func() {
		root := e.UserClient("root", password)
		_, err := root.UserChangePassword(t.Context(), "throttle", rotated)
		require.NoError(t, err)
		time.Sleep(200 * time.Millisecond) // the file follows later
		replace(t, file, rotated)
	})
	set(900)
	follows(900)
	consuming(t, configstore.Source(policies), url, func() {
		e.Stop()
		replaceAll(t, server, nextServer)
		replaceAll(t, client, nextClient)
		e.Start()
	})
	set(800)
	follows(800)
}
