package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// historyOf returns the records of a store, the newest first, all of which can be read.
func historyOf(ctx context.Context, t *testing.T, s configstore.Store) (records []configstore.Record) {
	t.Helper()
	for r, err := range s.History(ctx) {
		require.NoError(t, err)
		require.NoError(t, r.Err)
		records = append(records, r)
	}
	return records
}

func commit(by configstore.By, changes ...[]configstore.Change) configstore.Commit {
	c := configstore.Commit{By: by}
	for _, some := range changes {
		c.Changes = append(c.Changes, some...)
	}
	return c
}

func value(s policy.Settings) configstore.Value { return configstore.Value{Settings: s} }

// history: each Apply is recorded with its author, its reason and the values before and after it.
func history(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	assert.Empty(t, historyOf(ctx, t, s))
	ann := configstore.By{Author: "ann@host", Reason: "a load test"}
	bob := configstore.By{Author: "bob\x1b[2J\u202e", Reason: "line\nline"}
	quota := policy.Quota{Reserved: new(int64(1)), Total: new(int64(2))}
	first, err := s.Apply(ctx, commit(ann, put(Orders, rate(1)), put(policy.TagScope("a"), quota)))
	require.NoError(t, err)
	pause := configstore.Change{
		Key:      configstore.Key{Scope: Orders, Field: "paused"},
		Settings: policy.Policy{Paused: new(true)}, TTL: time.Hour,
	}
	second, err := s.Apply(ctx, commit(bob, put(Orders, rate(2)), []configstore.Change{pause}))
	require.NoError(t, err)
	_, err = s.Apply(ctx, commit(bob, put(Orders, rate(-1))))
	require.Error(t, err, "what is refused leaves no record")
	third, err := s.Apply(ctx, commit(configstore.By{}, put(Orders, policy.Policy{})))
	require.NoError(t, err)
	if !b.Private {
		s = b.Open(t)
	}
	got := historyOf(ctx, t, s)
	require.Len(t, got, 3)
	for _, r := range got {
		assert.WithinDuration(t, time.Now(), r.Time, longest)
	}
	ends := got[1].Changes[1].Is.Expires
	assert.WithinDuration(t, time.Now().Add(time.Hour), ends, longest)
	key, quotaKey := configstore.Key{Scope: Orders}, configstore.Key{Section: policy.QuotaSection, Scope: policy.TagScope("a")}
	assert.Equal(t, []configstore.Record{
		{Revision: third, Time: got[0].Time, Changes: []configstore.Changed{{Key: key, Was: value(rate(2))}}},
		{Revision: second, Time: got[1].Time, By: bob, Changes: []configstore.Changed{
			{Key: key, Was: value(rate(1)), Is: value(rate(2))},
			{Key: pause.Key, Is: configstore.Value{Settings: pause.Settings, Expires: ends}},
		}},
		{Revision: first, Time: got[2].Time, By: ann, First: true, Changes: []configstore.Changed{
			{Key: key, Is: value(rate(1))}, {Key: quotaKey, Is: value(quota)},
		}},
	}, got)

	long := configstore.By{Author: string(make([]byte, configstore.MaxAuthor+1)), Reason: string(make([]byte, configstore.MaxReason+1))}
	_, err = s.Apply(ctx, commit(long, put(Orders, rate(1))))
	require.ErrorAs(t, err, new(*policy.FieldError))
	assert.ErrorContains(t, err, "author")
	assert.ErrorContains(t, err, "reason")
}

// undo: records of the newest changes are undone in one step, and a temporary value comes back for
// what is left of its time.
func undo(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	apply := func(changes ...configstore.Change) {
		t.Helper()
		_, err := s.Apply(ctx, configstore.Commit{Changes: changes})
		require.NoError(t, err)
	}
	temporary := func(p policy.Policy, field string, ttl time.Duration) configstore.Change {
		return configstore.Change{Key: configstore.Key{Scope: Orders, Field: field}, Settings: p, TTL: ttl}
	}
	apply(put(Orders, rate(1))...)
	apply(temporary(rate(5), "messageRate", time.Hour), temporary(policy.Policy{Paused: new(true)}, "paused", time.Hour))
	before, err := s.List(ctx)
	require.NoError(t, err)
	apply(append(put(topic("x"), rate(9)), put(Orders, rate(2))...)...)
	list, err := s.List(ctx)
	require.NoError(t, err)
	apply(list.Remove(policy.PolicySection, Orders)...)

	now := time.Now()
	list, err = s.List(ctx)
	require.NoError(t, err)
	records := historyOf(ctx, t, s)
	changes, err := list.Undo(records[:2], now)
	require.NoError(t, err)
	apply(changes...)
	list, err = s.List(ctx)
	require.NoError(t, err)
	require.Len(t, list.Entries, len(before.Entries))
	for i, e := range list.Entries {
		assert.True(t, configstore.Same(before.Entries[i], e), "%v is not %v", e, before.Entries[i])
	}
	changes, err = list.Undo(historyOf(ctx, t, s)[:3], now)
	require.NoError(t, err)
	assert.Empty(t, changes, "it is as it was already")
	changes, err = configstore.Snapshot{}.Undo(records[:2], now.Add(2*time.Hour))
	require.NoError(t, err)
	assert.Equal(t, put(Orders, rate(1)), changes, "what was temporary has ended")
}

// pastTheTools: what was written by other means is found, by an unknown author, and the next Apply
// records it.
func pastTheTools(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	ann := configstore.By{Author: "ann"}
	write := b.Write
	if write == nil { // nobody can
		write = func(t *testing.T, changes []configstore.Change) {
			_, err := s.Apply(ctx, commit(configstore.By{Author: "ann", WithoutHistory: true}, changes))
			require.NoError(t, err)
		}
	}
	write(t, put(Orders, rate(1)))
	key, other := configstore.Key{Scope: Orders}, configstore.Key{Scope: topic("x")}
	got := historyOf(ctx, t, s)
	require.Len(t, got, 1)
	assert.True(t, got[0].Found)
	assert.True(t, got[0].First)
	assert.Equal(t, value(rate(1)), got[0].Changes[0].Is)

	_, err := s.Apply(ctx, commit(ann, put(topic("x"), rate(2)), put(topic("y"), rate(3))))
	require.NoError(t, err)
	got = historyOf(ctx, t, s)
	require.Len(t, got, 2)
	assert.Equal(t, "ann", got[0].Author)
	assert.True(t, got[1].First)

	_, err = s.Apply(ctx, commit(configstore.By{Author: "ann", WithoutHistory: true}, put(topic("y"), policy.Policy{})))
	require.NoError(t, err)
	write(t, put(Orders, rate(10)))
	write(t, put(Orders, rate(11)))
	write(t, put(topic("x"), policy.Policy{}))
	check := func(r []configstore.Record) {
		t.Helper()
		var all []configstore.Changed
		for _, r := range r {
			assert.True(t, r.Found)
			assert.Empty(t, r.By)
			all = append(all, r.Changes...)
		}
		assert.Contains(t, all, configstore.Changed{Key: other, Was: value(rate(2))})
		assert.Contains(t, all, configstore.Changed{Key: configstore.Key{Scope: topic("y")}, Was: value(rate(3))})
		last := value(rate(1))
		if b.Write == nil { // each step is known
			last = value(rate(10))
		}
		assert.Contains(t, all, configstore.Changed{Key: key, Was: last, Is: value(rate(11))})
	}
	got = historyOf(ctx, t, s)
	check(got[:len(got)-2])
	_, err = s.Apply(ctx, commit(ann, put(topic("z"), rate(4))))
	require.NoError(t, err)
	again := historyOf(ctx, t, s)
	require.Len(t, again, len(got)+1)
	assert.Equal(t, "ann", again[0].Author)
	check(again[1 : len(again)-2])
	for i := range again[1:] {
		assert.Greater(t, again[i].Revision, again[i+1].Revision)
	}
	list, err := s.List(ctx)
	require.NoError(t, err)
	changes, err := list.Undo(again[:len(again)-2], time.Now())
	require.NoError(t, err)
	_, err = s.Apply(ctx, commit(ann, changes))
	require.NoError(t, err)
	list, err = s.List(ctx)
	require.NoError(t, err)
	assert.Len(t, list.Entries, 3)
	list, err = s.List(ctx)
	require.NoError(t, err)
	for _, wanted := range []struct {
		configstore.Key
		policy.Policy
	}{{key, rate(1)}, {other, rate(2)}} {
		p, _ := list.Find(wanted.Key)
		assert.Equal(t, wanted.Policy, p)
	}
}

// unwritable: a change whose record cannot be kept is refused, unless it goes without.
func unwritable(t *testing.T, b Backend) {
	if b.Damage == nil {
		t.Skip("the history cannot be damaged")
	}
	ctx, s := patience(t), b.Open(t)
	_, err := s.Apply(ctx, commit(configstore.By{}, put(Orders, rate(1))))
	require.NoError(t, err)
	b.Damage(t)
	_, err = s.Apply(ctx, commit(configstore.By{}, put(Orders, rate(2))))
	require.ErrorAs(t, err, new(*configstore.HistoryError))
	failed := false
	for _, err := range s.History(ctx) {
		failed = failed || err != nil
	}
	assert.True(t, failed)
	list, err := s.List(ctx)
	require.NoError(t, err)
	p, _ := list.Find(configstore.Key{Scope: Orders})
	assert.Equal(t, rate(1), p)
	_, err = s.Apply(ctx, commit(configstore.By{WithoutHistory: true}, put(Orders, rate(2))))
	require.NoError(t, err)
	list, err = s.List(ctx)
	require.NoError(t, err)
	p, _ = list.Find(configstore.Key{Scope: Orders})
	assert.Equal(t, rate(2), p)
}

// endedPastTheTools: a temporary value that was removed by other means is found as any other
// change.
func endedPastTheTools(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	ann := configstore.By{Author: "ann"}
	pause := configstore.Change{
		Key:      configstore.Key{Scope: Orders, Field: "paused"},
		Settings: policy.Policy{Paused: new(true)}, TTL: time.Hour,
	}
	_, err := s.Apply(ctx, commit(ann, put(Orders, rate(1)), []configstore.Change{pause}))
	require.NoError(t, err)
	was := historyOf(ctx, t, s)[0].Changes[1].Is
	end := []configstore.Change{{Key: pause.Key}}
	if b.Write == nil {
		_, err = s.Apply(ctx, commit(configstore.By{WithoutHistory: true}, end))
		require.NoError(t, err)
	} else {
		b.Write(t, end)
	}
	want := []configstore.Changed{{Key: pause.Key, Was: was}}
	got := historyOf(ctx, t, s)
	require.Len(t, got, 2)
	assert.True(t, got[0].Found)
	assert.Equal(t, want, got[0].Changes)
	_, err = s.Apply(ctx, commit(ann, put(topic("x"), rate(2))))
	require.NoError(t, err)
	got = historyOf(ctx, t, s)
	require.Len(t, got, 3)
	assert.True(t, got[1].Found)
	assert.Equal(t, want, got[1].Changes)
}

// reasonRequired: where the settings require a reason, a change without one is refused, and so is
// one that would end the requirement.
func reasonRequired(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	cluster := policy.ClusterScope()
	_, err := s.Apply(ctx, commit(configstore.By{}, put(cluster, policy.HistorySettings{ReasonRequired: new(true)})))
	require.NoError(t, err)
	for _, changes := range [][]configstore.Change{
		put(Orders, rate(1)), put(cluster, policy.HistorySettings{ReasonRequired: new(false)}),
	} {
		for _, blank := range []string{"", " \t\n", "\u200b\u202e"} {
			_, err = s.Apply(ctx, commit(configstore.By{Author: "ann", Reason: blank}, changes))
			fault := new(policy.FieldError)
			require.ErrorAs(t, err, &fault, "%q", blank)
			assert.Equal(t, "reason", fault.Field)
		}
		_, err = s.Apply(ctx, commit(configstore.By{Reason: "why"}, changes))
		require.NoError(t, err)
		_, err = s.Apply(ctx, commit(configstore.By{Reason: "why"},
			put(cluster, policy.HistorySettings{ReasonRequired: new(true)})))
		require.NoError(t, err)
	}
	_, err = s.Apply(ctx, commit(configstore.By{WithoutHistory: true}, put(Orders, rate(2))))
	require.NoError(t, err)
}

// tenThousand: an Apply of 10,000 policies, or of the most that the store takes, is one change with
// its record. Names without a pattern compress badly.
func tenThousand(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	var changes []configstore.Change
	for range b.most() {
		changes = append(changes, put(topic(fmt.Sprintf("%016x%016x", rnd.Uint64(), rnd.Uint64())), rate(1+rnd.Int64N(4e5)))...)
	}
	_, err := s.Apply(ctx, commit(configstore.By{}, changes))
	require.NoError(t, err)
	for i := range changes {
		changes[i].Settings = rate(5e5 + rnd.Int64N(5e5))
	}
	_, err = s.Apply(ctx, commit(configstore.By{}, changes))
	require.NoError(t, err)
	records := historyOf(ctx, t, s)
	require.Len(t, records, 2)
	list, err := s.List(ctx)
	require.NoError(t, err)
	undone, err := list.Undo(records[:1], time.Now())
	require.NoError(t, err)
	assert.Len(t, undone, len(changes))
	undone, err = list.Undo(records, time.Now())
	require.NoError(t, err)
	require.Len(t, undone, len(changes))
	assert.True(t, undone[0].Deletes())
}
