package storetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

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
		_, err := s.Apply(ctx, configstore.Commit{Changes: changes})
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

	_, err = s.Apply(ctx, configstore.Commit{Changes: append(put(Orders, rate(1)), put(topic("x"), rate(-1))...)})
	assert.ErrorAs(t, err, new(*policy.FieldError))
	_, err = s.Apply(ctx, configstore.Commit{Changes: append(put(Orders, rate(1)), put(Orders, rate(2))...)})
	assert.ErrorAs(t, err, new(*policy.FieldError))
	_, err = s.Apply(
		ctx, configstore.Commit{Changes: append(put(policy.PatternScope("a."), rate(1)), put(policy.PatternScope("b."), rate(2))...)})

	assert.ErrorAs(t, err, new(*policy.TieError))
	_, err = s.Apply(
		ctx, configstore.Commit{Changes: []configstore.Change{
			{Key: configstore.Key{Scope: Orders, Field: "messageRate"}, Settings: rate(1)},
		}})

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
	revision, err := s.Apply(ctx, configstore.Commit{Changes: changes})
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
	again, err := s.Apply(ctx, configstore.Commit{Changes: list.Remove(policy.PolicySection, Orders)})
	require.NoError(t, err)
	assert.Greater(t, again, revision, "a removal moves the revision on")
	list, err = s.List(ctx)
	require.NoError(t, err)
	_, ok := list.Find(configstore.Key{Scope: Orders})
	assert.False(t, ok)
}

func conflict(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	first, err := s.Apply(ctx, configstore.Commit{Changes: put(Orders, rate(1))})
	require.NoError(t, err)
	second, err := s.Apply(ctx, configstore.Commit{Changes: put(Orders, policy.Policy{}), IfRevision: first})
	require.NoError(t, err)
	_, err = s.Apply(ctx, configstore.Commit{Changes: put(topic("x"), rate(1)), IfRevision: first})
	late, ok := errors.AsType[*configstore.ConflictError](err)
	require.True(t, ok, "a deletion counts: %v", err)
	assert.Equal(t, configstore.ConflictError{Have: second, Want: first}, *late)
	list, err := s.List(ctx)
	require.NoError(t, err)
	assert.Equal(t, second, list.Applied)
	_, err = s.Apply(ctx, configstore.Commit{Changes: put(topic("x"), rate(1)), IfRevision: second})
	assert.NoError(t, err)
}

func concurrentEdits(t *testing.T, b Backend) {
	ctx := patience(t)
	stores := []configstore.Store{b.Open(t), nil}
	stores[1] = stores[0]
	if !b.Private {
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
				_, err := configstore.Edit(ctx, stores[i%2], configstore.By{}, plan)
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
		_, err := configstore.Edit(ctx, s, configstore.By{}, plan)
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
	for len(before.Entries) != 5 { // listed before the first ones end
		require.NoError(t, ctx.Err())
		edit(func(s configstore.Snapshot) []configstore.Change {
			p := rate(2)
			p.Paused = new(true)
			return s.SetFor(Orders, p, 5*time.Second)
		})
		list, err := s.List(ctx)
		require.NoError(t, err)
		before = list
	}

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
	_, err = s.Apply(ctx, configstore.Commit{Changes: list.Replace(want, now)})
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

func manyAtOnce(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	var changes []configstore.Change
	for i := range 2000 {
		changes = append(changes, put(topic(fmt.Sprint("t", i)), rate(int64(i)))...)
	}
	_, err := s.Apply(ctx, configstore.Commit{Changes: changes})
	require.NoError(t, err)
	list, err := s.List(ctx)
	require.NoError(t, err)
	require.Len(t, list.Entries, len(changes))
	entries := list.Entries[:1000]
	changes = list.Replace(entries, time.Now())
	assert.Len(t, changes, 1000, "what is the same stays")
	_, err = s.Apply(ctx, configstore.Commit{Changes: changes, IfRevision: list.Revision})
	require.NoError(t, err)
	list, err = s.List(ctx)
	require.NoError(t, err)
	assert.Len(t, list.Entries, 1000)
}
