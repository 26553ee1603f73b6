package etcdpermits_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	etcdpermits "github.com/dispatchthrottle/throttle/dispatch/permits/etcd"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestHistories: under faults, allocations on a real etcd of three members are linearizable.
func TestHistories(t *testing.T) {
	e, prefix := services.EtcdCluster(t), services.Name(t)
	admin, err := clientv3.New(clientv3.Config{Endpoints: e.Endpoints[:]})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, admin.Close()) })
	soon := grpc.ConnectParams{Backoff: backoff.Config{
		BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, MaxDelay: 20 * time.Millisecond,
	}, MinConnectTimeout: time.Second}
	var b permitstest.Recorded
	var proxies []*services.Proxy
	for i := range 5 {
		proxy := services.NewProxy(t, e.Endpoints[i%len(e.Endpoints)])
		store := etcdpermits.Open(clientv3.Config{
			Endpoints: []string{proxy.Addr}, DialOptions: []grpc.DialOption{grpc.WithConnectParams(soon)},
		}, prefix, 50*time.Millisecond)
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		b.Stores, proxies = append(b.Stores, dispatch.PermitStore(store)), append(proxies, proxy)
	}
	b.Faults = permitstest.ProxyFaults(proxies)
	for member := range e.Endpoints {
		b.Faults[fmt.Sprintf("member %d cut off", member)] = func(d time.Duration) {
			e.Isolate(member)
			time.Sleep(3 * d) // the others elect a leader after 200 ms
			e.Heal()
		}
		b.Faults[fmt.Sprintf("member %d stopped", member)] = func(d time.Duration) {
			for i := member; i < len(proxies); i += len(e.Endpoints) {
				proxies[i].Cut() // else Stop waits for its calls
				defer proxies[i].Restore()
			}
			e.Stop(member)
			time.Sleep(d)
			e.Start(member)
		}
	}
	b.Log = func(keys []string) (logs [][]permitstest.Version) {
		for _, key := range keys {
			logs = append(logs, versions(t, admin, permits.EtcdKey("/"+prefix, key)))
		}
		return logs
	}
	open := func(t *testing.T) permitstest.Recorded {
		for _, store := range b.Stores {
			require.Eventually(t, func() bool {
				_, _, err := store.State(t.Context(), "any")
				return err == nil
			}, throttletest.Patience, 10*time.Millisecond, "connected, with its clock")
		}
		return b
	}
	permitstest.Histories(t, permitstest.Between(t, 0, 4), open)
}

// versions are those that etcd has had of a limit.
func versions(t *testing.T, client *clientv3.Client, key string) (all []permitstest.Version) {
	last, err := client.Get(t.Context(), key)
	require.NoError(t, err)
	if len(last.Kvs) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for changes := range client.Watch(ctx, key, clientv3.WithRev(last.Kvs[0].CreateRevision)) {
		require.NoError(t, changes.Err())
		for _, e := range changes.Events {
			state, err := etcdpermits.ParseState(e.Kv)
			require.NoError(t, err)
			all = append(all, permitstest.VersionOf(state))
			if e.Kv.ModRevision == last.Kvs[0].ModRevision {
				return all
			}
		}
	}
	return nil
}
