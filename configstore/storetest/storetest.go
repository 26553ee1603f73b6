// Package storetest checks that a configstore.Store does what its comments promise.
package storetest

import (
	"cmp"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
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

	// Write makes permanent changes directly, past the store. Nil: nobody can.
	Write func(t *testing.T, changes []configstore.Change)

	// Damage makes the history unusable. Nil: nobody can.
	Damage func(t *testing.T)

	Plain bool // it has no marker of its own
	Most  int  // policies that it has room for; default 10,000

	// Private says that the policies are lost with the store, which then cannot be opened again.
	Private bool
}

func (b Backend) most() int { return cmp.Or(b.Most, 10_000) }

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

// longest is how long a test waits for what must happen. It is reached only in failure, however
// busy the machine is.
const longest = 2 * time.Minute

func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), longest)
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

// A followed is what a Follower yields.
type followed struct {
	snap policy.Snapshot
	err  error
}

// follows returns what a Follower of the store yields, until the test ends.
func follows(ctx context.Context, t *testing.T, s configstore.Store) <-chan followed {
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan followed, 100)
	var wg sync.WaitGroup
	wg.Go(func() {
		for snap, err := range configstore.Source(s).Snapshots(ctx) {
			got <- followed{snap, err}
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return got
}

// Run checks the stores of backends. newBackend returns an empty one for each test.
func Run(t *testing.T, newBackend func(t *testing.T) Backend) {
	for name, test := range map[string]func(*testing.T, Backend){
		"AllOrNothing":      allOrNothing,
		"Conflict":          conflict,
		"ConcurrentEdits":   concurrentEdits,
		"Temporary":         temporary,
		"ReplaceTwice":      replaceTwice,
		"WatchMissesNone":   watchMissesNone,
		"CloseEndsWatches":  closeEndsWatches,
		"Follow":            follow,
		"Restart":           restart,
		"BadData":           badData,
		"ManyAtOnce":        manyAtOnce,
		"OverReserved":      overReserved,
		"Markers":           markers,
		"NotAdopted":        notAdopted,
		"History":           history,
		"Undo":              undo,
		"PastTheTools":      pastTheTools,
		"EndedPastTheTools": endedPastTheTools,
		"Unwritable":        unwritable,
		"ReasonRequired":    reasonRequired,
		"TenThousand":       tenThousand,
	} {
		t.Run(name, func(t *testing.T) { test(t, newBackend(t)) })
	}
}
