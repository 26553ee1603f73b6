package ratekeeper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/policy"
)

// replaceRecord replaces the head of the rates, and the row of tenant:acme.
func (w *deployment) replaceRecord(head, row string) {
	w.t.Helper()
	replace := func([]byte, float64) []byte { return []byte(head) }
	key := permits.RatesKey("standalone")
	require.NoError(w.t, w.permits.Update(w.t.Context(), key, time.Hour, replace))
	rows := map[string][]byte{"tenant:acme": []byte(row)}
	done, err := w.permits.SetRows(w.t.Context(), key, []byte(head), time.Hour, rows)
	require.NoError(w.t, err)
	require.True(w.t, done)
}

// record returns the head of the rates, and the rate of tenant:acme. It is zero if there is none.
func (w *deployment) record() quota.Rates {
	r, _, _ := dispatch.Rates(w.t.Context(), w.permits, "standalone", []quota.ID{"tenant:acme"})
	return r
}

// always elects every candidate, for this term.
type always int64

func (a always) Elect(ctx context.Context, _, _ string, lead func(context.Context, int64)) error {
	lead(ctx, int64(a))
	return nil
}

// one elects one candidate after the other.
type one chan struct{}

func (o one) Elect(ctx context.Context, _, _ string, lead func(context.Context, int64)) error {
	select {
	case o <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-o }()
	lead(ctx, time.Now().UnixNano())
	return nil
}

// cut is a permit store that fails to answer.
type cut struct{ *memory.Store }

var errCut = errors.New("cut")

func (cut) Published(context.Context, string) ([][]byte, error)  { return nil, errCut }
func (cut) Publishers(context.Context, string) ([]string, error) { return nil, errCut }
func (cut) PublishedBy(context.Context, string, []string) ([][]byte, error) {
	return nil, errCut
}
func (cut) Value(context.Context, string) (_ []byte, _ float64, _ error) { return nil, 0, errCut }

// TestTermsStartAgain: a leader with a lower term is followed once the record of the higher term is
// lost or old.
func TestTermsStartAgain(t *testing.T) {
	for name, lost := range map[string]func(w *deployment){
		"wiped": func(w *deployment) { w.replaceRecord("", "") },
		"old":   func(*deployment) { time.Sleep(quota.RatesHold + 5*time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, w *deployment) {
				w.set("tenant:acme", quotaOf(120*quota.Page, 600*quota.Page))
				ctx, cancel := context.WithCancel(t.Context())
				_, stop := w.elected("k", always(1000), w.permits)
				a := w.replica(ctx, orders, 6*quota.Page)
				time.Sleep(20 * time.Second)
				stop()
				lost(w)
				_, stop = w.elected("k2", always(5), w.permits)
				time.Sleep(quota.RatesHold + 20*time.Second) // until then replicas keep the higher term
				assert.InDelta(t, 100, a.lately(10*time.Second), 10)
				cancel()
				stop()
			})
		})
	}
}

// TestShadowTopicBesideOthers: messages that shadow mode does not throttle count as started.
// Otherwise their cost would be attributed to the others.
func TestShadowTopicBesideOthers(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		w.set(orders, policy.Policy{Mode: policy.Shadow})
		ctx, cancel := context.WithCancel(t.Context())
		k, stop := w.keeper("k")
		_, b := w.replica(ctx, orders, 6*quota.Page), w.replica(ctx, orders+"-2", 6*quota.Page)
		time.Sleep(40 * time.Second)
		synctest.Wait()
		assert.InEpsilon(t, 6*quota.Page, k.Status().Decisions[0].AverageCost, 0.2)
		assert.Greater(t, b.lately(10*time.Second), 20.0)
		cancel()
		stop()
	})
}

// TestShadowModeEnds: when shadow mode ends, the earlier rate is in force again, with or without a
// leading ratekeeper.
func TestShadowModeEnds(t *testing.T) {
	for _, lead := range []bool{true, false} {
		for _, long := range []time.Duration{100 * time.Millisecond, 5 * time.Second} {
			t.Run(fmt.Sprint(lead, long), func(t *testing.T) {
				virtual(t, func(t *testing.T, w *deployment) {
					w.set("tenant:acme", quotaOf(0, 600*quota.Page))
					ctx, cancel := context.WithCancel(t.Context())
					_, stop := w.keeper("k")
					defer func() { cancel(); stop(); w.wg.Wait() }()
					a, b := w.replica(ctx, orders, 6*quota.Page), w.replica(ctx, orders+"-2", 6*quota.Page)
					time.Sleep(20*time.Second + 600*time.Millisecond)
					if !lead {
						stop()
					}
					w.set("tenant:acme", policy.Quota{Mode: policy.Shadow})
					time.Sleep(long)
					w.set("tenant:acme", policy.Quota{Mode: policy.Enforce})
					time.Sleep(15 * time.Second)
					assert.InDelta(t, 100, a.lately(10*time.Second)+b.lately(10*time.Second), 10)
				})
			})
		}
	}
}

// TestReplicasStartWithoutRates: replicas that start after the rates were lost change the rate that
// earlier replicas left in the schedule.
func TestReplicasStartWithoutRates(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 40*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		_, stop := w.keeper("k")
		w.replica(ctx, orders, quota.Page)
		time.Sleep(20 * time.Second)
		stop()
		time.Sleep(2 * time.Minute)
		w.replaceRecord("", "")
		later, cancelLater := context.WithCancel(t.Context())
		b := w.replica(later, orders, quota.Page)
		cancel()
		time.Sleep(10 * time.Second)
		w.set("tenant:acme", quotaOf(0, 800*quota.Page))
		time.Sleep(20 * time.Second)
		assert.InEpsilon(t, 200, b.lately(8*time.Second), 0.1)
		cancelLater()
	})
}

// TestBadRecords: an invalid record of rates is replaced.
func TestBadRecords(t *testing.T) {
	for _, bad := range [][2]string{
		{`{"term":1,"keeper":"x","time":9}`, `{"rate":1,"average":1e-320}`},
		{`{"term":1,"keeper":"x","time":9}`, `{"rate":1e300,"average":24576}`},
		{`{"term":1,"keeper":"x","time":9}`, `[]`},
		{`{"term":9223372036854775807,"keeper":"x","time":1e300}`, ""},
		{`[]`, `{"rate":1,"average":24576}`},
	} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			virtual(t, func(t *testing.T, w *deployment) {
				w.set("tenant:acme", quotaOf(60*quota.Page, 600*quota.Page))
				w.replaceRecord(bad[0], bad[1])
				ctx, cancel := context.WithCancel(t.Context())
				time.Sleep(10 * time.Second)
				_, stop := w.keeper("k")
				a := w.replica(ctx, orders, 6*quota.Page)
				time.Sleep(40 * time.Second)
				assert.InDelta(t, 100, a.lately(10*time.Second), 10)
				cancel()
				stop()
			})
		})
	}
}

// TestQuotaLoweredWithoutALeader: the next leader starts from the lowered quota.
func TestQuotaLoweredWithoutALeader(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 3000*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		_, stop := w.keeper("k")
		a := w.replica(ctx, orders, 6*quota.Page)
		time.Sleep(20 * time.Second)
		stop()
		time.Sleep(2 * time.Second)
		w.set("tenant:acme", quotaOf(0, 30*quota.Page))
		_, stop = w.keeper("l")
		time.Sleep(20 * time.Second)
		assert.Less(t, a.lately(10*time.Second), 6.0)
		cancel()
		stop()
	})
}

// TestLeaderWithoutThePermitStore: a leader that cannot reach the permit store resigns.
func TestLeaderWithoutThePermitStore(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		by := make(one, 1)
		_, stopCut := w.elected("cut off", by, cut{w.permits})
		time.Sleep(time.Second)
		k, stop := w.elected("connected", by, w.permits)
		time.Sleep(15 * time.Second)
		assert.NotZero(t, k.Status().Term)
		stopCut()
		stop()
	})
}

// TestTwoPolicyStores: if ratekeepers of two policy stores share a permit store, the one whose
// policies were adopted later leads, and the other one logs why it does not.
func TestTwoPolicyStores(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		_, stop := w.elected("first", always(7), w.permits)
		time.Sleep(5 * time.Second)
		other := configstore.NewMemory()
		ctx, cancel := context.WithCancel(t.Context())
		k := &ratekeeper.Ratekeeper{
			Policies: configstore.Source(other), Permits: w.permits, Name: "second", Elector: always(3),
			Logger: w.log.Logger(),
		}
		w.wg.Go(func() { assert.NoError(t, k.Run(ctx)) })
		for range 20 {
			time.Sleep(1100 * time.Millisecond)
			assert.Equal(t, "second", w.record().Keeper)
		}
		assert.Contains(t, w.log.String(), "second has written rates by policies that were adopted later")
		cancel()
		time.Sleep(quota.RatesHold + 15*time.Second)
		assert.Equal(t, "first", w.record().Keeper)
		stop()
		w.wg.Wait()
		require.NoError(t, other.Close())
	})
}

// A swapped is a policy source whose store becomes another one.
type swapped struct {
	configstore.Store
	other configstore.Store
	swap  chan struct{}
}

func (s swapped) Snapshots(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
	return func(yield func(policy.Snapshot, error) bool) {
		before, end := context.WithCancel(ctx)
		stop := context.AfterFunc(ctx, end)
		defer stop()
		go func() {
			<-s.swap
			end()
		}()
		for snapshot, err := range configstore.Source(s.Store).Snapshots(before) {
			if !yield(snapshot, err) {
				return
			}
		}
		configstore.Source(s.other).Snapshots(ctx)(yield)
	}
}

// TestAnotherPolicyStore: policies of another store, such as an empty one, change no rates.
func TestAnotherPolicyStore(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		other := configstore.NewMemory()
		policies := swapped{w.store, other, make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		k := &ratekeeper.Ratekeeper{
			Policies: policies, Permits: w.permits, Name: "k", Elector: always(1),
			Logger: w.log.Logger(),
		}
		w.wg.Go(func() { assert.NoError(t, k.Run(ctx)) })
		time.Sleep(5 * time.Second)
		before := len(k.Status().Decisions)
		require.Positive(t, before)
		close(policies.swap)
		time.Sleep(5 * time.Second)
		assert.Len(t, k.Status().Decisions, before)
		assert.Contains(t, w.log.String(), "run: throttle-admin adopt")
		cancel()
		w.wg.Wait()
		require.NoError(t, other.Close())
	})
}

// TestTermsOfARestoredStore: a policy store that was restored counts lower terms. Its rates are in
// force as soon as it is adopted.
func TestTermsOfARestoredStore(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		_, stop := w.elected("k", always(1000), w.permits)
		a := w.replica(ctx, orders, 6*quota.Page)
		time.Sleep(20 * time.Second)
		stop()
		_, err := w.store.Adopt(t.Context(), configstore.Adoption{})
		require.NoError(t, err)
		w.set("tenant:acme", quotaOf(0, 60*quota.Page))
		_, stop = w.elected("restored", always(5), w.permits)
		time.Sleep(15 * time.Second)
		assert.Equal(t, int64(5), w.record().Term)
		assert.InDelta(t, 10, a.lately(5*time.Second), 2)
		cancel()
		stop()
	})
}

// TestShortLivedHandles: requests count also if their handle is closed before the next report.
func TestShortLivedHandles(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		k, stop := w.keeper("k")
		lim := w.limiter(dispatch.Config{})
		b, err := lim.Backend("b", "a")
		require.NoError(t, err)
		n := 0
		for start := time.Now(); time.Since(start) < 40*time.Second; {
			sub, err := lim.Subscription(orders, "billing")
			require.NoError(t, err)
			for range 20 {
				_, err = sub.Acquire(t.Context(), 1)
				require.NoError(t, err)
				b.Read(sub, 6*quota.Page)
				n++
			}
			require.NoError(t, sub.Close())
		}
		assert.InEpsilon(t, float64(n)/40, k.Status().Decisions[0].Rate, 0.3)
		stop()
		require.NoError(t, lim.Close())
	})
}

// TestHandlesOfTags: a subscription has at most 1,000 handles of tags.
func TestHandlesOfTags(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		var entries []policy.Entry
		for i := range 1010 {
			entries = append(entries, policy.Entry{
				Scope: policy.TagScope(fmt.Sprint("t", i)), Settings: quotaOf(0, 1<<40),
			})
		}
		replace := func(s configstore.Snapshot) ([]configstore.Change, error) {
			return s.Replace(entries, time.Now()), nil
		}
		_, err := configstore.Edit(t.Context(), w.store, configstore.By{}, replace)
		require.NoError(t, err)
		lim := w.limiter(dispatch.Config{})
		sub, err := lim.Subscription(orders, "billing")
		require.NoError(t, err)
		require.NoError(t, sub.Tagged("t0").Close(), "has no effect")
		_, err = sub.Tagged("t0").Acquire(t.Context(), 1)
		require.NoError(t, err)
		assert.Same(t, sub.Tagged("t1"), sub.Tagged("t0").Tagged("t1"))
		for i := range 1010 {
			sub.Tagged(fmt.Sprint("t", i))
		}
		assert.Len(t, lim.Stats().Subscriptions, 1001)
		assert.Same(t, sub, sub.Tagged("t1009"))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		require.NoError(t, sub.Close())
		runtime.ReadMemStats(&after)
		assert.Less(t, after.Mallocs-before.Mallocs, uint64(100*1001), "the end of one concerns no other")
		assert.Empty(t, lim.Stats().Subscriptions)
		require.NoError(t, lim.Close())
	})
}

// TestOldCostsAreForgotten: backends without costs are not reported, nor are ids without costs.
func TestOldCostsAreForgotten(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		lim := w.limiter(dispatch.Config{})
		sub, err := lim.Subscription(orders, "billing")
		require.NoError(t, err)
		for i := range 10 {
			b, err := lim.Backend(fmt.Sprint("broker-", i), "a")
			require.NoError(t, err)
			b.Read(sub, 1<<62)
			b.Wrote(sub, 1<<62)
		}
		reported := func() (n int) {
			texts, err := w.permits.Published(t.Context(), permits.UsageOf("standalone"))
			require.NoError(t, err)
			for _, text := range texts {
				var u dispatch.Usage
				require.NoError(t, json.Unmarshal(text, &u))
				n += len(u.Backends)
				for _, b := range u.Backends {
					assert.NoError(t, b.Load.Validate())
				}
			}
			return n
		}
		time.Sleep(1500 * time.Millisecond)
		assert.Equal(t, 10, reported())
		time.Sleep(70 * time.Second)
		assert.Zero(t, reported())
		require.NoError(t, lim.Close())
	})
}

// TestRowsAreCompared: rows that were lost are written again, and those of ids without a quota are
// removed.
func TestRowsAreCompared(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		_, stop := w.keeper("k")
		w.replica(ctx, orders, 6*quota.Page)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		rate := w.record().Rates["tenant:acme"]
		require.NotZero(t, rate)
		key := permits.RatesKey("standalone")
		head, _, err := w.permits.Value(t.Context(), key)
		require.NoError(t, err)
		done, err := w.permits.SetRows(t.Context(), key, head, time.Hour, map[string][]byte{
			"tenant:acme": nil, "tag:gone": []byte(`{"rate":1,"average":4096}`),
		})
		require.NoError(t, err)
		require.True(t, done)
		time.Sleep(62 * time.Second)
		names := func() []string {
			synctest.Wait()
			names, err := w.permits.RowNames(t.Context(), key)
			require.NoError(t, err)
			return names
		}
		assert.Equal(t, []string{"tenant:acme"}, names())
		assert.InEpsilon(t, rate.Rate, w.record().Rates["tenant:acme"].Rate, 0.1)
		w.remove("tenant:acme")
		time.Sleep(2 * time.Second)
		assert.Empty(t, names())
		cancel()
		stop()
	})
}

// TestPausedLeaderSetsNoRow: a leader that was paused writes no row into another one's rates.
func TestPausedLeaderSetsNoRow(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		paused := &pausedRows{Store: w.permits}
		_, stop := w.elected("paused", always(3), paused)
		w.replica(ctx, orders, 6*quota.Page)
		time.Sleep(10 * time.Second)
		paused.until.Store(time.Now().Add(20 * time.Second).UnixNano())
		time.Sleep(2 * time.Second)
		_, stopOther := w.elected("other", always(7), w.permits)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.Equal(t, []bool{false}, paused.results())
		assert.Equal(t, "other", w.record().Keeper)
		stop()
		cancel()
		stopOther()
	})
}

// pausedRows is a permit store that SetRows reaches late.
type pausedRows struct {
	*memory.Store
	until atomic.Int64 // Unix nanoseconds

	mu   sync.Mutex
	late []bool // results of late calls
}

func (p *pausedRows) results() []bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.late)
}

func (p *pausedRows) SetRows(
	ctx context.Context, key string, head []byte, ttl time.Duration, rows map[string][]byte,
) (bool, error) {
	d := time.Until(time.Unix(0, p.until.Load()))
	if d > 0 {
		time.Sleep(d)
		rows = map[string][]byte{"tenant:acme": []byte(`{"rate":1,"average":4096}`)}
	}
	done, err := p.Store.SetRows(ctx, key, head, ttl, rows)
	if d > 0 {
		p.mu.Lock()
		p.late = append(p.late, done)
		p.mu.Unlock()
	}
	return done, err
}
