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
)

func watchMissesNone(t *testing.T, b Backend) {
	ctx, s := patience(t), b.Open(t)
	const n = 50
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for i := range n {
			_, err := s.Apply(ctx, configstore.Commit{Changes: put(topic(fmt.Sprint("t", i)), rate(int64(i)))})
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
	_, err = s.Apply(ctx, configstore.Commit{Changes: put(Orders, rate(1))})
	assert.ErrorIs(t, err, configstore.ErrClosed)
	for snap, err := range configstore.Source(s).Snapshots(ctx) {
		t.Errorf("a closed store yields %v, %v", snap, err)
	}
	left := goleak.Find(before)
	for ; left != nil && ctx.Err() == nil; left = goleak.Find(before) {
		time.Sleep(100 * time.Millisecond)
	}
	assert.NoError(t, left)
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
		revision, err := s.Apply(ctx, configstore.Commit{Changes: put(Orders, rate(permits))})
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
		t.Skip("the policies are lost with the store")
	}
	ctx, s := patience(t), b.Open(t)
	_, err := s.Apply(ctx, configstore.Commit{Changes: put(Orders, rate(1))})
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
		t.Skip("the data cannot be damaged")
	}
	ctx, s := patience(t), b.Open(t)
	_, err := s.Apply(ctx, configstore.Commit{Changes: put(Orders, rate(1))})
	require.NoError(t, err)
	got := follows(ctx, t, s)
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
		_, err = s.Apply(ctx, configstore.Commit{Changes: put(Orders, rate(2))})
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
	_, err = s.Apply(ctx, configstore.Commit{Changes: put(Orders, rate(2))})
	assert.Error(t, err, "what cannot be read is not overwritten")
}
