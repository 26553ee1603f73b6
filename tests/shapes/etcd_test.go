package shapes

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// etcdWithUsers starts an etcd over TLS with the users root and throttle. The rights of throttle
// are limited to /throttle/.
func etcdWithUsers(t *testing.T, server services.Certificates) *services.EtcdNode {
	t.Helper()
	e := services.EtcdTLS(t, server)
	client, ctx := e.Client(), t.Context()
	for _, user := range []string{"root", "throttle"} {
		_, err := client.UserAdd(ctx, user, password)
		require.NoError(t, err)
		_, err = client.RoleAdd(ctx, user)
		require.NoError(t, err)
		_, err = client.UserGrantRole(ctx, user, user)
		require.NoError(t, err)
	}
	readWrite := clientv3.PermissionType(clientv3.PermReadWrite)
	_, err := client.RoleGrantPermission(ctx, "throttle", "/throttle/", "/throttle0", readWrite)
	require.NoError(t, err)
	_, err = client.AuthEnable(ctx)
	require.NoError(t, err)
	return e
}

func TestEtcdOverTLS(t *testing.T) {
	t.Parallel()
	server, client := services.TLS(t)
	_, stranger := services.TLS(t)
	e := etcdWithUsers(t, server)
	files := "&ca=" + client.CA + "&cert=" + client.Cert + "&key=" + client.Key
	options := "?password-file=" + secret(t, password) + files
	url := "etcd://throttle@" + e.Endpoint + "/throttle"

	works(t, open(t, url+options))
	works(t, open(t, "etcd://throttle:"+password+"@"+e.Endpoint+"/throttle?"+files[1:]))
	limited(t, url+options)
	for _, c := range []struct{ url, want string }{
		{url + "?password-file=" + secret(t, "wrong"+password) + files, "invalid user ID or password"},
		{"etcd://" + e.Endpoint + "/throttle?" + files[1:], "permission denied"},
		{"etcd://throttle@" + e.Endpoint + "/other" + options, "permission denied"},
	} {
		refuses(t, c.url, c.want)
		store, err := throttle.OpenPolicies(t.Context(), c.url)
		require.NoError(t, err)
		err = patiently(func() error { _, err := store.List(t.Context()); return err })
		if assert.ErrorContains(t, err, c.want, c.url) {
			assert.NotContains(t, err.Error(), "heim")
		}
		require.NoError(t, store.Close())
	}
	refuses(t, url+strings.Replace(options, client.CA, stranger.CA, 1), "certificate signed by unknown authority")
}

// frozenEtcd returns the URL of an etcd with a password that cannot be reached.
func frozenEtcd(t *testing.T) (p *services.Proxy, url string) {
	server, client := services.TLS(t)
	p = services.NewProxy(t, etcdWithUsers(t, server).Endpoint)
	p.Freeze()
	return p, "etcd://throttle:" + password + "@" + p.Addr +
		"/throttle?ca=" + client.CA + "&cert=" + client.Cert + "&key=" + client.Key
}

// frozenCalls makes eight calls at once of a store that cannot be reached, and returns how long the
// longest one took.
func frozenCalls(t *testing.T, store dispatch.PermitStore) (longest time.Duration) {
	t.Helper()
	var calls sync.WaitGroup
	var mu sync.Mutex
	for i := range 8 {
		calls.Go(func() {
			start := time.Now()
			assert.Error(t, allocate(t, store, allocation(fmt.Sprint("throttle:limit:{", i, "}"))))
			mu.Lock()
			defer mu.Unlock()
			longest = max(longest, time.Since(start))
		})
	}
	calls.Wait()
	return longest
}

// TestFrozenEtcd: connecting with a password waits for the server, but no call waits for that. The
// store works when the server does.
func TestFrozenEtcd(t *testing.T) {
	t.Parallel()
	p, url := frozenEtcd(t)
	store := openTimed(t, url)
	assert.Less(t, frozenCalls(t, store), throttletest.Patience)
	p.Restore()
	works(t, store)
}

// limited checks that a Limiter on this policy store and permit store follows a change of its
// policy.
func limited(t *testing.T, url string) {
	t.Helper()
	store, err := throttle.OpenPolicies(t.Context(), url)
	require.NoError(t, err)
	defer func() { assert.NoError(t, store.Close()) }()
	_, err = store.Adopt(t.Context(), configstore.Adoption{})
	require.NoError(t, err)
	lim, err := throttle.Open(t.Context(), url, url+"&timeout=10s", throttle.WithOpenTimeout(throttletest.Patience))
	require.NoError(t, err)
	defer func() { assert.NoError(t, lim.Close()) }()
	sub, err := lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(t, err)
	_, err = configstore.Edit(t.Context(), store, configstore.By{}, func(s configstore.Snapshot) ([]configstore.Change, error) {
		return s.Set(policy.ClusterScope(), policy.Policy{MessageRate: policy.PerSecond(1000)}), nil
	})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return len(lim.Stats().Subscriptions[0].Limits) == 1
	}, throttletest.Patience, 10*time.Millisecond)
	g, err := sub.Acquire(t.Context(), 1)
	require.NoError(t, err)
	assert.Equal(t, 1, g.N())
	assert.Zero(t, lim.Stats().Permits.Errors)
}
