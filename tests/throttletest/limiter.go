// Package throttletest has Limiters, policies and outcomes for tests.
package throttletest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Limiter has policies that a test changes, and a permit store of its own.
type Limiter struct {
	*dispatch.Limiter
	t     testing.TB
	store *configstore.Memory
	used  *used
}

// Open opens a Limiter with a policy for the cluster; it is closed at the end of the test.
func Open(t testing.TB, p policy.Policy) *Limiter {
	t.Helper()
	l := &Limiter{t: t, store: configstore.NewMemory(), used: newUsed()}
	l.Set(p)
	var err error
	l.Limiter, err = dispatch.Open(t.Context(), dispatch.Config{
		Policies: configstore.Source(l.store), Permits: l.used,
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		require.NoError(t, l.store.Close())
	})
	return l
}

// Set replaces all policies by one for the cluster, and returns when it is in force.
func (l *Limiter) Set(p policy.Policy) {
	l.t.Helper()
	l.edit(func(s configstore.Snapshot) []configstore.Change {
		return s.Replace([]policy.Entry{{Settings: p}}, time.Now())
	})
}

// Add sets the fields of a policy or a quota for a scope, as [policy.ParseScope] reads it, and
// returns when they are in force.
func (l *Limiter) Add(scope string, settings policy.Settings) {
	l.t.Helper()
	parsed, err := policy.ParseScope(scope)
	require.NoError(l.t, err)
	l.edit(func(s configstore.Snapshot) []configstore.Change { return s.Set(parsed, settings) })
}

// LoseStore has the permit store fail all requests, or answer them again.
func (l *Limiter) LoseStore(lost bool) { l.used.lost.Store(lost) }

func (l *Limiter) edit(change func(configstore.Snapshot) []configstore.Change) {
	l.t.Helper()
	ctx := context.WithoutCancel(l.t.Context())
	plan := func(s configstore.Snapshot) ([]configstore.Change, error) { return change(s), nil }
	revision, err := configstore.Edit(ctx, l.store, configstore.By{}, plan)
	require.NoError(l.t, err)
	if l.Limiter != nil {
		require.Eventually(l.t, func() bool {
			return l.Stats().Revision >= revision
		}, Patience, time.Millisecond)
	}
}
