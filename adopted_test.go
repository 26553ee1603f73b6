package throttle_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A fleet is a replica with a cache file, and what an operator does to its stores.
type fleet struct {
	t        *testing.T
	policies string // URLs
	permits  string
	cache    string
	log      throttletest.Log
	lim      *dispatch.Limiter

	stopConsuming func() // ends consume
}

func newFleet(t *testing.T, policies, permits string) *fleet {
	return &fleet{
		t: t, policies: policies, permits: permits,
		cache: filepath.Join(t.TempDir(), "policies.json"),
	}
}

// start starts the replica, or a new one.
func (f *fleet) start() {
	f.t.Helper()
	f.stop()
	var err error
	f.lim, err = throttle.Open(f.t.Context(), f.policies, f.permits, throttle.WithCacheFile(f.cache),
		throttle.WithOpenTimeout(throttletest.Patience),
		throttle.WithLogger(f.log.Logger()))
	require.NoError(f.t, err)
	f.t.Cleanup(func() { assert.NoError(f.t, f.lim.Close()) })
	_, err = f.lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(f.t, err)
}

func (f *fleet) stop() {
	if f.lim != nil {
		require.NoError(f.t, f.lim.Close())
	}
}

// rate is the limit of the replica's subscription; 0 = none.
func (f *fleet) rate() float64 {
	if limits := f.lim.Stats().Subscriptions[0].Limits; len(limits) > 0 {
		return limits[0].Rate
	}
	return 0
}

// becomes waits until the limit is rate.
func (f *fleet) becomes(rate float64) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.rate() == rate && f.lim.Ready() == nil },
		throttletest.Patience, 5*time.Millisecond)
}

// refuses waits until the replica is not ready for this reason, and checks that its limit stays.
func (f *fleet) refuses(reason string, rate float64) {
	f.t.Helper()
	require.EventuallyWithT(f.t, func(c *assert.CollectT) {
		assert.ErrorContains(c, f.lim.Ready(), reason)
	}, throttletest.Patience, 5*time.Millisecond)
	time.Sleep(200 * time.Millisecond)
	assert.InDelta(f.t, rate, f.rate(), 0, "the last policies stay in force")
	assert.Contains(f.t, f.log.String(), reason)
	assert.Contains(f.t, f.lim.Stats().PolicyError, reason)
}

// change does something with the policy store.
func (f *fleet) change(do func(context.Context, configstore.Store) error) {
	f.t.Helper()
	store, err := throttle.OpenPolicies(f.t.Context(), f.policies)
	require.NoError(f.t, err)
	assert.NoError(f.t, do(f.t.Context(), store))
	require.NoError(f.t, store.Close())
}

func (f *fleet) set(rate int64) {
	f.t.Helper()
	f.change(func(ctx context.Context, store configstore.Store) error {
		_, err := store.Apply(ctx, configstore.Commit{Changes: []configstore.Change{{
			Key:      configstore.Key{Scope: policy.ClusterScope()},
			Settings: policy.Policy{MessageRate: policy.PerSecond(rate)},
		}}})

		return err
	})
}

func (f *fleet) adopt(id string) {
	f.t.Helper()
	f.change(func(ctx context.Context, store configstore.Store) error {
		_, err := store.Adopt(ctx, configstore.Adoption{ID: id})
		return err
	})
}

func (f *fleet) id() (id string) {
	f.change(func(ctx context.Context, store configstore.Store) error {
		s, err := store.List(ctx)
		id = s.Marker.ID
		return err
	})
	return id
}

// TestWipedEtcd: the limits of an etcd that has lost its keys stay in force, also after a restart
// of the replica, until the empty store is adopted.
func TestWipedEtcd(t *testing.T) {
	t.Parallel()
	node := services.Etcd(t)
	f := newFleet(t, "etcd://"+node.Endpoint, "memory:")
	f.set(7)
	f.start()
	f.becomes(7)
	id := f.id()
	_, err := node.Client().Delete(t.Context(), "/", clientv3.WithPrefix())
	require.NoError(t, err)
	f.refuses("is empty and not adopted", 7)
	f.start()
	f.refuses("is empty and not adopted", 7)
	f.adopt(id)
	f.becomes(0)
}

// TestEmptyEtcd: a replica that knows no policies does not start without any, unless it may create
// the policy store.
func TestEmptyEtcd(t *testing.T) {
	t.Parallel()
	node := services.Etcd(t)
	f := newFleet(t, "etcd://"+node.Endpoint, "memory:")
	_, err := throttle.Open(t.Context(), f.policies, f.permits, throttle.WithOpenTimeout(throttletest.Patience))
	require.ErrorContains(t, err, "check its address and prefix; if it has lost its policies, restore a backup; "+
		"if it is new, set a policy, or run: throttle-admin adopt")
	lim, err := throttle.Open(t.Context(), f.policies+"/throttle?create=true", f.permits)
	require.NoError(t, err)
	require.NoError(t, lim.Close())
	f.start() // it is adopted now
	f.becomes(0)
}

// TestCreatedEtcd: a replica that may create the policy store does so in a wiped etcd, and nobody
// loses a limit by it: not those whose policies had no marker, nor one whose policies were in a
// file.
func TestCreatedEtcd(t *testing.T) {
	t.Parallel()
	node := services.Etcd(t)
	f := newFleet(t, "etcd://"+node.Endpoint+"/throttle", "memory:")
	_, err := node.Client().Put(t.Context(), "/throttle/config/policies/cluster", `{"schema":2,"messageRate":"7/s"}`)
	require.NoError(t, err)
	f.start()
	f.becomes(7)
	_, err = node.Client().Delete(t.Context(), "/throttle/", clientv3.WithPrefix())
	require.NoError(t, err)
	f.refuses("is empty and not adopted", 7)
	name := filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(name, []byte("schema: 2\npolicies: [{scope: cluster, messageRate: 8/s}]\n"), 0o600))
	moved := newFleet(t, "file:"+name, "memory:")
	moved.start()
	moved.becomes(8)

	moved.policies = f.policies + "?create=true"
	moved.start()
	moved.refuses("is empty, and nobody has emptied it; the last policies were 1", 8)
	f.refuses("is empty, and nobody has emptied it; the last policies were 1", 7)
	f.policies = moved.policies
	f.start()
	f.refuses("is empty, and nobody has emptied it; the last policies were 1", 7)
	f.set(9)
	f.becomes(9)
	moved.becomes(9)
}

// TestEmptiedByApply: an Apply that removes the last policy is in force at once. A restart finds
// no fault.
func TestEmptiedByApply(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "etcd://"+services.Etcd(t).Endpoint, "memory:")
	f.set(7)
	f.start()
	f.becomes(7)
	f.change(func(ctx context.Context, store configstore.Store) error {
		_, err := store.Apply(ctx, configstore.Commit{Changes: []configstore.Change{
			{Key: configstore.Key{Scope: policy.ClusterScope()}},
		}})
		return err
	})
	f.becomes(0)
	f.start()
	f.becomes(0)
	assert.NotContains(t, f.log.String(), "WARN")
	f.set(9)
	f.becomes(9)
}

// TestLostPolicies: an etcd that has kept its marker alone has lost its policies.
func TestLostPolicies(t *testing.T) {
	t.Parallel()
	node := services.Etcd(t)
	f := newFleet(t, "etcd://"+node.Endpoint, "memory:")
	f.set(7)
	f.start()
	f.becomes(7)
	_, err := node.Client().Delete(t.Context(), "/throttle/config/policies", clientv3.WithPrefix())
	require.NoError(t, err)
	f.refuses("has lost its policies (1)", 7)
	_, err = os.Stat(f.cache)
	require.NoError(t, err)
	f.start()
	f.refuses("has lost its policies (1)", 7)
	f.adopt("")
	f.becomes(0)
	f.set(9)
	f.becomes(9)
}

// TestOtherPolicyStore: a replica that knows policies follows no others, until they are adopted
// under the id that it knows.
func TestOtherPolicyStore(t *testing.T) {
	t.Parallel()
	node := services.Etcd(t)
	f := newFleet(t, "etcd://"+node.Endpoint+"/right", "memory:")
	f.set(7)
	f.start()
	f.becomes(7)
	id := f.id()
	f.policies = "etcd://" + node.Endpoint + "/wrong" // as after an edit of the deployment
	f.start()
	f.refuses("is empty and not adopted", 7)
	f.set(9)
	f.refuses("and the last ones were", 7)
	assert.ErrorContains(t, f.lim.Ready(), "throttle-admin adopt --id "+id)
	f.adopt(id)
	f.becomes(9)
}

// TestRestoredBackup: the policies of a backup are older than those in force, and replace them
// within a round once they are adopted, also on the permit store that has seen the newer ones.
func TestRestoredBackup(t *testing.T) {
	t.Parallel()
	node := services.Etcd(t)
	f := newFleet(t, "etcd://"+node.Endpoint, services.Patient(services.Redis(t)))
	f.set(7)
	node.Stop()
	backup := node.Backup()
	node.Start()
	for rate := range int64(5) {
		f.set(100 + rate)
	}
	f.start()
	f.becomes(104)
	sub, err := f.lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(t, err)
	for range 10 { // the permit store knows the rate
		_, err := sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
	}
	node.Stop()
	node.Restore(backup)
	node.Start()
	const reason = "if it was restored from a backup, run: throttle-admin adopt"
	f.refuses(reason, 104)
	for range 10 {
		f.set(7)
	}
	f.refuses(reason, 104) // though its revision has passed that of the last policies
	f.adopt("")
	f.becomes(7)
	start := time.Now()
	for range 14 {
		_, err := sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
	}
	assert.Greater(t, time.Since(start), 1500*time.Millisecond, "the schedule has the restored rate")
}

// TestAccuracyAdopt: how soon after its adoption a restored policy is in force in eight replicas,
// and in the schedule that they share.
func TestAccuracyAdopt(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		node := services.Etcd(t)
		first := newFleet(t, "etcd://"+node.Endpoint, services.Redis(t))
		first.set(700)
		node.Stop()
		backup := node.Backup()
		node.Start()
		first.set(1000)
		fleets := []*fleet{first}
		for range 7 {
			fleets = append(fleets, newFleet(t, first.policies, first.permits))
		}
		for _, f := range fleets {
			f.start()
			f.becomes(1000)
			f.consume()
		}
		node.Stop()
		node.Restore(backup)
		node.Start()
		for _, f := range fleets {
			throttletest.Until(t, "the backup is refused", func() bool { return f.lim.Stats().PoliciesHeld })
		}
		store, err := throttle.OpenPermits(first.permits)
		require.NoError(t, err)
		defer func() { assert.NoError(t, store.Close()) }()
		topic, err := policy.ParseScope("kafka://public/default/orders")
		require.NoError(t, err)
		first.adopt("")
		adopted := time.Now()
		for _, f := range fleets {
			throttletest.Until(t, "the replica follows", func() bool { return f.rate() == 700 })
		}
		m.AtMost("in force in all replicas, ms", time.Since(adopted).Seconds()*1000, 100)
		throttletest.Until(t, "the schedule has the rate", func() bool {
			state, _, err := store.State(t.Context(), permits.LimitKey("standalone", topic, false))
			return err == nil && state.Rate == 700
		})
		m.AtMost("in force in their schedule, ms", time.Since(adopted).Seconds()*1000, 200)
		for _, f := range fleets {
			f.stopConsuming()
		}
	})
}

// TestRestoredBackupOvertaken: a restored store is found out, even if its revision has passed the
// known one before a replica looks: writes of permits in the same etcd raise it.
func TestRestoredBackupOvertaken(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{false, true} {
		t.Run(fmt.Sprintf("running %v", running), func(t *testing.T) {
			t.Parallel()
			node := services.Etcd(t)
			f := newFleet(t, "etcd://"+node.Endpoint, "memory:")
			f.set(70_000)
			node.Stop()
			backup := node.Backup()
			node.Start()
			f.set(7)
			f.start()
			f.becomes(7)
			if !running {
				f.stop()
			}
			node.Stop()
			node.Restore(backup)
			node.Start()
			for range 50 {
				_, err := node.Client().Put(t.Context(), "/throttle/permits/x", "")
				require.NoError(t, err)
			}
			if !running {
				f.start()
			}
			const reason = "if it was restored from a backup, run: throttle-admin adopt"
			f.refuses(reason, 7)
			for range 3 { // its serial passes the known one, too
				f.set(70_000)
			}
			f.start()
			f.refuses(reason, 7)
			f.adopt("")
			f.becomes(70_000)
		})
	}
}

// TestClockAhead: policies that were adopted by a clock that was ahead are replaced by those that
// are adopted after their epoch.
func TestClockAhead(t *testing.T) {
	t.Parallel()
	node := services.Etcd(t)
	f := newFleet(t, "etcd://"+node.Endpoint, "memory:")
	f.set(7)
	ahead := time.Now().Add(time.Hour).UnixMilli()
	f.change(func(ctx context.Context, store configstore.Store) error {
		_, err := store.Adopt(ctx, configstore.Adoption{After: ahead})
		return err
	})
	id := f.id()
	f.start()
	f.becomes(7)
	_, err := node.Client().Delete(t.Context(), "/throttle", clientv3.WithPrefix())
	require.NoError(t, err)
	f.refuses("is empty and not adopted", 7)
	f.set(9)
	f.adopt(id)
	f.refuses(fmt.Sprintf("throttle-admin adopt --after %d", ahead+1), 7)
	f.change(func(ctx context.Context, store configstore.Store) error {
		_, err := store.Adopt(ctx, configstore.Adoption{After: ahead + 1})
		return err
	})
	f.becomes(9)
	marker := fmt.Sprintf(`{"id":%q,"epoch":%d,"serial":9,"count":1}`, id, ahead+2*24*3600*1000)
	_, err = node.Client().Put(t.Context(), "/throttle/config/marker", marker)
	require.NoError(t, err)
	f.refuses("over a day ahead of this machine's clock", 9)
	f.adopt("")
	f.refuses("adopt --after", 9) // the epoch that it had is not known
}

// TestEditedFile: a file written by hand is followed as it is, also without policies; one that was
// cut off, and one that is gone, keep the last policies in force.
func TestEditedFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "policies.yaml")
	write := func(text string) {
		require.NoError(t, os.WriteFile(name+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(name+".new", name))
	}
	const text = "schema: 2\npolicies:\n  - {scope: cluster, messageRate: 7/s}\n"
	write("schema: 2\n")
	_, err := throttle.Open(t.Context(), "file:"+name, "memory:")
	require.ErrorContains(t, err, "write policies: []")
	write(text)
	f := newFleet(t, "file:"+name, "memory:")
	f.start()
	f.becomes(7)
	write(text + "  - {scope: public/default, messageRate: 5/s}\n")
	f.becomes(5)
	for _, cut := range []string{"", "schema: 2\n", "schema: 2\npolicies:\n", "schema: 2\npolicies:\n  - {scope: cluster}\n",
		"schema: 2\nquotas: [{scope: 'tag:x', total: 1MiB}]\npolicies:\n"} {
		write(cut)
		f.refuses("policies: []", 5)
		f.start()
		f.refuses("policies: []", 5)
	}
	write(text)
	f.becomes(7)
	require.NoError(t, os.Remove(name))
	f.refuses("was removed", 7)
	write("schema: 2\npolicies: []\n")
	f.becomes(0)
	f.start()
	f.becomes(0)
	write(text)
	f.becomes(7)
	assert.NotContains(t, f.log.String(), "no marker")
}

// TestRemovedFile: a file that is gone when a replica starts again is not created without policies
// in place of those of the cache file.
func TestRemovedFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "policies.yaml")
	f := newFleet(t, "file:"+name+"?create=true", "memory:")
	f.start()
	f.becomes(0)
	require.NoError(t, os.Remove(name))
	f.start()
	f.becomes(0) // there was nothing to lose
	f.set(7)
	f.becomes(7)
	require.NoError(t, os.Remove(name))
	f.start()
	f.refuses("was removed", 7)
	require.NoFileExists(t, name)
	f.set(8)
	f.becomes(8)
}

// TestPoliciesWithoutMarker: an etcd that was filled by hand is followed, which is logged once.
// Emptied by hand, it keeps the last policies in force; after its first change by Apply it is known
// from others.
func TestPoliciesWithoutMarker(t *testing.T) {
	t.Parallel()
	node := services.Etcd(t)
	put := func(prefix string, rate int) {
		_, err := node.Client().Put(t.Context(), prefix+"/config/policies/cluster",
			fmt.Sprintf(`{"schema":2,"messageRate":"%d/s"}`, rate))
		require.NoError(t, err)
	}
	put("/throttle", 7)
	f := newFleet(t, "etcd://"+node.Endpoint, "memory:")
	f.start()
	f.becomes(7)
	put("/throttle", 8)
	f.becomes(8)
	assert.Equal(t, 1, strings.Count(f.log.String(), "has no marker"))
	_, err := node.Client().Delete(t.Context(), "/throttle/config", clientv3.WithPrefix())
	require.NoError(t, err)
	f.refuses("is empty and not adopted", 8)
	f.start()
	f.refuses("is empty and not adopted", 8)
	put("/throttle", 9)
	f.becomes(9)
	f.set(10)
	f.becomes(10)
	put("/other", 11)
	f.policies += "/other"
	f.start()
	f.refuses("has no marker, and the last policies were", 10)
	f.adopt(f.lim.Stats().Identity)
	f.becomes(11)
}

// TestMovedPolicies: a replica that is given a file instead of an etcd, or the other way around,
// follows it.
func TestMovedPolicies(t *testing.T) {
	t.Parallel()
	node := services.Etcd(t)
	f := newFleet(t, "etcd://"+node.Endpoint+"/throttle?create=true", "memory:")
	f.start()
	f.becomes(0)
	f.set(7)
	f.becomes(7)
	etcd, name := f.policies, filepath.Join(t.TempDir(), "policies.yaml")
	text := "schema: 2\npolicies:\n  - {scope: cluster, messageRate: 8/s}\n"
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	old := time.Now().Add(-time.Hour) // before the etcd was adopted
	require.NoError(t, os.Chtimes(name, old, old))
	f.policies = "file:" + name
	f.start()
	f.becomes(8)
	f.policies = etcd
	f.start()
	f.refuses("if it was restored from a backup", 8)
	f.adopt("")
	f.becomes(7)
}

// TestCopiedFile: a copy of a file with an older time is followed while a replica runs, and after
// its restart.
func TestCopiedFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "policies.yaml")
	f := newFleet(t, "file:"+name+"?create=true", "memory:")
	f.set(7)
	info, err := os.Stat(name)
	require.NoError(t, err)
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	nine := strings.Replace(string(text), "messageRate: 7", "messageRate: 9", 1)
	require.NotEqual(t, string(text), nine)
	require.NoError(t, os.WriteFile(name, []byte(nine), 0o600))
	f.start()
	f.becomes(9)
	require.NoError(t, os.WriteFile(name+".copy", text, 0o600))
	require.NoError(t, os.Chtimes(name+".copy", info.ModTime(), info.ModTime()))
	require.NoError(t, os.Rename(name+".copy", name))
	f.becomes(7)
	f.start()
	f.becomes(7)
	f.set(9)
	f.becomes(9)
}

// TestUnreadablePolicyAfterRestart: an entry of etcd that cannot be read keeps the settings that a
// replica knows from its cache file.
func TestUnreadablePolicyAfterRestart(t *testing.T) {
	t.Parallel()
	node := services.Etcd(t)
	f := newFleet(t, "etcd://"+node.Endpoint, "memory:")
	f.set(7)
	f.start()
	f.becomes(7)
	require.NoError(t, f.lim.Close())
	f.lim = nil
	_, err := node.Client().Put(t.Context(), "/throttle/config/policies/cluster", "{")
	require.NoError(t, err)
	for range 2 {
		f.start()
		f.becomes(7)
		assert.InDelta(t, 7, f.rate(), 0, "also once the store has been read")
		assert.Equal(t, 1, f.lim.Stats().InvalidPolicies)
		assert.Eventually(t, func() bool {
			return strings.Contains(f.log.String(), `msg="a stored policy is invalid`)
		}, throttletest.Patience, 5*time.Millisecond)
	}
}

// consume has the replica's subscription ask for permits until stopConsuming, or the test's end.
func (f *fleet) consume() {
	sub, err := f.lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(f.t.Context())
	var consumer sync.WaitGroup
	consumer.Go(func() {
		for ctx.Err() == nil {
			_, _ = sub.Acquire(ctx, 1)
		}
	})
	f.stopConsuming = sync.OnceFunc(func() {
		cancel()
		consumer.Wait()
	})
	f.t.Cleanup(f.stopConsuming)
}

// TestTwoPolicyStores: replicas of two etcds that share a Redis by mistake have the lower rate,
// also after the higher one was changed, and know of each other.
func TestTwoPolicyStores(t *testing.T) {
	t.Parallel()
	node, permits := services.Etcd(t), services.Patient(services.RedisServer(t).URL)
	one := newFleet(t, "etcd://"+node.Endpoint+"/one", permits)
	other := newFleet(t, "etcd://"+node.Endpoint+"/other", permits)
	for f, rate := range map[*fleet]int64{one: 20, other: 50} {
		f.change(func(ctx context.Context, store configstore.Store) error {
			_, err := store.Adopt(ctx, configstore.Adoption{})
			return err
		})
		f.set(rate)
		f.start()
		f.consume()
	}
	agree := func(rate float64) {
		t.Helper()
		for f, rival := range map[*fleet]string{one: other.id(), other: one.id()} {
			throttletest.Until(t, "the lower rate is in force for both", func() bool {
				return f.rate() == rate && slices.Equal(f.lim.Stats().Rivals, []string{rival})
			})
		}
	}
	agree(20)
	other.set(90)
	agree(20)
	other.set(9)
	agree(9)
	for f, rival := range map[*fleet]string{one: other.id(), other: one.id()} {
		throttletest.Until(t, "the log names the other one", func() bool {
			return strings.Contains(f.log.String(), rival)
		})
	}
}
