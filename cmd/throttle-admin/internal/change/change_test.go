package change

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// manyPolicies returns policies for n topics.
func manyPolicies(n int) (entries []policy.Entry) {
	for i := range n {
		topic := policy.Topic{
			Scheme: policy.Kafka, Tenant: "public", Namespace: "default",
			Name: fmt.Sprintf("t%05d", i),
		}
		entries = append(entries, policy.Entry{
			Scope:    policy.TopicScope(topic),
			Settings: policy.Policy{MessageRate: policy.PerSecond(1)},
		})
	}
	return entries
}

// A raced store has another change made, past the tools, before its first Apply.
type raced struct {
	configstore.Store
	other []configstore.Change
}

func (r *raced) Apply(ctx context.Context, c configstore.Commit) (int64, error) {
	if len(r.other) > 0 {
		other := configstore.Commit{By: configstore.By{WithoutHistory: true}, Changes: r.other}
		r.other = nil
		if _, err := r.Store.Apply(ctx, other); err != nil {
			return 0, err
		}
	}
	return r.Store.Apply(ctx, c)
}

// TestOvertaken: a change of the same scope that came first is not overwritten unseen, though no
// record of it is left, unless the change is urgent. One of another scope is merged.
func TestOvertaken(t *testing.T) {
	ctx := t.Context()
	entries := manyPolicies(2)
	mine, theirs := configstore.KeyOf(entries[0]), configstore.KeyOf(entries[1])
	set := func(k configstore.Key, rate int64) []configstore.Change {
		return []configstore.Change{{Key: k, Settings: policy.Policy{MessageRate: policy.PerSecond(rate)}}}
	}
	for name, c := range map[string]struct {
		other   configstore.Key
		urgent  bool
		refused bool
	}{
		"the same scope": {mine, false, true}, "urgent": {mine, true, false}, "another scope": {theirs, false, false},
	} {
		store := &raced{Store: configstore.NewMemory()}
		for _, e := range entries {
			_, err := store.Apply(ctx, configstore.Commit{Changes: set(configstore.KeyOf(e), 1)})
			require.NoError(t, err)
		}
		store.other = set(c.other, 5)
		plan := func(configstore.Snapshot) ([]configstore.Change, error) { return set(mine, 9), nil }
		_, err := Flags{}.apply(ctx, store, c.urgent, plan)
		_, refused := errors.AsType[*overtakenError](err)
		assert.Equal(t, c.refused, refused, "%s: %v", name, err)
		s, err := store.List(ctx)
		require.NoError(t, err)
		want := int64(9)
		if c.refused {
			want = 5
		}
		assert.Equal(t, policy.PerSecond(want), s.Entries[0].Policy().MessageRate, name)
	}
}

func TestNeededOfMany(t *testing.T) {
	entries := manyPolicies(16_000)
	var changes []configstore.Change
	for _, e := range entries {
		changes = append(changes, configstore.Change{Key: configstore.KeyOf(e), Settings: e.Policy()})
	}
	stored := configstore.Snapshot{Entries: entries[:10_000]}
	assert.Len(t, needed(stored, changes), 6000, "10,000 are stored already")
}
