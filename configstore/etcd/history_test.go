package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/configstore/etcd"
	"github.com/dispatchthrottle/throttle/configstore/storetest"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/pairs"
	"github.com/dispatchthrottle/throttle/tests/services"
)

func historyOf(t testing.TB, s *etcd.Store) (records []configstore.Record) {
	t.Helper()
	for r, err := range s.History(t.Context()) {
		require.NoError(t, err)
		require.NoError(t, r.Err)
		records = append(records, r)
	}
	return records
}

func apply(t testing.TB, s *etcd.Store, n int64) {
	t.Helper()
	_, err := s.Apply(t.Context(), configstore.Commit{Changes: rate(n)})
	require.NoError(t, err)
}

// TestHistoryForgets: a change deletes the records that are too many or too old; what they said is
// not known any more, and is not invented.
func TestHistoryForgets(t *testing.T) {
	node, ctx := services.Etcd(t), t.Context()
	client, s := node.Client(), open(t, node.Endpoint, "p")
	for n := range int64(3) {
		apply(t, s, n+1)
	}
	resp, err := client.Get(ctx, "/p/history/changes/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 3)
	oldest := resp.Kvs[0]
	name, _, _ := strings.Cut(string(oldest.Key), "-")
	aged := fmt.Sprintf("%s-%d-1", name, time.Now().Add(-configstore.MaxHistoryAge-time.Hour).UnixMilli())
	_, err = client.Txn(ctx).Then(clientv3.OpDelete(string(oldest.Key)), clientv3.OpPut(aged, string(oldest.Value))).Commit()
	require.NoError(t, err)
	assert.Len(t, historyOf(t, s), 2, "the oldest one is too old")
	apply(t, s, 4)
	assert.Len(t, historyOf(t, s), 3)

	// The next serial is the one after MaxHistory+1: the first two are too many.
	head := fmt.Sprintf(`{"serial":%d,"seen":%d,"count":1}`, configstore.MaxHistory+1, resp.Header.Revision+100)
	_, err = client.Put(ctx, "/p/history/head", head)
	require.NoError(t, err)
	apply(t, s, 5)
	resp, err = client.Get(ctx, "/p/history/changes/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	var left []string
	for _, kv := range resp.Kvs {
		name, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), "/p/history/changes/"), "-")
		left = append(left, name)
	}
	assert.Equal(t, []string{"000000000003", "000000000004", "000000010002"}, left)

	// All records together have too many bytes.
	head = fmt.Sprintf(`{"serial":%d,"seen":%d,"count":1,"bytes":%d}`, 5, resp.Header.Revision+100, 64<<20+455)
	_, err = client.Put(ctx, "/p/history/head", head)
	require.NoError(t, err)
	apply(t, s, 6)
	resp, err = client.Get(ctx, "/p/history/changes/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 3)
	assert.Contains(t, string(resp.Kvs[0].Key), "/000000000004-")
	assert.Contains(t, string(resp.Kvs[1].Key), "/000000000006-")

	// A large record takes the room of many small ones.
	for n := range int64(20) {
		apply(t, s, n+7)
	}
	require.Greater(t, len(historyOf(t, s)), 10)
	head = fmt.Sprintf(`{"serial":%d,"seen":%d,"count":1,"bytes":%d}`, 26, resp.Header.Revision+100, 512<<20)
	_, err = client.Put(ctx, "/p/history/head", head)
	require.NoError(t, err)
	apply(t, s, 30)
	resp, err = client.Get(ctx, "/p/history/changes/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 2)
	assert.Contains(t, string(resp.Kvs[0].Key), "/000000000027-")
	assert.Contains(t, string(resp.Kvs[1].Key), "/000000010002-")
}

// TestRecordOfNoChange: a large record whose change was not made is not shown, and keeps nobody
// from a change.
func TestRecordOfNoChange(t *testing.T) {
	node, ctx := services.Etcd(t), t.Context()
	client, s := node.Client(), open(t, node.Endpoint, "p")
	first, err := client.Grant(ctx, 60)
	require.NoError(t, err)
	_, err = client.Put(ctx, "/p/history/changes/000000000001-1795855218482-40000", "{", clientv3.WithLease(first.ID))
	require.NoError(t, err)
	assert.Empty(t, historyOf(t, s))
	apply(t, s, 1)
	assert.Len(t, historyOf(t, s), 1)
	_, err = client.Revoke(ctx, first.ID)
	require.NoError(t, err)
	resp, err := client.Get(ctx, "/p/history/changes/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	lease, err := client.Grant(ctx, 60)
	require.NoError(t, err)
	name := strings.Replace(string(resp.Kvs[0].Key), "/000000000001-", "/000000000002-", 1)
	_, err = client.Put(ctx, name, string(resp.Kvs[0].Value), clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	assert.Len(t, historyOf(t, s), 1)
	apply(t, s, 2)
	assert.Len(t, historyOf(t, s), 2)
	_, err = client.Revoke(ctx, lease.ID)
	require.NoError(t, err)
	assert.Len(t, historyOf(t, s), 2)
}

// TestForgottenValues: where no record is left of what an entry held, the history says so.
func TestForgottenValues(t *testing.T) {
	node, ctx := services.Etcd(t), t.Context()
	client, s := node.Client(), open(t, node.Endpoint, "p")
	apply(t, s, 1)
	_, err := s.Apply(ctx, configstore.Commit{Changes: []configstore.Change{{Settings: policy.Policy{Burst: new(int64(1))}}}})
	require.NoError(t, err)
	_, err = client.Delete(ctx, "/p/history/changes/000000000001", clientv3.WithPrefix())
	require.NoError(t, err)
	assert.Len(t, historyOf(t, s), 1, "what is older and has not changed is not found")
	key := "/p/config/policies/kafka:%2F%2Fpublic%2Fdefault%2Forders"
	_, err = client.Put(ctx, key, `{"schema":2,"messageRate":"7/s"}`)
	require.NoError(t, err)
	records := historyOf(t, s)
	require.Len(t, records, 2)
	assert.Equal(t, []configstore.Changed{{
		Key: configstore.Key{Scope: storetest.Orders}, Was: configstore.Value{Unknown: true},
		Is: configstore.Value{Settings: policy.Policy{MessageRate: policy.PerSecond(7)}},
	}}, records[0].Changes)
	list, err := s.List(ctx)
	require.NoError(t, err)
	_, err = list.Undo(records[:1], time.Now())
	assert.ErrorContains(t, err, "is not known")
}

// TestHistoryOutlivesCompaction: the history needs no old revision of etcd.
func TestHistoryOutlivesCompaction(t *testing.T) {
	node := services.Etcd(t)
	s := open(t, node.Endpoint, "p")
	apply(t, s, 1)
	apply(t, s, 2)
	_, err := node.Client().Put(t.Context(), "/p/config/policies/kafka:%2F%2Fpublic%2Fdefault%2Forders",
		`{"schema":2,"messageRate":"7/s"}`)
	require.NoError(t, err)
	before := historyOf(t, s)
	require.Len(t, before, 3)
	node.Compact()
	after := historyOf(t, s)
	after[0].Time = before[0].Time // when it was found
	assert.Equal(t, before, after)
	assert.Equal(t, configstore.Value{Settings: policy.Policy{MessageRate: policy.PerSecond(2)}}, after[0].Changes[0].Was)
}

// TestHistoryWhileEtcdStops: while etcd stops and starts, each change is stored with its record or
// not at all.
func TestHistoryWhileEtcdStops(t *testing.T) {
	node := services.Etcd(t)
	s := open(t, node.Endpoint, "p")
	ctx, cancel := context.WithCancel(t.Context())
	var made atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := int64(1); ctx.Err() == nil; n++ {
			once, stop := context.WithTimeout(ctx, 500*time.Millisecond)
			if _, err := s.Apply(once, configstore.Commit{Changes: rate(n)}); err == nil {
				made.Store(n)
			}
			stop()
		}
	}()
	for range 3 {
		was := made.Load()
		require.Eventually(t, func() bool { return made.Load() > was+20 }, time.Minute, time.Millisecond)
		node.Stop()
		node.Start()
	}
	cancel()
	<-done
	records := historyOf(t, s)
	var was configstore.Value
	for _, r := range slices.Backward(records) {
		assert.False(t, r.Found)
		require.Len(t, r.Changes, 1)
		require.Equal(t, was, r.Changes[0].Was)
		was = r.Changes[0].Is
	}
	list, err := s.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, list.Entries[0].Settings, was.Settings, "the last record is what is stored")
	assert.Equal(t, list.Applied, records[0].Revision)
}

// TestEditsDuringApply: what is written past the tools while changes are made is found, whenever it
// comes.
func TestEditsDuringApply(t *testing.T) {
	node, ctx := services.Etcd(t), t.Context()
	client, s := node.Client(), open(t, node.Endpoint, "p")
	apply(t, s, 0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := int64(1); n <= 200; n++ {
			_, err := s.Apply(ctx, configstore.Commit{Changes: rate(n)})
			assert.NoError(t, err)
		}
	}()
	const edits = 100
	for n := range edits {
		_, err := client.Put(ctx, fmt.Sprintf("/p/config/policies/kafka:%%2F%%2Fpublic%%2Fdefault%%2Fx%d", n),
			`{"schema":2,"messageRate":"7/s"}`)
		require.NoError(t, err)
	}
	<-done
	apply(t, s, 1000)
	found := make(map[configstore.Key]int)
	for _, r := range historyOf(t, s) {
		for _, c := range r.Changes {
			if r.Found {
				found[c.Key]++
			}
		}
	}
	assert.Len(t, found, edits)
	for k, n := range found {
		assert.Equal(t, 1, n, "%v", k)
	}
}

// TestLongSearch: a search for changes past the tools that takes too long keeps nobody from a
// change. The former value of an entry is then unknown.
func TestLongSearch(t *testing.T) {
	node := services.Etcd(t)
	s := open(t, node.Endpoint, "p")
	apply(t, s, 1)
	_, err := node.Client().Put(t.Context(), "/p/config/policies/kafka:%2F%2Fpublic%2Fdefault%2Forders",
		`{"schema":2,"messageRate":"7/s"}`)
	require.NoError(t, err)
	defer etcd.SetSearchTime(0)()
	want := []configstore.Changed{{
		Key: configstore.Key{Scope: storetest.Orders}, Was: configstore.Value{Unknown: true},
		Is: configstore.Value{Settings: policy.Policy{MessageRate: policy.PerSecond(7)}},
	}}
	records := historyOf(t, s)
	require.Len(t, records, 2)
	assert.True(t, records[0].Found)
	assert.Equal(t, want, records[0].Changes)
	apply(t, s, 2)
	records = historyOf(t, s)
	require.Len(t, records, 3)
	assert.Equal(t, want, records[1].Changes)
	assert.Equal(t, want[0].Is, records[0].Changes[0].Was)
}

// editMany writes the policies of n topics past the tools.
func editMany(t *testing.T, client *clientv3.Client, n int) {
	t.Helper()
	for begin := 0; begin < n; begin += 100 {
		var puts []clientv3.Op
		for i := range 100 {
			key := fmt.Sprintf("/p/config/policies/kafka:%%2F%%2Fpublic%%2Fdefault%%2Fx%d", begin+i)
			puts = append(puts, clientv3.OpPut(key, `{"schema":2,"messageRate":"7/s"}`))
		}
		_, err := client.Txn(t.Context()).Then(puts...).Commit()
		require.NoError(t, err)
	}
}

// TestManyEdits: what was written past the tools may be more than one record has room for.
func TestManyEdits(t *testing.T) {
	node := services.Etcd(t)
	client, s := node.Client(), open(t, node.Endpoint, "p")
	apply(t, s, 1)
	const edits = 5000
	editMany(t, client, edits)
	apply(t, s, 2)
	records := historyOf(t, s)
	assert.False(t, records[0].Found)
	found := 0
	for _, r := range records[1 : len(records)-1] {
		assert.True(t, r.Found)
		assert.LessOrEqual(t, len(r.Changes), 2000)
		found += len(r.Changes)
	}
	assert.Equal(t, edits, found)
	for i, r := range records[1:] {
		assert.Less(t, r.Revision, records[i].Revision, "each can be shown and undone")
	}
}

// TestCrashBetweenParts: a process that ends after the first part of a long list of edits was
// recorded leaves the others unknown: a rollback must not take them for new.
func TestCrashBetweenParts(t *testing.T) {
	node, ctx := services.Etcd(t), t.Context()
	client, s := node.Client(), open(t, node.Endpoint, "p")
	const edits = 3000
	editMany(t, client, edits)
	apply(t, s, 1)
	_, err := client.Txn(ctx).Then( // as after the first transaction
		clientv3.OpDelete("/p/history/changes/000000000002", clientv3.WithRange("/p/history/changes/1")),
		clientv3.OpPut("/p/history/head", `{"serial":1,"seen":0,"count":0,"bytes":1000}`),
	).Commit()
	require.NoError(t, err)
	changes := 0
	for _, r := range historyOf(t, s) {
		require.True(t, r.Found)
		for _, c := range r.Changes {
			assert.True(t, c.Was.Unknown, "%v", c.Key)
			changes++
		}
	}
	assert.Equal(t, edits+1, changes)
}

// TestRewritten: an Apply that writes entries again with the values that they have says up to where
// the history explains them.
func TestRewritten(t *testing.T) {
	node := services.Etcd(t)
	s := open(t, node.Endpoint, "p")
	apply(t, s, 1)
	apply(t, s, 1)
	defer etcd.SetSearchTime(0)()
	assert.Len(t, historyOf(t, s), 1, "nothing is searched for")
}

// TestOddRecords: a record that is dated long ago hides no older one.
func TestOddRecords(t *testing.T) {
	node, ctx := services.Etcd(t), t.Context()
	client, s := node.Client(), open(t, node.Endpoint, "p")
	for n := range int64(4) {
		apply(t, s, n+1)
	}
	resp, err := client.Get(ctx, "/p/history/changes/000000000003", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	for _, odd := range []string{"/p/history/changes/000000000003-1-500", "/p/history/changes/000000000003-x"} {
		_, err = client.Txn(ctx).Then(clientv3.OpDelete("/p/history/changes/000000000003", clientv3.WithPrefix())).Commit()
		require.NoError(t, err)
		_, err = client.Put(ctx, odd, string(resp.Kvs[0].Value))
		require.NoError(t, err)
		assert.Len(t, historyOf(t, s), 3, odd)
	}
}

// TestDeletedSettings: that the settings of the history were deleted past the tools is found.
func TestDeletedSettings(t *testing.T) {
	node, ctx := services.Etcd(t), t.Context()
	s := open(t, node.Endpoint, "p")
	key := configstore.Key{Section: policy.HistorySettingsSection}
	_, err := s.Apply(ctx, configstore.Commit{By: configstore.By{Reason: "order"}, Changes: []configstore.Change{
		{Key: key, Settings: policy.HistorySettings{ReasonRequired: new(true)}},
	}})
	require.NoError(t, err)
	resp, err := node.Client().Delete(ctx, "/p/config/historySettings/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.EqualValues(t, 1, resp.Deleted)
	records := historyOf(t, s)
	require.Len(t, records, 2)
	assert.True(t, records[0].Found)
	assert.Equal(t, key, records[0].Changes[0].Key)
}

// TestEditsOfTheSameEntry: an edit past the tools that comes while an Apply is under way is in the
// history, whatever the Apply does to it.
func TestEditsOfTheSameEntry(t *testing.T) {
	node, ctx := services.Etcd(t), t.Context()
	client, s := node.Client(), open(t, node.Endpoint, "p")
	const key = "/p/config/policies/kafka:%2F%2Fpublic%2Fdefault%2Forders"
	apply(t, s, 1)
	const edits = 4 // in one Apply, each of which costs it two rounds: fewer than maxRounds
	var left atomic.Int64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 1000; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			if left.Add(-1) < 0 {
				continue
			}
			_, err := client.Put(ctx, key, fmt.Sprintf(`{"schema":2,"messageRate":"%d/s"}`, n))
			assert.NoError(t, err)
		}
	}()
	for n := range int64(100) {
		left.Store(edits)
		apply(t, s, n+2)
	}
	close(stop)
	<-done
	made := 0
	for _, r := range historyOf(t, s) {
		if r.Found || r.Changes[0].Was.Settings == nil {
			continue
		}
		made++
		resp, err := client.Get(ctx, key, clientv3.WithRev(r.Revision/1000-1))
		require.NoError(t, err)
		before, err := policy.Unmarshal(policy.PolicySection, resp.Kvs[0].Value)
		require.NoError(t, err)
		assert.Equal(t, before, r.Changes[0].Was.Settings, "what the change replaced")
	}
	assert.Equal(t, 100, made)
}

// TestHistoryWithoutRights: a change by a user without rights for the history is refused with the
// reason; one that goes without history is not.
func TestHistoryWithoutRights(t *testing.T) {
	node, ctx := services.Etcd(t), t.Context()
	root := node.Client()
	for _, step := range []func() error{
		func() error { _, err := root.RoleAdd(ctx, "policies"); return err },
		func() error {
			_, err := root.RoleGrantPermission(ctx, "policies", "/p/config/", "/p/config0", clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := root.UserAdd(ctx, "ann", "secret"); return err },
		func() error { _, err := root.UserGrantRole(ctx, "ann", "policies"); return err },
		func() error { _, err := root.UserAdd(ctx, "root", "secret"); return err },
		func() error { _, err := root.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := root.AuthEnable(ctx); return err },
	} {
		require.NoError(t, step())
	}
	s := etcd.New(node.UserClient("ann", "secret"), "p")
	_, err := s.Apply(ctx, configstore.Commit{Changes: rate(1)})
	_, refused := errors.AsType[*configstore.HistoryError](err)
	require.True(t, refused, "%v", err)
	assert.ErrorContains(t, err, "permission denied")
	_, err = s.Apply(ctx, configstore.Commit{By: configstore.By{WithoutHistory: true}, Changes: rate(1)})
	require.NoError(t, err)
	denied := 0
	for _, err := range s.History(ctx) {
		require.ErrorContains(t, err, "permission denied")
		denied++
	}
	assert.Equal(t, 1, denied)
}

// BenchmarkApply changes one of 10 or 1,000 policies, with a record beside without one, each in a
// policy store of its own.
func BenchmarkApply(b *testing.B) {
	node := services.Etcd(b)
	for _, policies := range []int{10, 1000} {
		b.Run(fmt.Sprintf("%d/throttle", policies), func(b *testing.B) {
			var all []configstore.Change
			for i := range policies {
				scope := policy.NamespaceScope("public", "", fmt.Sprint("n", i))
				all = append(all, configstore.Change{
					Key: configstore.Key{Scope: scope}, Settings: policy.Policy{MessageRate: policy.PerSecond(1)},
				})
			}
			apply := func(name string, by configstore.By) func() pairs.Cost {
				const changes = 100
				s := open(b, node.Endpoint, fmt.Sprint(name, "-", policies))
				_, err := s.Apply(b.Context(), configstore.Commit{By: by, Changes: all})
				require.NoError(b, err)
				n := int64(0)
				return func() pairs.Cost {
					return pairs.Measure(b, changes, func() {
						for range changes {
							n++
							_, err := s.Apply(b.Context(), configstore.Commit{By: by, Changes: rate(n)})
							require.NoError(b, err)
						}
					})
				}
			}
			for b.Loop() {
				pairs.Report(b, 15, apply("bare", configstore.By{WithoutHistory: true}),
					apply("recorded", configstore.By{Author: "ann@host", Reason: "a load test"}))
			}
		})
	}
}
