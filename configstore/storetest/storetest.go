// Package storetest checks that a configstore.Store does what its comments promise.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A Backend is where the stores of one test keep their policies.
type Backend struct {
	// Open returns a store on the backend. All of them share its policies.
	Open func(t *testing.T) configstore.Store

	// Corrupt damages the stored data directly, so that the permanent policy of Orders, or all
	// policies, cannot be read. Nil: the data cannot be damaged.
	Corrupt func(t *testing.T)

	// Empty deletes all policies directly, but not the marker; Wipe deletes all. Nil: nobody can, or
	// the store is plain.
	Empty, Wipe func(t *testing.T)

	Plain bool // it has no marker of its own

	// Private says that the policies are lost with the store, which then cannot be opened again.
	Private bool
}

// Orders is the scope that Corrupt damages.
var Orders = topic("orders")

func topic(name string) policy.Scope {
	return policy.TopicScope(
		policy.Topic{Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: name},
	)
}

func rate(n int64) policy.Policy { return policy.Policy{MessageRate: policy.PerSecond(n)} }

func put(scope policy.Scope, s policy.Settings) []configstore.Change {
	return []configstore.Change{
		{Key: configstore.Key{Section: s.Section(), Scope: scope}, Settings: s},
	}
}

func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	t.Cleanup(cancel)
	return ctx
}

// receive returns the next value, or ends the test.
func receive[T any](ctx context.Context, t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-ctx.Done():
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// Run checks the stores of backends. newBackend returns an empty one for each test.
func Run(t *testing.T, newBackend func(t *testing.T) Backend) {
	for name, test := range map[string]func(*testing.T, Backend){
		"AllOrNothing":     allOrNothing,
		"Conflict":         conflict,
		"ConcurrentEdits":  concurrentEdits,
		"Temporary":        temporary,
		"ReplaceTwice":     replaceTwice,
		"WatchMissesNone":  watchMissesNone,
		"CloseEndsWatches": closeEndsWatches,
		"Follow":           follow,
		"Restart":          restart,
		"BadData":          badData,
		"ManyAtOnce":       manyAtOnce,
		"OverReserved":     overReserved,
		"Markers":          markers,
		"NotAdopted":       notAdopted,
	} {
		t.Run(name, func(t *testing.T) { test(t, newBackend(t)) })
	}
}

// overReserved: quotas reserve at most the declared capacity, whichever of the two is changed.
func overReserved(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	quota := func(reserved int64) policy.Quota {
		return policy.Quota{Reserved: &reserved, Total: new(int64(1000))}
	}
	capacity := func(n int64) []configstore.Change {
		return put(policy.ClusterScope(), policy.QuotaSettings{Capacity: &n})
	}
	apply := func(changes []configstore.Change) error {
		_, err := s.Apply(ctx, changes, 0)
		return err
	}
	require.NoError(t, apply(append(put(policy.TagScope("a"), quota(60)), capacity(100)...)))
	fault := new(policy.FieldError)
	require.ErrorAs(t, apply(put(policy.TenantScope("b"), quota(41))), &fault)
	assert.Equal(t, policy.FieldError{
		Field: "reserved", Value: "101",
		Reason: "all quotas together reserve more than the cluster's capacity, 100: " +
			"reserve less, or raise the capacity",
	}, *fault)
	require.NoError(t, apply(put(policy.TenantScope("b"), quota(40))))
	require.ErrorAs(t, apply(capacity(99)), new(*policy.FieldError))
	require.NoError(
		t, apply(append(capacity(99), put(policy.TagScope("a"), quota(59))...)), "both at once",
	)
	require.NoError(t, apply(put(Orders, rate(5))), "a policy has no part in it")
	require.NoError(
		t, apply(put(policy.ClusterScope(), policy.QuotaSettings{})), "no capacity is declared",
	)
	require.NoError(t, apply(put(policy.TenantScope("b"), quota(400))))
	list, err := s.List(ctx)
	require.NoError(t, err)
	set, err := policy.NewSet(list.Entries)
	require.NoError(t, err)
	assert.Len(t, set.Quotas(), 2)
}

func allOrNothing(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	empty, err := s.List(ctx)
	require.NoError(t, err)
	assert.Empty(t, empty.Entries)
	assert.Zero(t, empty.Marker.Count)

	_, err = s.Apply(ctx, append(put(Orders, rate(1)), put(topic("x"), rate(-1))...), 0)
	assert.ErrorAs(t, err, new(*policy.FieldError))
	_, err = s.Apply(ctx, append(put(Orders, rate(1)), put(Orders, rate(2))...), 0)
	assert.ErrorAs(t, err, new(*policy.FieldError))
	_, err = s.Apply(
		ctx,
		append(put(policy.PatternScope("a."), rate(1)), put(policy.PatternScope("b."), rate(2))...),
		0,
	)
	assert.ErrorAs(t, err, new(*policy.TieError))
	_, err = s.Apply(
		ctx,
		[]configstore.Change{
			{Key: configstore.Key{Scope: Orders, Field: "messageRate"}, Settings: rate(1)},
		},
		0,
	)
	assert.ErrorAs(t, err, new(*policy.FieldError), "no TTL")
	list, err := s.List(ctx)
	require.NoError(t, err)
	assert.Empty(t, list.Entries)

	full := policy.Policy{
		MessageRate: policy.Rate{
			Permits: 1, Period: 6 * time.Second,
		}, ByteRate: policy.PerSecond(0), Burst: new(int64(0)), ByteBurst: new(int64(5)),
		Round: policy.Duration(time.Second), Mode: policy.Shadow, Paused: new(false),
		OnOutage: policy.OutageOpen,
		CaughtUp: policy.CaughtUp{
			Throttle: new(true), Backlog: new(int64(7)),
		}, Ramp: policy.Ramp{Over: policy.Duration(time.Minute)},
		Sharing: policy.Sharing{
			Mode: policy.Groups, Groups: []string{"eu", "1"}, KeepBack: new(0.5),
		},
	}
	scopes := []policy.Scope{
		policy.ClusterScope(),
		policy.NamespaceScope("public", "", "default"),
		policy.NamespaceScope("public", "east", "default"),
		policy.PatternScope(`^kafka://public/.*/a: #"'b|\d$`),
		Orders,
		Orders.WithSubscription("a/b ?c"),
	}
	var changes []configstore.Change
	for _, scope := range scopes {
		changes = append(changes, put(scope, full)...)
	}
	revision, err := s.Apply(ctx, changes, 0)
	require.NoError(t, err)
	list, err = s.List(ctx)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, list.Revision, revision)
	assert.Greater(t, revision, empty.Revision)
	assert.Less(t, revision, int64(1)<<53)
	require.Len(t, list.Entries, len(scopes))
	for i, e := range list.Entries {
		assert.Equal(t, scopes[i], e.Scope)
		assert.Equal(t, full, e.Settings)
		assert.NoError(t, e.Err)
	}
	again, err := s.Apply(ctx, list.Remove(policy.PolicySection, Orders), 0)
	require.NoError(t, err)
	assert.Greater(t, again, revision, "a removal moves the revision on")
	list, err = s.List(ctx)
	require.NoError(t, err)
	_, ok := list.Find(configstore.Key{Scope: Orders})
	assert.False(t, ok)
}

func conflict(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	first, err := s.Apply(ctx, put(Orders, rate(1)), 0)
	require.NoError(t, err)
	second, err := s.Apply(ctx, put(Orders, policy.Policy{}), first)
	require.NoError(t, err)
	_, err = s.Apply(ctx, put(topic("x"), rate(1)), first)
	late, ok := errors.AsType[*configstore.ConflictError](err)
	require.True(t, ok, "a deletion counts: %v", err)
	assert.Equal(t, configstore.ConflictError{Have: second, Want: first}, *late)
	list, err := s.List(ctx)
	require.NoError(t, err)
	assert.Equal(t, second, list.Applied)
	_, err = s.Apply(ctx, put(topic("x"), rate(1)), second)
	assert.NoError(t, err)
}

func concurrentEdits(t *testing.T, b Backend) {
	ctx := patience(t)
	stores := []configstore.Store{b.Open(t), nil}
	if stores[1] = stores[0]; !b.Private {
		stores[1] = b.Open(t)
	}
	const each = 10
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range each {
				plan := func(s configstore.Snapshot) ([]configstore.Change, error) {
					old, _ := s.Find(configstore.Key{Scope: Orders})
					burst := *old.(policy.Policy).WithDefaults().Burst
					return s.Set(Orders, policy.Policy{Burst: new(burst + 1)}), nil
				}
				_, err := configstore.Edit(ctx, stores[i%2], plan)
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	list, err := stores[0].List(ctx)
	require.NoError(t, err)
	p, _ := list.Find(configstore.Key{Scope: Orders})
	assert.Equal(t, int64(4*each), *p.(policy.Policy).WithDefaults().Burst, "an update was lost")
}

func temporary(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	edit := func(change func(configstore.Snapshot) []configstore.Change) {
		plan := func(s configstore.Snapshot) ([]configstore.Change, error) { return change(s), nil }
		_, err := configstore.Edit(ctx, s, plan)
		require.NoError(t, err)
	}
	resolved := func() policy.Policy {
		list, err := s.List(ctx)
		require.NoError(t, err)
		set, err := policy.NewSet(list.Entries)
		require.NoError(t, err)
		return set.Resolve("", Orders.Topic, "").Topic
	}
	edit(func(s configstore.Snapshot) []configstore.Change { return s.Set(Orders, rate(1)) })
	edit(func(s configstore.Snapshot) []configstore.Change {
		p := rate(2)
		p.Paused = new(true)
		return s.SetFor(Orders, p, time.Hour)
	})
	edit(func(s configstore.Snapshot) []configstore.Change {
		return s.SetFor(
			Orders, policy.Policy{Burst: new(int64(3)), ByteRate: policy.PerSecond(4)}, time.Hour,
		)
	})
	assert.Equal(
		t,
		policy.Policy{
			MessageRate: policy.PerSecond(2), Paused: new(true), Burst: new(int64(3)),
			ByteRate: policy.PerSecond(4),
		},
		resolved(),
	)
	var before configstore.Snapshot
	throttletest.Until(t, "the policies are listed before the first ones end", func() bool {
		edit(func(s configstore.Snapshot) []configstore.Change {
			p := rate(2)
			p.Paused = new(true)
			return s.SetFor(Orders, p, 5*time.Second)
		})
		list, err := s.List(ctx)
		require.NoError(t, err)
		before = list
		return len(before.Entries) == 5
	})

	ended := make(map[string]bool)
	for batch, err := range s.Watch(ctx, before) {
		require.NoError(t, err)
		for _, k := range batch.Deletes {
			ended[k.Field] = true
		}
		if len(ended) == 2 {
			break
		}
	}
	assert.Equal(t, map[string]bool{"messageRate": true, "paused": true}, ended)
	assert.Equal(
		t,
		policy.Policy{
			MessageRate: policy.PerSecond(1), Burst: new(int64(3)), ByteRate: policy.PerSecond(4),
		},
		resolved(), "what was there is back",
	)
	after, err := s.List(ctx)
	require.NoError(t, err)
	assert.Greater(t, after.Revision, before.Revision)

	edit(func(s configstore.Snapshot) []configstore.Change {
		return s.Set(Orders, policy.Policy{Burst: new(int64(5))})
	})
	assert.Equal(
		t, int64(5), *resolved().WithDefaults().Burst, "a permanent set ends the temporary one",
	)
	edit(func(s configstore.Snapshot) []configstore.Change {
		return s.SetAndUnset(Orders, policy.Policy{}, "byteRate", "burst")
	})
	assert.Equal(t, rate(1), resolved())
	edit(func(s configstore.Snapshot) []configstore.Change {
		return s.Remove(policy.PolicySection, Orders)
	})
	assert.True(t, policy.IsZero(resolved()))
}

// replaceTwice: Replace changes nothing when the entries are the same already, with their ends.
func replaceTwice(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	now := time.Now()
	end := func(d time.Duration) time.Time { return now.Add(d).UTC().Round(0) }
	want := []policy.Entry{
		{Scope: Orders, Settings: rate(1)},
		{
			Scope: Orders, Settings: policy.Policy{Burst: new(int64(1))}, Temporary: true,
			Field:   "burst",
			Expires: end(time.Hour + 1),
		},
		{
			Scope: Orders, Settings: rate(2), Temporary: true, Field: "messageRate",
			Expires: end(90 * time.Minute),
		},
		{
			Scope: Orders, Settings: policy.Policy{Paused: new(true)}, Temporary: true,
			Field:   "paused",
			Expires: end(configstore.MaxTTL),
		},
	}
	list, err := s.List(ctx)
	require.NoError(t, err)
	_, err = s.Apply(ctx, list.Replace(want, now), 0)
	require.NoError(t, err)
	list, err = s.List(ctx)
	require.NoError(t, err)
	require.Len(t, list.Entries, len(want))
	for i, e := range list.Entries {
		assert.True(
			t, want[i].Expires.Equal(e.Expires), "%s ends at %v, not %v", e.Field, e.Expires,
			want[i].Expires,
		)
	}
	assert.Empty(t, list.Replace(want, now.Add(time.Second)))
}

func watchMissesNone(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	const n = 50
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for i := range n {
			_, err := s.Apply(ctx, put(topic(fmt.Sprint("t", i)), rate(int64(i))), 0)
			assert.NoError(t, err)
		}
	})
	seen := make(map[policy.Scope]bool)
	for len(seen) < n && ctx.Err() == nil {
		list, err := s.List(ctx)
		require.NoError(t, err)
		for _, e := range list.Entries {
			seen[e.Scope] = true
		}
		last := list.Revision
		for batch, err := range s.Watch(ctx, list) {
			if errors.Is(err, configstore.ErrCompacted) {
				break
			}
			require.NoError(t, err)
			require.Greater(t, batch.Revision, last)
			last = batch.Revision
			for _, e := range batch.Puts {
				seen[e.Scope] = true
			}
			if len(seen) >= n {
				break
			}
		}
	}
	assert.Len(t, seen, n)
}

func closeEndsWatches(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	list, err := s.List(ctx)
	require.NoError(t, err)
	before := goleak.IgnoreCurrent()
	ended := make(chan error, 1)
	go func() {
		var last error
		for _, err := range s.Watch(ctx, list) {
			last = err
		}
		ended <- last
	}()
	time.Sleep(50 * time.Millisecond) // it most likely waits by now
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	select {
	case err := <-ended:
		assert.ErrorIs(t, err, configstore.ErrClosed)
	case <-ctx.Done():
		t.Fatal("the watch goes on")
	}
	_, err = s.List(ctx)
	assert.ErrorIs(t, err, configstore.ErrClosed)
	_, err = s.Apply(ctx, put(Orders, rate(1)), 0)
	assert.ErrorIs(t, err, configstore.ErrClosed)
	for snap, err := range configstore.Source(s).Snapshots(ctx) {
		t.Errorf("a closed store yields %v, %v", snap, err)
	}
	goleak.VerifyNone(t, before)
}

// markers: the first Apply makes the marker, each one counts the permanent entries, and Adopt
// makes the epoch later.
func markers(t *testing.T, b Backend) {
	if b.Plain {
		return
	}
	ctx, s := patience(t), b.Open(t)
	_, err := s.Apply(ctx, append(put(Orders, rate(1)), put(topic("x"), rate(2))...), 0)
	require.NoError(t, err)
	marker := func() configstore.Marker {
		list, err := s.List(ctx)
		require.NoError(t, err)
		return list.Marker
	}
	first := marker()
	assert.NotEmpty(t, first.ID)
	assert.InDelta(t, time.Now().UnixMilli(), first.Epoch, 60_000)
	assert.Equal(t, 2, first.Count)
	temporary := configstore.Key{Scope: Orders, Field: "messageRate"}
	_, err = s.Apply(ctx, append(put(topic("x"), policy.Policy{}),
		configstore.Change{Key: temporary, Settings: rate(3), TTL: time.Hour}), 0)
	require.NoError(t, err)
	assert.Equal(t, configstore.Marker{
		ID: first.ID, Epoch: first.Epoch, Serial: first.Serial + 1, Count: 1,
	}, marker())

	adopted, err := s.Adopt(ctx, configstore.Adoption{})
	require.NoError(t, err)
	assert.Equal(t, adopted, marker())
	assert.Equal(t, first.ID, adopted.ID)
	assert.Greater(t, adopted.Epoch, first.Epoch)
	assert.Equal(t, 1, adopted.Count)
	assert.Equal(t, first.Serial+2, adopted.Serial)
	after := adopted.Epoch + time.Hour.Milliseconds()
	adopted, err = s.Adopt(ctx, configstore.Adoption{After: after})
	require.NoError(t, err)
	assert.Equal(t, after+1, adopted.Epoch, "a clock was ahead when replicas learned of it")
	other, err := s.Adopt(ctx, configstore.Adoption{ID: "another"})
	require.NoError(t, err)
	assert.Equal(t, "another", other.ID)
	assert.Greater(t, other.Epoch, adopted.Epoch)
	list, err := s.List(ctx)
	require.NoError(t, err)
	assert.Len(t, list.Entries, 2, "the policies stay")
}

// notAdopted: a Follower takes no policies from a store that has lost them or its marker, and says
// why once; an Apply to it fails. Adopt ends that.
func notAdopted(t *testing.T, b Backend) {
	if b.Wipe == nil {
		return
	}
	ctx, s := patience(t), b.Open(t)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type item struct {
		snap policy.Snapshot
		err  error
	}
	got := make(chan item, 100)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for snap, err := range configstore.Source(s).Snapshots(ctx) {
			got <- item{snap, err}
		}
	})
	next := func(entries int) policy.Snapshot {
		t.Helper()
		for {
			i := receive(ctx, t, got)
			require.NoError(t, i.err)
			if len(i.snap.Set.Entries()) == entries {
				return i.snap
			}
		}
	}
	refused := func(why string) {
		t.Helper()
		i := receive(ctx, t, got)
		for i.err == nil { // what was in force may come twice
			i = receive(ctx, t, got)
		}
		require.ErrorIs(t, i.err, configstore.ErrNotAdopted)
		assert.ErrorContains(t, i.err, why)
		assert.ErrorContains(t, i.err, "throttle-admin adopt")
	}
	refused("is empty")
	_, err := s.Apply(ctx, put(Orders, rate(1)), 0)
	require.NoError(t, err, "the first Apply adopts an empty store")
	first := next(1)

	b.Empty(t)
	refused("has lost its policies (1)")
	_, err = s.Apply(ctx, put(Orders, rate(2)), 0)
	require.ErrorIs(t, err, configstore.ErrNotAdopted)
	_, err = s.Adopt(ctx, configstore.Adoption{ID: first.Identity})
	require.NoError(t, err)
	emptied := next(0)
	assert.Greater(t, emptied.Epoch, first.Epoch)
	_, err = s.Apply(ctx, put(Orders, rate(3)), 0)
	require.NoError(t, err)
	next(1)

	b.Wipe(t)
	refused("is empty")
	_, err = s.Adopt(ctx, configstore.Adoption{ID: first.Identity})
	require.NoError(t, err)
	wiped := next(0)
	assert.Equal(t, first.Identity, wiped.Identity)
	assert.Empty(t, got, "nothing was said twice")
}

// follow checks that a Follower yields each change soon.
func follow(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	if !b.Plain {
		_, err := s.Adopt(ctx, configstore.Adoption{})
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got := make(chan policy.Snapshot, 100)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for snap, err := range configstore.Source(s).Snapshots(ctx) {
			assert.NoError(t, err)
			got <- snap
		}
	})
	first := receive(ctx, t, got)
	assert.Empty(t, first.Set.Entries())
	last := first.Revision
	permits := int64(0)
	for range 20 {
		permits++
		revision, err := s.Apply(ctx, put(Orders, rate(permits)), 0)
		require.NoError(t, err)
		for {
			snap := receive(ctx, t, got)
			require.GreaterOrEqual(t, snap.Revision, last)
			last = snap.Revision
			assert.Equal(t, first.Identity, snap.Identity)
			if snap.Revision >= revision {
				assert.Equal(
					t, policy.PerSecond(permits),
					snap.Set.Resolve("", Orders.Topic, "").Topic.MessageRate,
				)
				break
			}
		}
	}
}

func restart(t *testing.T, b Backend) {
	if b.Private {
		return
	}
	ctx, s := patience(t), b.Open(t)
	_, err := s.Apply(ctx, put(Orders, rate(1)), 0)
	require.NoError(t, err)
	before, err := s.List(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	after, err := b.Open(t).List(ctx)
	require.NoError(t, err)
	assert.Equal(t, before, after)
}

// badData: a follower keeps the last valid policy, and reports the fault once.
func badData(t *testing.T, b Backend) {
	if b.Corrupt == nil {
		return
	}
	ctx, s := patience(t), b.Open(t)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, err := s.Apply(ctx, put(Orders, rate(1)), 0)
	require.NoError(t, err)
	type item struct {
		snap policy.Snapshot
		err  error
	}
	got := make(chan item, 100)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for snap, err := range configstore.Source(s).Snapshots(ctx) {
			got <- item{snap, err}
		}
	})
	require.NoError(t, receive(ctx, t, got).err)
	b.Corrupt(t)
	bad := receive(ctx, t, got)
	for bad.err == nil && bad.snap.Set.Entries()[0].Err == nil {
		bad = receive(ctx, t, got) // the valid one may come twice
	}
	if bad.err == nil { // one entry of a snapshot
		require.Error(t, bad.snap.Set.Entries()[0].Err)
		assert.Equal(t, policy.PerSecond(1),
			bad.snap.Set.Resolve("", Orders.Topic, "").Topic.MessageRate)
		_, err = s.Apply(ctx, put(Orders, rate(2)), 0)
		require.NoError(t, err, "bad data can be replaced")
		assert.Equal(
			t, policy.PerSecond(2),
			receive(ctx, t, got).snap.Set.Resolve("", Orders.Topic, "").Topic.MessageRate,
		)
		return
	}
	select {
	case again := <-got:
		t.Errorf("reported twice: %v", again.err)
	case <-time.After(200 * time.Millisecond):
	}
	_, err = s.Apply(ctx, put(Orders, rate(2)), 0)
	assert.Error(t, err, "what cannot be read is not overwritten")
}

func manyAtOnce(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	var changes []configstore.Change
	for i := range 2000 {
		changes = append(changes, put(topic(fmt.Sprint("t", i)), rate(int64(i)))...)
	}
	_, err := s.Apply(ctx, changes, 0)
	require.NoError(t, err)
	list, err := s.List(ctx)
	require.NoError(t, err)
	require.Len(t, list.Entries, len(changes))
	entries := list.Entries[:1000]
	changes = list.Replace(entries, time.Now())
	assert.Len(t, changes, 1000, "what is the same stays")
	_, err = s.Apply(ctx, changes, list.Revision)
	require.NoError(t, err)
	list, err = s.List(ctx)
	require.NoError(t, err)
	assert.Len(t, list.Entries, 1000)
}
