package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// markers: the first Apply makes the marker, each one counts the permanent entries, and Adopt
// makes the epoch later.
func markers(t *testing.T, b Backend) {
	if b.Plain {
		t.Skip("the store has no marker of its own")
	}
	ctx, s := patience(t), b.Open(t)
	_, err := s.Apply(ctx, configstore.Commit{Changes: append(put(Orders, rate(1)), put(topic("x"), rate(2))...)})
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
	_, err = s.Apply(ctx, configstore.Commit{Changes: append(put(topic("x"), policy.Policy{}),
		configstore.Change{Key: temporary, Settings: rate(3), TTL: time.Hour})})
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
		t.Skip("nobody can delete the policies, or the store is plain")
	}
	ctx, s := patience(t), b.Open(t)
	got := follows(ctx, t, s)
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
		assert.NotEqual(t, policy.FaultUnavailable, policy.FaultOf(i.err))
		assert.ErrorContains(t, i.err, why)
		assert.ErrorContains(t, i.err, "throttle-admin adopt")
	}
	refused("is empty")
	_, err := s.Apply(ctx, configstore.Commit{Changes: put(Orders, rate(1))})
	require.NoError(t, err, "the first Apply adopts an empty store")
	first := next(1)

	b.Empty(t)
	refused("has lost its policies (1)")
	_, err = s.Apply(ctx, configstore.Commit{Changes: put(Orders, rate(2))})
	assert.Equal(t, policy.FaultLost, policy.FaultOf(err))
	_, err = s.Adopt(ctx, configstore.Adoption{ID: first.Identity})
	require.NoError(t, err)
	emptied := next(0)
	assert.Greater(t, emptied.Epoch, first.Epoch)
	_, err = s.Apply(ctx, configstore.Commit{Changes: put(Orders, rate(3))})
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
