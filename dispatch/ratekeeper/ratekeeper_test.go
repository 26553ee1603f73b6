package ratekeeper_test

import (
	"context"
	"encoding/json"
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
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A deployment is a policy store and a permit store, with ratekeepers and replicas, in virtual
// time.
type deployment struct {
	t       *testing.T
	store   *configstore.Memory
	permits *memory.Store
	log     throttletest.Log
	wg      sync.WaitGroup
}

// virtual runs f in virtual time, with a new deployment.
func virtual(t *testing.T, f func(t *testing.T, w *deployment)) {
	synctest.Test(t, func(t *testing.T) {
		w := &deployment{t: t, store: configstore.NewMemory(), permits: memory.New()}
		f(t, w)
		w.wg.Wait()
		require.NoError(t, w.store.Close())
	})
}

func (w *deployment) set(scope string, settings policy.Settings) {
	w.edit(scope, func(snap configstore.Snapshot, s policy.Scope) []configstore.Change {
		return snap.Set(s, settings)
	})
}

func (w *deployment) remove(id string) {
	w.edit(id, func(snap configstore.Snapshot, s policy.Scope) []configstore.Change {
		return snap.Remove(policy.QuotaSection, s)
	})
}

func (w *deployment) edit(
	scope string, change func(configstore.Snapshot, policy.Scope) []configstore.Change,
) {
	s, err := policy.ParseScope(scope)
	require.NoError(w.t, err)
	apply := func(snap configstore.Snapshot) ([]configstore.Change, error) {
		return change(snap, s), nil
	}
	_, err = configstore.Edit(w.t.Context(), w.store, configstore.By{}, apply)
	require.NoError(w.t, err)
}

// limiter opens a Limiter on its stores.
func (w *deployment) limiter(cfg dispatch.Config) *dispatch.Limiter {
	w.t.Helper()
	cfg.Policies, cfg.Permits = configstore.Source(w.store), w.permits
	lim, err := dispatch.Open(w.t.Context(), cfg)
	require.NoError(w.t, err)
	return lim
}

func quotaOf(reserved, total int64) policy.Quota {
	return policy.Quota{Reserved: &reserved, Total: &total}
}

// keeper runs a ratekeeper until stop is called.
func (w *deployment) keeper(name string) (k *ratekeeper.Ratekeeper, stop context.CancelFunc) {
	return w.elected(name, nil, w.permits)
}

// elected runs a ratekeeper with this election and permit store until stop is called.
func (w *deployment) elected(
	name string, by ratekeeper.Elector, permits dispatch.PermitStore,
) (k *ratekeeper.Ratekeeper, stop context.CancelFunc) {
	ctx, stop := context.WithCancel(w.t.Context())
	k = &ratekeeper.Ratekeeper{
		Policies: configstore.Source(w.store), Permits: permits, Name: name, Elector: by,
		Logger: w.log.Logger(),
	}
	w.wg.Go(func() { assert.NoError(w.t, k.Run(ctx)) })
	return k, stop
}

// A replica reads messages from a backend at the limit.
type replica struct {
	lim *dispatch.Limiter
	sub *dispatch.Subscription
	mu  sync.Mutex
	at  []time.Time // of each message
}

// replica runs a replica until ctx ends. Its messages have this number of bytes.
func (w *deployment) replica(
	ctx context.Context, topic string, bytes int64, opts ...dispatch.SubscriptionOption,
) *replica {
	lim := w.limiter(dispatch.Config{})
	r := &replica{lim: lim}
	var err error
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

// lately returns the messages per second of the last d.
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

func TestReplicasShareAQuota(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		_, stop := w.keeper("k")
		defer func() { cancel(); stop(); w.wg.Wait() }()
		a, b := w.replica(ctx, orders, 6*quota.Page), w.replica(ctx, orders+"-2", 6*quota.Page)
		time.Sleep(5 * time.Second)
		both := a.lately(5*time.Second) + b.lately(5*time.Second)
		assert.Less(t, both, 140.0, "until the cost is known, four pages a message are assumed")
		time.Sleep(15 * time.Second)
		both = a.lately(10*time.Second) + b.lately(10*time.Second)
		assert.InDelta(t, 100, both, 10, "600 pages a second in messages of six")

		w.set("tenant:acme", quotaOf(0, 300*quota.Page))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.Less(t, a.lately(time.Second)+b.lately(time.Second), 110.0, "in force within two seconds")
		time.Sleep(10 * time.Second)
		assert.InDelta(t, 50, a.lately(8*time.Second)+b.lately(8*time.Second), 5)
		assert.Contains(t, w.log.String(), "GotRate id=tenant:acme")
	})
}

// TestReservedRateIsNotSlowedDown: busy answers slow a subscription down to the rate that a quota
// reserves for its messages, and no further.
func TestReservedRateIsNotSlowedDown(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
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
		both := func() float64 { return a.lately(10*time.Second) + b.lately(10*time.Second) }
		assert.InDelta(t, 20, both(), 2, "120 pages a second in messages of six")
		w.set("tenant:acme", quotaOf(60*quota.Page, 600*quota.Page))
		busy(20)
		assert.InDelta(t, 10, both(), 1)
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		busy(20)
		assert.InDelta(t, 1, both(), 0.3, "the lowest busy limit of the policy")
		w.set("tenant:acme", quotaOf(120*quota.Page, 600*quota.Page))
		busy(5)
		time.Sleep(123 * time.Millisecond)
		w.remove("tenant:acme")
		busy(20)
		assert.InDelta(t, 1, both(), 0.3, "the quota was removed")
	})
}

func TestZeroQuotaPausesAndShadowOnlyCounts(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tag:bulk", quotaOf(0, 0))
		ctx, cancel := context.WithCancel(t.Context())
		k, stop := w.keeper("k")
		defer func() { cancel(); stop(); w.wg.Wait() }()
		a := w.replica(ctx, orders, quota.Page, dispatch.WithTag("bulk"))
		time.Sleep(5 * time.Second)
		assert.Zero(t, a.lately(5*time.Second))
		ten := int64(10 * quota.Page)
		w.set("tag:bulk", policy.Quota{Mode: policy.Shadow, Total: &ten})
		time.Sleep(20 * time.Second)
		assert.Greater(t, a.lately(10*time.Second), 900.0)
		d := k.Status().Decisions[0]
		assert.InDelta(t, 10, d.Smoothed, 1, "the rate is computed")
		assert.Greater(t, d.Rate, 900.0)
	})
}

func TestPauseEndsAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
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
		both := a.lately(2*time.Second) + b.lately(2*time.Second)
		assert.InDelta(t, 100, both, 10, "from the third second on")
	})
}

func TestWhichQuotaApplies(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		for _, id := range []string{"tenant:acme", "tenant:big", "tag:bulk"} {
			w.set(id, quotaOf(0, quota.Page))
		}
		lim := w.limiter(dispatch.Config{})
		limited := func(s *dispatch.Subscription) string { return s.Stats().Limits[0].Key }
		open := func(opts ...dispatch.SubscriptionOption) *dispatch.Subscription {
			s, err := lim.Subscription(orders, "billing", opts...)
			require.NoError(t, err)
			return s
		}
		key := func(id policy.Scope) string { return permits.QuotaKey("standalone", id) }
		plain, tagged := open(), open(dispatch.WithTag("bulk"))
		grouped := open(dispatch.WithTag("bulk"), dispatch.WithTenantGroup("big"))
		unknown := open(dispatch.WithTag("unknown"))
		assert.Equal(t, key(policy.TenantScope("acme")), limited(plain))
		assert.Equal(t, key(policy.TenantScope("acme")), limited(unknown), "the tag has no quota")
		assert.Equal(t, key(policy.TagScope("bulk")), limited(tagged))
		assert.Equal(t, key(policy.TenantScope("big")), limited(grouped), "the tenant group has precedence")
		assert.Equal(t, key(policy.TagScope("bulk")), limited(plain.Tagged("bulk")), "a message's tag")
		assert.Same(t, plain, plain.Tagged("unknown"))
		assert.Same(t, grouped, grouped.Tagged("bulk"))
		assert.Same(t, plain.Tagged("bulk"), plain.Tagged("bulk"))
		_, err := lim.Subscription(orders, "billing", dispatch.WithTag("a b"))
		assert.ErrorContains(t, err, "scope.tag")

		same := plain.Tagged("bulk")
		require.NoError(t, plain.Close())
		require.NoError(t, tagged.Close())
		_, err = same.Acquire(t.Context(), 1)
		assert.ErrorIs(t, err, dispatch.ErrClosed, "it closes with its handle")
		require.NoError(t, lim.Close())
	})
}

func TestTakeoverFromStoredState(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		first, stopFirst := w.keeper("first")
		time.Sleep(time.Second / 2)
		second, stopSecond := w.keeper("second")
		defer func() { cancel(); stopSecond(); w.wg.Wait() }()
		a := w.replica(ctx, orders, 6*quota.Page)
		time.Sleep(20 * time.Second)
		assert.NotZero(t, first.Status().Term)
		assert.Zero(t, second.Status().Term, "only one leads")
		stopFirst()
		time.Sleep(8 * time.Second)
		synctest.Wait()
		status := second.Status()
		require.NotZero(t, status.Term)
		assert.InEpsilon(t, 6*quota.Page, status.Decisions[0].AverageCost, 0.05)
		assert.InDelta(t, 100, a.lately(8*time.Second), 10, "without a gap")

		cancel() // from now on, no costs are reported
		time.Sleep(5 * time.Second)
		stopSecond()
		third, stopThird := w.keeper("third")
		defer stopThird()
		time.Sleep(8 * time.Second)
		synctest.Wait()
		require.NotZero(t, third.Status().Term)
		assert.InEpsilon(t, 6*quota.Page, third.Status().Decisions[0].AverageCost, 0.2, "from the record")
	})
}

func TestStaleLeaderWritesNothing(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		k, stop := w.keeper("paused")
		time.Sleep(3 * time.Second)
		var later quota.Rates
		key := permits.RatesKey("standalone")
		lead := func(old []byte, now float64) []byte {
			require.NoError(t, json.Unmarshal(old, &later))
			later.Term, later.Keeper, later.Time = later.Term+1, "other", now
			text, err := json.Marshal(later)
			require.NoError(t, err)
			return text
		}
		require.NoError(t, w.permits.Update(t.Context(), key, time.Hour, lead))
		time.Sleep(3 * time.Second)
		text, _, err := w.permits.Value(t.Context(), key)
		require.NoError(t, err)
		var now quota.Rates
		require.NoError(t, json.Unmarshal(text, &now))
		assert.Equal(t, later, now)
		assert.Zero(t, k.Status().Term)
		assert.Contains(t, w.log.String(), "another ratekeeper leads in a later term")
		stop()
	})
}

func TestRatesWithoutALeader(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(120*quota.Page, 600*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		_, stop := w.keeper("k")
		a := w.replica(ctx, orders, 6*quota.Page)
		time.Sleep(20 * time.Second)
		stop()
		time.Sleep(50 * time.Second)
		assert.InDelta(t, 100, a.lately(30*time.Second), 10, "the last rate stays in force for a minute")
		time.Sleep(30 * time.Second)
		assert.InDelta(t, 20, a.lately(10*time.Second), 2, "then the reserved rate")
		_, stop = w.keeper("next")
		time.Sleep(15 * time.Second)
		assert.InDelta(t, 100, a.lately(5*time.Second), 10, "after another ratekeeper was elected")
		cancel()
		stop()
	})
}

func TestSaturatedBackendLimitsItsReaders(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("cluster", policy.QuotaSettings{IgnoreZones: new(int64(0))})
		w.set("tag:gold", quotaOf(200*quota.Page, 1000*quota.Page))
		w.set("tag:bulk", quotaOf(0, 1000*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		k, stop := w.keeper("k")
		defer func() { cancel(); stop(); w.wg.Wait() }()
		gold := w.replica(ctx, orders, quota.Page, dispatch.WithTag("gold"))
		bulk := w.replica(ctx, orders, quota.Page, dispatch.WithTag("bulk"))
		broker, err := gold.lim.Backend("broker-1", "a")
		require.NoError(t, err)
		w.wg.Go(func() { // the broker bears 400 pages a second
			for ctx.Err() == nil {
				pages := gold.lately(time.Second) + bulk.lately(time.Second)
				load := quota.Load{Queue: pages / 400 * 800, Target: 800, Spring: 200}
				assert.NoError(t, broker.ReportLoad(load))
				time.Sleep(time.Second)
			}
		})
		time.Sleep(60 * time.Second)
		assert.InDelta(t, 400, gold.lately(10*time.Second)+bulk.lately(10*time.Second), 60)
		assert.GreaterOrEqual(t, gold.lately(10*time.Second), 190.0, "the reserved rate")
		assert.True(t, k.Status().Decisions[0].Busy)
		backends := k.Status().Backends
		require.Len(t, backends, 1)
		assert.Equal(t, "broker-1", backends[0].Backend)
		assert.InDelta(t, 800, backends[0].Load.Queue, 200)
		assert.Contains(t, w.log.String(), "BusyReader backend=broker-1 zone=a id=tag:gold")
	})
}

func TestCostsAreSampledAndScaledBack(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, quota.Page))
		lim := w.limiter(dispatch.Config{CostSample: 0.1})
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

func TestTotalsWithoutARatekeeper(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 400*quota.Page))
		ctx, cancel := context.WithCancel(t.Context())
		a := w.replica(ctx, orders, quota.Page)
		time.Sleep(10 * time.Second)
		assert.InDelta(t, 100, a.lately(8*time.Second), 5, "the assumed cost is one written page")
		for _, pages := range []int64{40, 800} {
			w.set("tenant:acme", quotaOf(0, pages*quota.Page))
			time.Sleep(10 * time.Second)
			assert.InEpsilon(t, float64(pages)/4, a.lately(8*time.Second), 0.05)
		}
		cancel()
	})
}
