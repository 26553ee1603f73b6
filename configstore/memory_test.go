package configstore_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/configstore/storetest"
	"github.com/dispatchthrottle/throttle/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Backend {
		return storetest.Backend{Private: true, Open: func(t *testing.T) configstore.Store {
			s := configstore.NewMemory()
			t.Cleanup(func() { assert.NoError(t, s.Close()) })
			return s
		}}
	})
}

func TestMemoryForgetsOldRevisions(t *testing.T) {
	s, ctx := configstore.NewMemory(), t.Context()
	for i := range int64(2000) {
		_, err := s.Apply(ctx, []configstore.Change{{Policy: policy.Policy{MessageRate: policy.PerSecond(i)}}}, 0)
		require.NoError(t, err)
	}
	for _, after := range []int64{1, 1 << 40} {
		for _, err := range s.Watch(ctx, after) {
			assert.ErrorIs(t, err, configstore.ErrCompacted)
		}
	}
}

// flaky is a store that fails n times, and whose watch is compacted at once, n times.
type flaky struct {
	configstore.Store
	lists, watches int
}

func (f *flaky) List(ctx context.Context) (configstore.Snapshot, error) {
	if f.lists--; f.lists >= 0 {
		return configstore.Snapshot{}, fmt.Errorf("away, attempt %d", f.lists)
	}
	return f.Store.List(ctx)
}

func (f *flaky) Watch(ctx context.Context, after int64) iter.Seq2[configstore.Batch, error] {
	if f.watches--; f.watches >= 0 {
		return func(yield func(configstore.Batch, error) bool) { yield(configstore.Batch{}, configstore.ErrCompacted) }
	}
	return f.Store.Watch(ctx, after)
}

func TestSourceReportsAnOutageOnceAndListsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := &flaky{Store: configstore.NewMemory(), lists: 8, watches: 2}
		var errs, snaps int
		start := time.Now()
		for _, err := range configstore.Source(s).Snapshots(ctx) {
			if err != nil {
				errs++
				continue
			}
			if snaps++; snaps == 3 {
				break
			}
		}
		assert.Equal(t, 1, errs)
		assert.Less(t, time.Since(start), 5*time.Second)
	})
}

func TestSourceReportsATie(t *testing.T) {
	var errs []error
	for _, err := range configstore.Source(tied{configstore.NewMemory()}).Snapshots(t.Context()) {
		if err != nil {
			errs = append(errs, err)
			break
		}
	}
	require.Len(t, errs, 1)
	_, ok := errors.AsType[*policy.TieError](errs[0])
	assert.True(t, ok)
}

// tied holds what no store would take.
type tied struct{ configstore.Store }

func (tied) List(context.Context) (configstore.Snapshot, error) {
	p := policy.Policy{Paused: new(true)}
	return configstore.Snapshot{Revision: 1, Entries: []policy.Entry{{Scope: policy.PatternScope("a"), Policy: p}, {Scope: policy.PatternScope("b"), Policy: p}}}, nil
}

func ExampleSource() {
	ctx := context.Background()
	store := configstore.NewMemory()
	_, _ = configstore.Edit(ctx, store, func(s configstore.Snapshot) ([]configstore.Change, error) {
		return s.Set(policy.ClusterScope(), policy.Policy{MessageRate: policy.PerSecond(1000)}), nil
	})
	for snapshot, err := range configstore.Source(store).Snapshots(ctx) {
		if err != nil {
			continue // passing
		}
		for _, e := range snapshot.Set.Entries() {
			fmt.Println(e.Scope, e.Policy.MessageRate)
		}
		break
	}
	// Output: cluster 1000/s
}
