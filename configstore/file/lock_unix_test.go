//go:build unix

package file_test

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestApplyGivesUpWithItsContext: another process that keeps the lock does not keep the caller.
func TestApplyGivesUpWithItsContext(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("p.yaml", 1)
	other, err := os.Create(f.path(".p.yaml.lock"))
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	require.NoError(t, syscall.Flock(int(other.Fd()), syscall.LOCK_EX))
	s := open(t, f.path("p.yaml"))
	change := []configstore.Change{{Settings: policy.Policy{Burst: new(int64(1))}}}

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	ended := make(chan error, 1)
	go func() { _, err := s.Apply(ctx, configstore.Commit{Changes: change}); ended <- err }()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, ".p.yaml.lock")
	case <-time.After(throttletest.Patience):
		t.Fatal("Apply waits for the lock after its context has ended")
	}

	go func() { _, err := s.Apply(t.Context(), configstore.Commit{Changes: change}); ended <- err }()
	require.NoError(t, syscall.Flock(int(other.Fd()), syscall.LOCK_UN))
	assert.NoError(t, <-ended, "the lock is free")
}
