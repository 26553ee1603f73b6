package adopt

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestChangedMeanwhile: a store that changes between the question and the answer is not adopted.
func TestChangedMeanwhile(t *testing.T) { synctest.Test(t, changedMeanwhile) }

func changedMeanwhile(t *testing.T) {
	ctx := t.Context()
	store := configstore.NewMemory()
	set := func(rate int64) error {
		_, err := store.Apply(ctx, configstore.Commit{Changes: []configstore.Change{{
			Key:      configstore.Key{Scope: policy.ClusterScope()},
			Settings: policy.Policy{MessageRate: policy.PerSecond(rate)},
		}}})

		return err
	}
	require.NoError(t, set(1))
	p, err := makePlan(ctx, &cli.App{}, flags{}, store)
	require.NoError(t, err)
	require.NoError(t, set(2))
	before, err := store.List(ctx)
	require.NoError(t, err)
	require.ErrorContains(t, p.carryOut(ctx, store), "the policy store has changed meanwhile")
	after, err := store.List(ctx)
	require.NoError(t, err)
	assert.Equal(t, before.Marker, after.Marker)

	p, err = makePlan(ctx, &cli.App{}, flags{}, store)
	require.NoError(t, err)
	shown := p.state
	time.Sleep(2 * time.Millisecond) // the epoch is that of the answer
	require.NoError(t, p.carryOut(ctx, store))
	after, err = store.List(ctx)
	require.NoError(t, err)
	assert.Equal(t, state{after.Marker.ID, after.Marker.Epoch, after.Marker.Count}, p.state)
	assert.Equal(t, shown.ID, p.ID)
	assert.Greater(t, p.Epoch, shown.Epoch)
}

// TestOthersWrite: an etcd is adopted although others write to it all the time, as replicas do that
// have their permits there.
func TestOthersWrite(t *testing.T) {
	node, ctx := services.Etcd(t), t.Context()
	store, err := throttle.OpenPolicies(ctx, "etcd://"+node.Endpoint+"/"+services.Name(t)+"?create=true")
	require.NoError(t, err)
	defer func() { assert.NoError(t, store.Close()) }()
	_, err = configstore.Edit(ctx, store, configstore.By{}, func(s configstore.Snapshot) ([]configstore.Change, error) {
		return s.Set(policy.ClusterScope(), policy.Policy{MessageRate: policy.PerSecond(1)}), nil
	})
	require.NoError(t, err)
	p, err := makePlan(ctx, &cli.App{}, flags{}, store)
	require.NoError(t, err)
	_, err = node.Client().Put(ctx, "/another/key", "x")
	require.NoError(t, err)
	require.NoError(t, p.carryOut(ctx, store))
}
