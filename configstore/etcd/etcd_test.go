package etcd_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/configstore/etcd"
	"github.com/dispatchthrottle/throttle/configstore/storetest"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestMain(m *testing.M) {
	// The embedded servers leave goroutines of gRPC and of its logger behind; the stores' own are
	// checked by storetest.
	os.Exit(m.Run())
}

func open(t testing.TB, endpoint, prefix string) *etcd.Store {
	s, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{endpoint}, Prefix: prefix})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func rate(n int64) []configstore.Change {
	return []configstore.Change{
		{
			Key:      configstore.Key{Scope: storetest.Orders},
			Settings: policy.Policy{MessageRate: policy.PerSecond(n)},
		},
	}
}

func TestStore(t *testing.T) {
	node := services.Etcd(t)
	storetest.Run(t, func(t *testing.T) storetest.Backend {
		prefix := strings.ReplaceAll(t.Name(), "/", "-")
		return storetest.Backend{
			Open: func(t *testing.T) configstore.Store { return open(t, node.Endpoint, prefix) },
			Corrupt: func(t *testing.T) {
				key := "/" + prefix + "/config/policies/kafka:%2F%2Fpublic%2Fdefault%2Forders"
				const older = `{"schema":1,"messageRate":"7/s","rampOver":"1m"}`
				resp, err := node.Client().Put(t.Context(), key, older)
				require.NoError(t, err)
				require.NotZero(t, resp.Header.Revision)
			},
			Empty: func(t *testing.T) {
				_, err := node.Client().Delete(t.Context(), "/"+prefix+"/config/policies/", clientv3.WithPrefix())
				require.NoError(t, err)
			},
			Write: func(t *testing.T, changes []configstore.Change) {
				for _, c := range changes {
					key := "/policies/" + url.PathEscape(c.Scope.String())
					if c.Field != "" {
						key = "/temporary" + key + "/" + c.Field
					}
					key = "/" + prefix + "/config" + key
					var err error
					if c.Deletes() {
						_, err = node.Client().Delete(t.Context(), key)
					} else {
						value, marshalErr := policy.Marshal(c.Settings)
						require.NoError(t, marshalErr)
						_, err = node.Client().Put(t.Context(), key, string(value))
					}
					require.NoError(t, err)
				}
			},
			Damage: func(t *testing.T) {
				_, err := node.Client().Put(t.Context(), "/"+prefix+"/history/head", "{")
				require.NoError(t, err)
			},
			Wipe: func(t *testing.T) {
				_, err := node.Client().Delete(t.Context(), "/"+prefix+"/", clientv3.WithPrefix())
				require.NoError(t, err)
			},
		}
	})
}

func TestBadKeysAreShownAndCanBeRemoved(t *testing.T) {
	node, ctx := services.Etcd(t), t.Context()
	client := node.Client()
	for _, key := range []string{
		"policies/x", "policies/%zz", "policies/cluster%20", "temporary/policies/cluster/rate",
		"temporary/cluster", "temporary/cluster/burst", "quotas/public%2Fdefault%20", "policies/tenant:",
	} {
		_, err := client.Put(ctx, "/throttle/config/"+key, `{"schema":2}`)
		require.NoError(t, err)
	}
	_, err := client.Put(ctx, "/throttle/config/policies/cluster", `{"schema":9,"messageRate":"1/s"}`)
	require.NoError(t, err)
	_, err = client.Put(
		ctx, "/throttle/config/temporary/policies/cluster/burst",
		`{"expires":"2040-01-01T00:00:00Z","settings":{"schema":2,"messageRate":"1/s"}}`,
	)
	require.NoError(t, err)
	s := etcd.New(client, "")
	_, err = s.Adopt(ctx, configstore.Adoption{})
	require.NoError(t, err)
	list, err := s.List(ctx)
	require.NoError(t, err)
	require.Len(t, list.Entries, 10)
	var changes []configstore.Change
	for _, e := range list.Entries {
		assert.Error(t, e.Err, e.Scope)
		assert.True(t, policy.IsZero(e.Settings))
		changes = append(changes, configstore.Change{Key: configstore.KeyOf(e)})
	}
	assert.ErrorAs(t, list.Entries[0].Err, new(*policy.SchemaError))
	_, err = s.Apply(ctx, configstore.Commit{Changes: changes, IfRevision: list.Revision})
	require.NoError(t, err)
	list, err = s.List(ctx)
	require.NoError(t, err)
	assert.Empty(t, list.Entries)
}

// TestWithoutMarker: policies that were written past the tools are followed without a marker, and
// the first Apply adopts them.
func TestWithoutMarker(t *testing.T) {
	node, ctx := services.Etcd(t), t.Context()
	_, err := node.Client().Put(ctx, "/throttle/config/policies/cluster", `{"schema":2,"messageRate":"7/s"}`)
	require.NoError(t, err)
	s := open(t, node.Endpoint, "")
	list, err := s.List(ctx)
	require.NoError(t, err)
	assert.Zero(t, list.Marker)
	ctx, cancel := context.WithTimeout(ctx, throttletest.Patience)
	defer cancel()
	step := 0
	for snap, err := range configstore.Source(s).Snapshots(ctx) {
		require.NoError(t, err)
		switch step++; step {
		case 1:
			assert.Empty(t, snap.Identity)
			assert.Len(t, snap.Set.Entries(), 1)
			_, err := s.Apply(ctx, configstore.Commit{Changes: rate(8)})
			require.NoError(t, err)
		case 2:
			assert.NotEmpty(t, snap.Identity)
			assert.Positive(t, snap.Epoch)
			assert.Len(t, snap.Set.Entries(), 2)
			list, err := s.List(ctx)
			require.NoError(t, err)
			assert.Equal(t, 2, list.Marker.Count)
			cancel()
		}
	}
	assert.Equal(t, 2, step)
}

// TestCreate: a store that may be created is adopted when it is first listed, and only if it is
// empty.
func TestCreate(t *testing.T) {
	node, ctx := services.Etcd(t), t.Context()
	create := func(prefix string) configstore.Marker {
		s, err := etcd.Open(ctx, etcd.Config{Endpoints: []string{node.Endpoint}, Prefix: prefix, Create: true})
		require.NoError(t, err)
		defer func() { assert.NoError(t, s.Close()) }()
		list, err := s.List(ctx)
		require.NoError(t, err)
		return list.Marker
	}
	first := create("/new")
	assert.NotEmpty(t, first.ID)
	assert.Equal(t, first, create("/new"))
	_, err := node.Client().Put(ctx, "/old/config/policies/cluster", `{"schema":2,"messageRate":"7/s"}`)
	require.NoError(t, err)
	assert.Zero(t, create("/old"))
}

func TestCompactedWatch(t *testing.T) {
	node, ctx := services.Etcd(t), t.Context()
	s := open(t, node.Endpoint, "")
	_, err := s.Apply(ctx, configstore.Commit{Changes: rate(1)})
	require.NoError(t, err)
	first, err := s.List(ctx)
	require.NoError(t, err)
	_, err = s.Apply(ctx, configstore.Commit{Changes: rate(2)})
	require.NoError(t, err)
	_, err = s.Apply(ctx, configstore.Commit{Changes: rate(3)})
	require.NoError(t, err)
	node.Compact()
	for _, err := range s.Watch(ctx, first) {
		assert.ErrorIs(t, err, configstore.ErrCompacted)
	}
}

// TestRestoredBeforeTheWatch: a watch ends if a backup was restored after its List, even if the
// revision has passed the listed one, and so have the changes.
func TestRestoredBeforeTheWatch(t *testing.T) {
	for _, changes := range []int64{0, 5} {
		node := services.Etcd(t)
		s, ctx := open(t, node.Endpoint, ""), t.Context()
		_, err := s.Apply(ctx, configstore.Commit{Changes: rate(1)})
		require.NoError(t, err)
		node.Stop()
		backup := node.Backup()
		node.Start()
		for range 20 {
			_, err := node.Client().Put(ctx, "/throttle/permits/x", "")
			require.NoError(t, err)
		}
		_, err = s.Apply(ctx, configstore.Commit{Changes: rate(2)})
		require.NoError(t, err)
		list, err := s.List(ctx)
		require.NoError(t, err)
		node.Stop()
		node.Restore(backup)
		node.Start()
		for i := range changes { // all of them before the listed revision
			_, err := s.Apply(ctx, configstore.Commit{Changes: rate(10 + i)})
			require.NoError(t, err)
		}
		for range 40 {
			_, err := node.Client().Put(ctx, "/throttle/permits/x", "")
			require.NoError(t, err)
		}
		ctx, cancel := context.WithTimeout(ctx, throttletest.Patience)
		var ended error
		for _, err := range s.Watch(ctx, list) {
			ended = err
		}
		cancel()
		assert.ErrorIs(t, ended, configstore.ErrCompacted, "%d changes", changes)
	}
}

// TestFollowerMissesNothing cuts the follower off, changes and compacts meanwhile, and stops the
// server.
func TestFollowerMissesNothing(t *testing.T) {
	node := services.Etcd(t)
	proxy := services.NewProxy(t, node.Endpoint)
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	direct := open(t, node.Endpoint, "")
	_, err := direct.Apply(ctx, configstore.Commit{Changes: rate(1)})
	require.NoError(t, err)
	follower := open(t, proxy.Addr, "")
	got := make(chan int64, 1000)
	errs := make(chan error, 1000)
	done := make(chan struct{})
	defer func() { cancel(); <-done }()
	go func() {
		defer close(done)
		for snap, err := range configstore.Source(follower).Snapshots(ctx) {
			if err != nil {
				errs <- err
				continue
			}
			got <- snap.Set.Resolve("", storetest.Orders.Topic, "").Topic.MessageRate.Permits
		}
	}()
	until := func(want int64) {
		t.Helper()
		for {
			select {
			case n := <-got:
				if n == want {
					return
				}
			case <-ctx.Done():
				t.Fatalf("%d never came", want)
			}
		}
	}
	until(1)
	proxy.Cut()
	for i := range int64(10) {
		_, err := direct.Apply(ctx, configstore.Commit{Changes: rate(10 + i)})
		require.NoError(t, err)
	}
	node.Compact()
	proxy.Restore()
	until(19)
	before := len(errs) // of the first outage
	proxy.Cut()
	node.Stop()
	throttletest.Until(t, "the outage is reported", func() bool { return len(errs) > before })
	time.Sleep(5 * time.Second) // longer than the check of a silent watch takes
	assert.Len(t, errs, before+1, "an outage is reported once")
	node.Start()
	proxy.Restore()
	_, err = direct.Apply(ctx, configstore.Commit{Changes: rate(20)})
	require.NoError(t, err)
	until(20)
}

// TestTemporaryEndsBeforeItsLease: an entry that etcd keeps for too long, as after a change of its
// leader, has expired.
func TestTemporaryEndsBeforeItsLease(t *testing.T) {
	node := services.Etcd(t)
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	client, s := node.Client(), open(t, node.Endpoint, "")
	_, err := s.Apply(ctx, configstore.Commit{Changes: rate(1)})
	require.NoError(t, err)
	var end time.Time
	key := "/throttle/config/temporary/policies/kafka:%2F%2Fpublic%2Fdefault%2Forders/messageRate"
	put := func(ttl time.Duration) (revision int64) {
		end = time.Now().Add(ttl)
		text := fmt.Sprintf(
			`{"expires":%q,"settings":{"schema":2,"messageRate":"2/s"}}`, end.Format(time.RFC3339Nano),
		)
		r, err := client.Put(ctx, key, text)
		require.NoError(t, err)
		return r.Header.Revision
	}
	at := put(time.Hour)

	var last policy.Snapshot
	limit := func(s policy.Snapshot) int64 {
		return s.Set.Resolve("", storetest.Orders.Topic, "").Topic.MessageRate.Permits
	}
	deleted := false
	for snap, err := range configstore.Source(s).Snapshots(ctx) {
		require.NoError(t, err)
		if last.Set != nil {
			require.GreaterOrEqual(t, snap.Revision, last.Revision)
		}
		switch {
		case last.Set == nil:
			require.Equal(t, int64(2), limit(snap))
			at = put(2 * time.Second)
		case !deleted && limit(snap) == 1:
			assert.False(t, time.Now().Before(end), "by the clock: the key is still there")
			assert.Greater(t, snap.Revision, last.Revision)
			list, err := s.List(ctx)
			require.NoError(t, err)
			assert.Len(t, list.Entries, 1)
			assert.Equal(t, snap.Revision, list.Revision, "a list is at the same revision")
			_, err = s.Apply(ctx, configstore.Commit{Changes: rate(3), IfRevision: list.Revision})
			require.NoError(t, err, "the end of a temporary value is no conflict")
			_, err = client.Delete(ctx, key) // as its lease would
			require.NoError(t, err)
			deleted = true
		case deleted && snap.Revision/1000 == at+2:
			assert.Equal(t, int64(3), limit(snap))
			return
		}
		last = snap
	}
	t.Fatalf("ended at revision %d with %d/s", last.Revision, limit(last))
}

func TestOpensWhileEtcdIsAwayAndKeepsThePassword(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s, err := etcd.Open(
		t.Context(),
		etcd.Config{
			Endpoints: []string{"127.0.0.1:1"}, Username: "me", DialTimeout: 100 * time.Millisecond,
			Password: func() (string, error) { return "s3cret", nil },
		},
	)
	require.NoError(t, err)
	_, err = s.List(t.Context())
	require.Error(t, err)
	assert.NotContains(t, fmt.Sprintf("%v %+v", err, err), "s3cret")
	require.NoError(t, s.Close())
	throttletest.VerifyNone(t, before)
	_, err = etcd.Open(t.Context(), etcd.Config{})
	assert.ErrorContains(t, err, "endpoints")
}

// BenchmarkFollow measures the time from etcd's answer to the snapshot.
func BenchmarkFollow(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			node, ctx := services.Etcd(b), b.Context()
			s := open(b, node.Endpoint, "")
			var changes []configstore.Change
			for i := range n {
				scope, err := policy.ParseScope(fmt.Sprint("kafka://public/default/t", i))
				require.NoError(b, err)
				changes = append(
					changes,
					configstore.Change{
						Key: configstore.Key{Scope: scope}, Settings: policy.Policy{MessageRate: policy.PerSecond(1)},
					},
				)
			}
			_, err := s.Apply(ctx, configstore.Commit{Changes: changes})
			require.NoError(b, err)
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			type seen struct {
				revision int64
				at       time.Time
			}
			got := make(chan seen, 100)
			go func() {
				for snap, err := range configstore.Source(s).Snapshots(ctx) {
					assert.NoError(b, err)
					got <- seen{snap.Revision, time.Now()}
				}
			}()
			<-got
			var lag time.Duration
			for i := 0; b.Loop(); i++ {
				revision, err := s.Apply(ctx, configstore.Commit{Changes: rate(int64(i))})
				require.NoError(b, err)
				answered := time.Now()
				for {
					if g := <-got; g.revision >= revision {
						lag += max(0, g.at.Sub(answered))
						break
					}
				}
			}
			b.ReportMetric(float64(lag.Microseconds())/float64(b.N)/1000, "ms-lag/op")
		})
	}
}
