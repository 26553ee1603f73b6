package ratekeeper_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"sync"
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

// A world is a store, a permit store, and ratekeepers and replicas on them, in virtual time.
type world struct {
	t       *testing.T
	store   *configstore.Memory
	permits *memory.Store
	log     bytes.Buffer
	mu      sync.Mutex
	wg      sync.WaitGroup
}

func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *world) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

func virtual(t *testing.T, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, store: configstore.NewMemory(), permits: memory.New()}
		f(t, w)
		w.wg.Wait()
		require.NoError(t, w.store.Close())
	})
}

func (w *world) set(scope string, p policy.Policy) {
	w.edit(scope, func(snap configstore.Snapshot, s policy.Scope) []configstore.Change { return snap.Set(s, p) })
}

func (w *world) remove(scope string) { w.edit(scope, configstore.Snapshot.Remove) }

func (w *world) edit(scope string, change func(configstore.Snapshot, policy.Scope) []configstore.Change) {
	s, err := policy.ParseScope(scope)
	require.NoError(w.t, err)
	_, err = configstore.Edit(w.t.Context(), w.store, func(snap configstore.Snapshot) ([]configstore.Change, error) {
		return change(snap, s), nil
	})
	require.NoError(w.t, err)
}

func quotaOf(reserved, total int64) policy.Policy {
	return policy.Policy{ReservedThroughput: &reserved, TotalThroughput: &total}
}

// keeper runs a ratekeeper until stop.
func (w *world) keeper(name string) (k *ratekeeper.Ratekeeper, stop context.CancelFunc) {
	ctx, stop := context.WithCancel(w.t.Context())
	k = &ratekeeper.Ratekeeper{Policies: configstore.Source(w.store), Permits: w.permits, Name: name, Logger: slog.New(slog.NewTextHandler(w, nil))}
	w.wg.Go(func() { assert.NoError(w.t, k.Run(ctx)) })
	return k, stop
}

// A replica reads messages of so many bytes from a backend, as fast as it may.
type replica struct {
	lim *dispatch.Limiter
	sub *dispatch.Subscription
	mu  sync.Mutex
	at  []time.Time
}

func (w *world) replica(ctx context.Context, topic string, bytes int64, opts ...dispatch.SubscriptionOption) *replica {
	lim, err := dispatch.Open(w.t.Context(), dispatch.Config{Policies: configstore.Source(w.store), Permits: w.permits})
	require.NoError(w.t, err)
	r := &replica{lim: lim}
	r.sub, err = lim.Subscription(topic, "billing", opts...)
	require.NoError(w.t, err)
	broker, err := lim.Backend("broker-1", "a")
	require.NoError(w.t, err)
	w.wg.Go(func() {
		for ctx.Err() == nil {
			g, err := r.sub.Acquire(ctx, 1)
			if err != nil {
				break
			}
			g.Done(1, bytes)
			broker.Read(r.sub, bytes)
			r.mu.Lock()
			r.at = append(r.at, time.Now())
			r.mu.Unlock()
			time.Sleep(time.Millisecond)
		}
		assert.NoError(w.t, lim.Close())
	})
	return r
}

// lately is how many messages a second came in the last d.
func (r *replica) lately(d time.Duration) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, at := range r.at {
		if time.Since(at) < d {
			n++
		}
	}
	return float64(n) / d.Seconds()
}

const orders = "kafka://acme/default/orders"

func TestAQuotaIsObeyedByAllReplicasTogether(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		_, stop := w.keeper("k")
		defer func() { cancel(); stop(); w.wg.Wait() }()
		a, b := w.replica(ctx, orders, 6*quota.Page), w.replica(ctx, orders+"-2", 6*quota.Page)
		time.Sleep(5 * time.Second)
		assert.Less(t, a.lately(5*time.Second)+b.lately(5*time.Second), 140.0, "also while it is not known yet what one costs: then four pages")
		time.Sleep(15 * time.Second)
		assert.InDelta(t, 100, a.lately(10*time.Second)+b.lately(10*time.Second), 10, "600 pages a second in messages of six")

		w.set("tenant:acme", quotaOf(0, 300*quota.Page))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.Less(t, a.lately(time.Second)+b.lately(time.Second), 110.0, "obeyed within two seconds")
		time.Sleep(10 * time.Second)
		assert.InDelta(t, 50, a.lately(8*time.Second)+b.lately(8*time.Second), 5)
		assert.Contains(t, w.logged(), "GotRate id=tenant:acme")
	})
}

// TestWhatIsReservedIsNotSlowedDown: busy answers slow a subscription down to what quotas reserve for its messages, and no further.
func TestWhatIsReservedIsNotSlowedDown(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		w.set("tenant:acme", quotaOf(120*quota.Page, 600*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		_, stop := w.keeper("k")
		defer func() { cancel(); stop(); w.wg.Wait() }()
		a, b := w.replica(ctx, orders, 6*quota.Page), w.replica(ctx, orders, 6*quota.Page)
		busy := func(seconds int) {
			for range 10 * seconds {
				a.sub.ReportOutcome(dispatch.OutcomeBusy, 0)
				b.sub.ReportOutcome(dispatch.OutcomeBusy, 0)
				time.Sleep(100 * time.Millisecond)
			}
		}
		time.Sleep(10 * time.Second)
		busy(20)
		assert.InDelta(t, 20, a.lately(10*time.Second)+b.lately(10*time.Second), 2, "120 pages a second in messages of six")
		w.set("tenant:acme", quotaOf(60*quota.Page, 600*quota.Page))
		busy(20)
		assert.InDelta(t, 10, a.lately(10*time.Second)+b.lately(10*time.Second), 1)
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		busy(20)
		assert.InDelta(t, 1, a.lately(10*time.Second)+b.lately(10*time.Second), 0.3, "the policies' minRate")
		w.set("tenant:acme", quotaOf(120*quota.Page, 600*quota.Page))
		busy(5)
		time.Sleep(123 * time.Millisecond)
		w.remove("tenant:acme")
		busy(20)
		assert.InDelta(t, 1, a.lately(10*time.Second)+b.lately(10*time.Second), 0.3, "there is no quota any more")
	})
}

func TestAQuotaOfZeroPausesAndShadowOnlyCounts(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		w.set("tag:bulk", quotaOf(0, 0))
		ctx, cancel := context.WithCancel(t.Context())
		k, stop := w.keeper("k")
		defer func() { cancel(); stop(); w.wg.Wait() }()
		a := w.replica(ctx, orders, quota.Page, dispatch.WithTag("bulk"))
		time.Sleep(5 * time.Second)
		assert.Zero(t, a.lately(5*time.Second))
		w.set("tag:bulk", policy.Policy{QuotaMode: policy.Shadow, TotalThroughput: new(int64(10 * quota.Page))})
		time.Sleep(20 * time.Second)
		assert.Greater(t, a.lately(10*time.Second), 900.0)
		d := k.Status().Decisions[0]
		assert.InDelta(t, 10, d.Smoothed, 1, "computed all the same")
		assert.Greater(t, d.Rate, 900.0)
	})
}

func TestAPauseEndsAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		quotaIs := func(messages int64) { w.set("tenant:acme", quotaOf(0, messages*6*quota.Page)) }
		quotaIs(100)
		ctx, cancel := context.WithCancel(t.Context())
		_, stop := w.keeper("k")
		defer func() { cancel(); stop(); w.wg.Wait() }()
		a, b := w.replica(ctx, orders, 6*quota.Page), w.replica(ctx, orders+"-2", 6*quota.Page)
		time.Sleep(20 * time.Second)
		quotaIs(0)
		time.Sleep(5 * time.Second)
		assert.Zero(t, a.lately(3*time.Second)+b.lately(3*time.Second))
		quotaIs(100)
		time.Sleep(4 * time.Second)
		assert.InDelta(t, 100, a.lately(2*time.Second)+b.lately(2*time.Second), 10, "from the third second on")
	})
}

func TestWhoseQuotaItIs(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		for _, id := range []string{"tenant:acme", "tenant:big", "tag:bulk"} {
			w.set(id, quotaOf(0, quota.Page))
		}
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: configstore.Source(w.store), Permits: w.permits})
		require.NoError(t, err)
		of := func(s *dispatch.Subscription) string { return s.Stats().Limits[0].Key }
		open := func(opts ...dispatch.SubscriptionOption) *dispatch.Subscription {
			s, err := lim.Subscription(orders, "billing", opts...)
			require.NoError(t, err)
			return s
		}
		key := func(id policy.Scope) string { return permits.QuotaKey("standalone", id) }
		plain, tagged, grouped := open(), open(dispatch.WithTag("bulk")), open(dispatch.WithTag("bulk"), dispatch.WithTenantGroup("big"))
		assert.Equal(t, key(policy.TenantScope("acme")), of(plain))
		assert.Equal(t, key(policy.TenantScope("acme")), of(open(dispatch.WithTag("nobody"))), "a tag without a quota is none")
		assert.Equal(t, key(policy.TagScope("bulk")), of(tagged))
		assert.Equal(t, key(policy.TenantScope("big")), of(grouped), "a tag counts for nothing in a group")
		assert.Equal(t, key(policy.TagScope("bulk")), of(plain.Tagged("bulk")), "of a message")
		assert.Same(t, plain, plain.Tagged("nobody"))
		assert.Same(t, grouped, grouped.Tagged("bulk"))
		assert.Same(t, plain.Tagged("bulk"), plain.Tagged("bulk"))
		_, err = lim.Subscription(orders, "billing", dispatch.WithTag("a b"))
		assert.ErrorContains(t, err, "scope.tag")

		same := plain.Tagged("bulk")
		require.NoError(t, plain.Close())
		require.NoError(t, tagged.Close())
		_, err = same.Acquire(t.Context(), 1)
		assert.ErrorIs(t, err, dispatch.ErrClosed, "it goes with the handle that it belongs to")
		require.NoError(t, lim.Close())
	})
}

func TestAnotherTakesOverFromStoredState(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		first, stopFirst := w.keeper("first")
		time.Sleep(time.Second / 2)
		second, stopSecond := w.keeper("second")
		defer func() { cancel(); stopSecond(); w.wg.Wait() }()
		a := w.replica(ctx, orders, 6*quota.Page)
		time.Sleep(20 * time.Second)
		assert.NotZero(t, first.Status().Term)
		assert.Zero(t, second.Status().Term, "one leads")
		stopFirst()
		time.Sleep(8 * time.Second)
		synctest.Wait()
		status := second.Status()
		require.NotZero(t, status.Term)
		assert.InEpsilon(t, 6*quota.Page, status.Decisions[0].AverageCost, 0.05)
		assert.InDelta(t, 100, a.lately(8*time.Second), 10, "all along")

		cancel() // nobody says any more what a message costs
		time.Sleep(5 * time.Second)
		stopSecond()
		third, stopThird := w.keeper("third")
		defer stopThird()
		time.Sleep(8 * time.Second)
		synctest.Wait()
		require.NotZero(t, third.Status().Term)
		assert.InEpsilon(t, 6*quota.Page, third.Status().Decisions[0].AverageCost, 0.2, "it was written down")
	})
}

func TestAStaleLeaderWritesNothing(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		k, stop := w.keeper("paused")
		time.Sleep(3 * time.Second)
		var later dispatch.Rates
		require.NoError(t, w.permits.Update(t.Context(), permits.RatesKey("standalone"), time.Hour, func(old []byte, now float64) []byte {
			require.NoError(t, json.Unmarshal(old, &later))
			later.Term, later.Keeper, later.Time = later.Term+1, "other", now
			text, err := json.Marshal(later)
			require.NoError(t, err)
			return text
		}))
		time.Sleep(3 * time.Second)
		text, _, err := w.permits.Value(t.Context(), permits.RatesKey("standalone"))
		require.NoError(t, err)
		var now dispatch.Rates
		require.NoError(t, json.Unmarshal(text, &now))
		assert.Equal(t, later, now)
		assert.Zero(t, k.Status().Term)
		assert.Contains(t, w.logged(), "another ratekeeper leads in a later term")
		stop()
	})
}

func TestWithNobodyAliveRatesHoldForAWhile(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		w.set("tenant:acme", quotaOf(120*quota.Page, 600*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		_, stop := w.keeper("k")
		a := w.replica(ctx, orders, 6*quota.Page)
		time.Sleep(20 * time.Second)
		stop()
		time.Sleep(50 * time.Second)
		assert.InDelta(t, 100, a.lately(30*time.Second), 10, "the last rate holds")
		time.Sleep(30 * time.Second)
		assert.InDelta(t, 20, a.lately(10*time.Second), 2, "then what is reserved")
		_, stop = w.keeper("next")
		time.Sleep(15 * time.Second)
		assert.InDelta(t, 100, a.lately(5*time.Second), 10, "until somebody leads again")
		cancel()
		stop()
	})
}

func TestASaturatedBackendLimitsWhoLoadsIt(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		w.set("cluster", policy.Policy{IgnoreZones: new(int64(0))})
		w.set("tag:gold", quotaOf(200*quota.Page, 1000*quota.Page))
		w.set("tag:bulk", quotaOf(0, 1000*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		k, stop := w.keeper("k")
		defer func() { cancel(); stop(); w.wg.Wait() }()
		gold, bulk := w.replica(ctx, orders, quota.Page, dispatch.WithTag("gold")), w.replica(ctx, orders, quota.Page, dispatch.WithTag("bulk"))
		broker, err := gold.lim.Backend("broker-1", "a")
		require.NoError(t, err)
		w.wg.Go(func() { // which bears 400 pages a second
			for ctx.Err() == nil {
				load := gold.lately(time.Second) + bulk.lately(time.Second)
				assert.NoError(t, broker.ReportLoad(quota.Load{Queue: load / 400 * 800, Target: 800, Spring: 200}))
				time.Sleep(time.Second)
			}
		})
		time.Sleep(60 * time.Second)
		assert.InDelta(t, 400, gold.lately(10*time.Second)+bulk.lately(10*time.Second), 60)
		assert.GreaterOrEqual(t, gold.lately(10*time.Second), 190.0, "what is reserved")
		assert.True(t, k.Status().Decisions[0].Busy)
		assert.Contains(t, w.logged(), "BusyReader backend=broker-1 zone=a id=tag:gold")
	})
}

func TestCostsAreSampledAndScaledBack(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		w.set("tenant:acme", quotaOf(0, quota.Page))
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: configstore.Source(w.store), Permits: w.permits, CostSample: 0.1})
		require.NoError(t, err)
		sub, err := lim.Subscription(orders, "billing")
		require.NoError(t, err)
		sink, err := lim.Backend("sink", "a")
		require.NoError(t, err)
		for range 10_000 {
			sink.Wrote(sub, 1)
		}
		time.Sleep(1500 * time.Millisecond)
		texts, err := w.permits.Published(t.Context(), permits.UsageOf("standalone"))
		require.NoError(t, err)
		require.Len(t, texts, 1)
		var u dispatch.Usage
		require.NoError(t, json.Unmarshal(texts[0], &u))
		assert.InEpsilon(t, 10_000*4*quota.Page, u.Backends[0].Costs["tenant:acme"], 0.2)
		require.NoError(t, lim.Close())
		_, err = dispatch.Open(t.Context(), dispatch.Config{CostSample: 2})
		assert.ErrorContains(t, err, "CostSample 2")
	})
}

func TestWithoutARatekeeperTotalsHold(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		w.set("tenant:acme", quotaOf(0, 400*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		a := w.replica(ctx, orders, quota.Page)
		time.Sleep(10 * time.Second)
		assert.InDelta(t, 100, a.lately(8*time.Second), 5, "as if each cost a written page")
		for _, pages := range []int64{40, 800} {
			w.set("tenant:acme", quotaOf(0, pages*quota.Page))
			time.Sleep(10 * time.Second)
			assert.InEpsilon(t, float64(pages)/4, a.lately(8*time.Second), 0.05)
		}
		cancel()
	})
}
