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
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestMain(m *testing.M) { throttletest.Main(m, goleak.Find) }

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
		_, err := s.Apply(
			ctx, configstore.Commit{Changes: []configstore.Change{{Settings: policy.Policy{MessageRate: policy.PerSecond(i)}}}})
		require.NoError(t, err)
	}
	for _, after := range []int64{1, 1 << 40} {
		for _, err := range s.Watch(ctx, configstore.Snapshot{Revision: after}) {
			assert.ErrorIs(t, err, configstore.ErrCompacted)
		}
	}
}

// flaky is a store that fails a number of times, and whose watch is compacted at once as often.
type flaky struct {
	configstore.Store
	lists, watches int
}

func (f *flaky) List(ctx context.Context) (configstore.Snapshot, error) {
	if f.lists--; f.lists >= 0 {
		return configstore.Snapshot{}, fmt.Errorf("unavailable, attempt %d", f.lists)
	}
	return f.Store.List(ctx)
}

func (f *flaky) Watch(ctx context.Context, after configstore.Snapshot) iter.Seq2[configstore.Batch, error] {
	if f.watches--; f.watches >= 0 {
		return func(yield func(configstore.Batch, error) bool) {
			yield(configstore.Batch{}, configstore.ErrCompacted)
		}
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

// TestSourceReportsEachFault: an outage of a store that is not followed is reported, and so is what
// it holds afterwards. None of them is reported twice.
func TestSourceReportsEachFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		empty := configstore.Snapshot{Marker: configstore.Marker{ID: "line", Epoch: 1, Count: 3}, Revision: 5}
		s := &scripted{lists: []func() (configstore.Snapshot, error){
			func() (configstore.Snapshot, error) { return empty, nil },
			func() (configstore.Snapshot, error) { return empty, nil },
			func() (configstore.Snapshot, error) { return empty, errors.New("unavailable") },
			func() (configstore.Snapshot, error) { return empty, errors.New("unavailable") },
			func() (configstore.Snapshot, error) { return empty, nil },
		}}
		var got []policy.Fault
		for _, err := range configstore.Source(s).Snapshots(ctx) {
			got = append(got, policy.FaultOf(err))
		}
		assert.Equal(t, []policy.Fault{policy.FaultLost, policy.FaultUnavailable, policy.FaultLost}, got)
	})
}

// scripted answers each List with the next function, and then with the last one.
type scripted struct {
	lost
	lists []func() (configstore.Snapshot, error)
}

func (s *scripted) List(context.Context) (configstore.Snapshot, error) {
	next := s.lists[0]
	if len(s.lists) > 1 {
		s.lists = s.lists[1:]
	}
	return next()
}

// lost answers once, and is unavailable from then on.
type lost struct {
	configstore.Store
	snap  configstore.Snapshot
	lists int
	hangs bool // instead of failing
}

func (l *lost) List(ctx context.Context) (configstore.Snapshot, error) {
	if l.lists++; l.lists == 1 {
		return l.snap, nil
	}
	if l.hangs {
		<-ctx.Done()
		return configstore.Snapshot{}, context.Cause(ctx)
	}
	return configstore.Snapshot{}, errors.New("unavailable")
}

func (l *lost) Watch(context.Context, configstore.Snapshot) iter.Seq2[configstore.Batch, error] {
	return func(func(configstore.Batch, error) bool) {}
}

// TestSourceLosesItsStore: an outage is reported once, however many temporary entries end
// meanwhile. A store that hangs is found out at the first end.
func TestSourceLosesItsStore(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			start := time.Now()
			paused := func(topic string, after time.Duration) policy.Entry {
				scope, err := policy.ParseScope(topic)
				require.NoError(t, err)
				return policy.Entry{
					Scope: scope, Settings: policy.Policy{Paused: new(true)}, Temporary: true, Field: "paused",
					Expires: start.Add(after),
				}
			}
			s := &lost{
				hangs: hangs,
				snap: configstore.Snapshot{
					Marker: configstore.Marker{ID: "line", Epoch: 1}, Revision: 7000,
					Entries: []policy.Entry{
						paused("a/a", 10*time.Minute), paused("a/b", 5*time.Minute), paused("a/c", 5*time.Minute),
					},
				},
			}
			var got []string
			for snap, err := range configstore.Source(s).Snapshots(ctx) {
				at := time.Since(start).Round(time.Minute)
				if err != nil {
					got = append(got, fmt.Sprint(at, " error"))
					continue
				}
				got = append(got, fmt.Sprint(at, " revision ", snap.Revision, ", ", len(snap.Set.Entries())))
			}
			want := []string{"0s revision 7000, 3", "0s error"}
			if hangs { // the first end shows the outage
				want[1] = "5m0s error"
			}
			assert.Equal(t, want, got)
		})
	}
}

// TestSourceMarksABadPattern: an entry whose scope is invalid has its fault in its Err, and the
// others are in force.
func TestSourceMarksABadPattern(t *testing.T) {
	for s, err := range configstore.Source(broken{configstore.NewMemory()}).Snapshots(t.Context()) {
		require.NoError(t, err)
		entries := s.Set.Entries()
		assert.ErrorAs(t, entries[0].Err, new(*policy.FieldError))
		assert.NoError(t, entries[1].Err)
		break
	}
}

// broken holds entries that no store accepts.
type broken struct{ configstore.Store }

func (broken) List(context.Context) (configstore.Snapshot, error) {
	p := policy.Policy{Paused: new(true)}
	return configstore.Snapshot{
		Marker: configstore.Marker{ID: "line", Epoch: 1}, Revision: 1,
		Entries: []policy.Entry{
			{Scope: policy.PatternScope("("), Settings: p}, {Scope: policy.PatternScope("b"), Settings: p},
		},
	}, nil
}

func ExampleSource() {
	ctx := context.Background()
	store := configstore.NewMemory()
	_, _ = configstore.Edit(ctx, store, configstore.By{}, func(s configstore.Snapshot) ([]configstore.Change, error) {
		return s.Set(policy.ClusterScope(), policy.Policy{MessageRate: policy.PerSecond(1000)}), nil
	})

	for snapshot, err := range configstore.Source(store).Snapshots(ctx) {
		if err != nil {
			continue // temporary
		}
		for _, e := range snapshot.Set.Entries() {
			fmt.Println(e.Scope, e.Policy().MessageRate)
		}
		break
	}
	// Output: cluster 1000/s
}
