package dispatch_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/policy"
)

// set makes a set of policies by their scopes.
func set[S policy.Settings](t testing.TB, settings map[string]S) *policy.Set {
	t.Helper()
	var entries []policy.Entry
	for text, s := range settings {
		scope, err := policy.ParseScope(text)
		require.NoError(t, err)
		require.NoError(t, s.Validate(scope), text)
		entries = append(entries, policy.Entry{Scope: scope, Settings: s})
	}
	s, err := policy.NewSet(entries)
	require.NoError(t, err)
	return s
}

// paced acquires rate permits a second, one at a time, and makes up for delays as soon as possible.
func (r *replica) paced(rate float64) {
	r.wg.Go(func() {
		next := time.Now()
		for r.ctx.Err() == nil {
			next = next.Add(time.Duration(float64(time.Second) / rate))
			time.Sleep(time.Until(next))
			if _, err := r.sub.Acquire(r.ctx, 1); err != nil {
				return
			}
			r.record(r.id, 1)
		}
	})
}

// TestAllocation: reserved minimums come first, the rest is shared by weight, and unused shares go
// to the others.
func TestAllocation(t *testing.T) {
	t.Parallel()
	scales := []float64{1}
	if permitstest.Long() {
		scales = []float64{10}
	}
	for _, c := range []struct {
		name                               string
		capacity                           int64
		demands, weights, reserved, permit []float64
	}{
		{"W1 Keshav", 10, []float64{2, 2.6, 4, 5}, nil, nil, []float64{2, 2.6, 2.7, 2.7}},
		{"W2 Keshav, weighted", 16, []float64{4, 2, 10, 4}, []float64{2.5, 4, .5, 1}, nil, []float64{4, 2, 6, 4}},
		{"W3 YARN", 40, []float64{100, 50, 11, 3}, nil, nil, []float64{13, 13, 11, 3}},
		{"W4 YARN, weighted", 45, []float64{10, 11, 30, 20}, []float64{2, 1, 1, .5}, nil, []float64{10, 11, 16, 8}},
		{"W7 replicas", 300, []float64{200, 50, 50, 100}, nil, nil, []float64{100, 50, 50, 100}},
		{"W8 under-subscribed", 100, []float64{10, 20, 30}, nil, nil, []float64{10, 20, 30}},
		{"V9 reserved first", 100, []float64{100, 100}, nil, []float64{40, 0}, []float64{70, 30}},
		{"V10 reserved first", 100, []float64{100, 100, 100}, nil, []float64{60, 0, 0},
			[]float64{73.333, 13.333, 13.333}},
		{"W11 an idle reservation is lent", 100, []float64{10, 100, 100}, nil, []float64{60, 0, 0},
			[]float64{10, 45, 45}},
		{"W12 over-reserved", 100, []float64{100, 100, 100}, nil, []float64{80, 40, 40}, []float64{50, 25, 25}},
		{"weights 1:2:4", 70, []float64{700, 700, 700}, []float64{1, 2, 4}, nil, []float64{10, 20, 40}},
	} {
		for _, scale := range scales {
			t.Run(fmt.Sprintf("%s x %v", c.name, scale), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, 1, policy.Policy{})
					policies := map[string]policy.Policy{
						topic: {MessageRate: policy.PerSecond(int64(scale) * c.capacity)},
					}
					for i := range c.demands {
						var p policy.Policy
						if c.weights != nil {
							p.Weight = &c.weights[i]
						}
						if c.reserved != nil {
							p.Reserved = policy.PerSecond(int64(scale * c.reserved[i]))
						}
						policies[fmt.Sprintf("%s?subscription=%d", topic, i)] = p
					}
					f.policies.Set(set(t, policies))
					for i, demand := range c.demands {
						f.join(i, fmt.Sprint(i)).paced(scale * demand)
					}
					from, to := 20*time.Second, 80*time.Second
					time.Sleep(to)
					for i, want := range c.permit {
						got := float64(f.by(i, from, to)) / (to - from).Seconds() / scale
						within(t, fmt.Sprint("subscription ", i), got, want*0.98-0.02/scale, want*1.02+0.02/scale)
					}
					f.end()
				})
			})
		}
	}
}

// TestReservedBesideGreedy: with 400 of 1000 reserved, beside four greedy subscriptions of the same
// weight, a subscription gets 400 and a fifth of the rest.
func TestReservedBesideGreedy(t *testing.T) {
	t.Parallel()
	for how, max := range appetites {
		fleets(t, how, policy.Policy{}, func(t *testing.T, f *fleet) {
			f.policies.Set(set(t, map[string]policy.Policy{
				topic: perSecond(1000), topic + "?subscription=0": {Reserved: policy.PerSecond(400)},
			}))
			for i := range 5 {
				f.join(i, fmt.Sprint(i)).greedy(max)
			}
			time.Sleep(30 * second)
			within(t, "400 + 600/5", float64(f.by(0, 10*second, 30*second))/20, 515, 525)
			for i := range 4 {
				within(t, "600/5", float64(f.by(i+1, 10*second, 30*second))/20, 116, 124)
			}
		})
	}
}

// TestAggregates: a message needs a permit of its topic and of each aggregate limit. A permit that
// one limit grants while another refuses is not lost.
func TestAggregates(t *testing.T) {
	t.Parallel()
	for how, max := range appetites {
		fleets(t, how, policy.Policy{}, func(t *testing.T, f *fleet) {
			f.policies.Set(set(t, map[string]policy.Policy{
				"public/default": {MessageRate: policy.PerSecond(800), Aggregate: new(true)},
				"tenant:public":  perSecond(10_000),
				topic:            perSecond(500),
				topic + "-2":     {MessageRate: policy.PerSecond(500), Weight: new(3.0)},
			}))
			for i, name := range []string{topic, topic, topic + "-2", topic + "-2"} {
				r := f.join(i, "group")
				var err error
				r.sub, err = r.lim.Subscription(name, "group")
				require.NoError(t, err)
				r.greedy(max)
			}
			time.Sleep(20 * second)
			from, to := 5*second, 20*second
			a, b := f.by(0, from, to)+f.by(1, from, to), f.by(2, from, to)+f.by(3, from, to)
			within(t, "800 for all topics", (a+b)/15, 780, 808)
			within(t, "any second", f.window(second, 0), 780, 880)
			within(t, "the topic of weight 1", a/15, 280, 325)
			within(t, "the topic of weight 3, bound by its own limit", b/15, 480, 505)
		})
	}
}

// TestCaughtUpPaysAggregates: caught-up subscriptions are exempt from plain limits only.
func TestCaughtUpPaysAggregates(t *testing.T) {
	fleets(t, "", policy.Policy{}, func(t *testing.T, f *fleet) {
		f.policies.Set(set(t, map[string]policy.Policy{"tenant:public": perSecond(100), topic: perSecond(10)}))
		r := f.join(0, "group")
		r.sub.ReportBacklog(0)
		r.greedy(1)
		for range 20 {
			time.Sleep(second / 2)
			r.sub.ReportBacklog(0)
		}
		within(t, "the tenant's", f.between(second, 10*second), 870, 920)
		s := r.lim.Stats().Subscriptions[0]
		assert.True(t, s.CaughtUp)
		assert.False(t, s.Exempt)
		bypassed := func() map[dispatch.Reason]bool {
			all := map[dispatch.Reason]bool{}
			for _, l := range r.lim.Stats().Subscriptions[0].Limits {
				all[l.Reason] = l.Bypassed
			}
			return all
		}
		assert.Equal(t, map[dispatch.Reason]bool{dispatch.ReasonTenantMessages: false, dispatch.ReasonMessages: true}, bypassed())
		for range 11 {
			time.Sleep(second)
			r.sub.ReportBacklog(1000)
		}
		within(t, "the topic's", f.between(11*second, 21*second), 95, 102)
		assert.Equal(t, map[dispatch.Reason]bool{dispatch.ReasonTenantMessages: false, dispatch.ReasonMessages: false}, bypassed())
	})
}

func TestMaxInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, err := dispatch.Open(t.Context(), dispatch.Config{
			Policies: dispatch.Fixed(policy.Policy{MaxInFlight: new(int64(3))}),
		})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		g, err := sub.Acquire(t.Context(), 2)
		require.NoError(t, err)
		h, err := sub.Acquire(t.Context(), 5)
		require.NoError(t, err)
		require.Equal(t, []int{2, 1}, []int{g.N(), h.N()}, "no more than there may be")
		_, _, ok := sub.TryAcquire(1)
		require.False(t, ok)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		served := make(chan int)
		go func() {
			g, err := sub.Acquire(ctx, 5)
			assert.NoError(t, err)
			served <- g.N()
		}()
		synctest.Wait()
		s := lim.Stats().Subscriptions[0]
		assert.Equal(t, dispatch.ReasonInFlight, s.Reason)
		assert.EqualValues(t, 3, s.InFlight)
		before := time.Now()
		g.Done(1, 0) // the unused permits are no longer in flight, either
		g.Done(2, 0)
		assert.Equal(t, 2, <-served)
		assert.Zero(t, time.Since(before), "at once")
		h.Done(1, 0)

		require.NoError(t, sub.Do(ctx, func(context.Context) error {
			assert.EqualValues(t, 3, lim.Stats().Subscriptions[0].InFlight)
			return nil
		}))
		assert.EqualValues(t, 2, lim.Stats().Subscriptions[0].InFlight)
		require.NoError(t, lim.Close())
	})
}

// TestMaxInFlightOfAllTags: messages in flight are counted whatever their tags, and waiting callers
// are served in turn.
func TestMaxInFlightOfAllTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := policy.Quota{Total: new(int64(1 << 40))}
		source := new(permitstest.Policies)
		source.Set(set(t, map[string]policy.Settings{
			"cluster": policy.Policy{MaxInFlight: new(int64(2))}, "tag:gold": quota, "tag:bulk": quota,
		}))
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: source})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var inFlight, highest atomic.Int64
		var done [3]atomic.Int64
		var workers sync.WaitGroup
		for i, handle := range []*dispatch.Subscription{sub, sub.Tagged("gold"), sub.Tagged("bulk")} {
			for range 3 {
				workers.Go(func() {
					for ctx.Err() == nil {
						_ = handle.Do(ctx, func(context.Context) error { // ends with ctx
							highest.Store(max(highest.Load(), inFlight.Add(1)))
							time.Sleep(10 * time.Millisecond)
							inFlight.Add(-1)
							done[i].Add(1)
							return nil
						})
					}
				})
			}
		}
		workers.Wait()
		assert.EqualValues(t, 2, highest.Load())
		// Which of two messages that end at one instant is released first is up to Go's scheduler, and
		// each time decides whose turn it is: a third is 667 with a standard deviation of 5.
		for i := range done {
			within(t, "a third of 200 a second", float64(done[i].Load()), 634, 700)
		}
		require.NoError(t, lim.Close())
	})
}

// TestInFlightOfManyTags: while no message is done, waiting callers cause no allocations, however
// many tags they have.
func TestInFlightOfManyTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := map[string]policy.Settings{
			"cluster": policy.Policy{MaxInFlight: new(int64(1)), MessageRate: policy.PerSecond(100)},
		}
		for i := range 20 {
			all[fmt.Sprint("tag:", i)] = policy.Quota{Total: new(int64(1 << 40))}
		}
		source := new(permitstest.Policies)
		source.Set(set(t, all))
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: source})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		held, err := sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var served atomic.Int64
		var waiters sync.WaitGroup
		for i := range 20 {
			waiters.Go(func() {
				for ctx.Err() == nil {
					_ = sub.Tagged(fmt.Sprint(i)).Do(ctx, func(context.Context) error { // ends with ctx
						served.Add(1)
						time.Sleep(20 * time.Millisecond)
						return nil
					})
				}
			})
		}
		time.Sleep(10 * time.Second)
		assert.Less(t, lim.Stats().Permits.Requests, int64(200))
		held.Done(1, 0)
		waiters.Wait()
		within(t, "one at a time, of 20 ms", float64(served.Load()), 400, 510)
		require.NoError(t, lim.Close())
	})
}

// TestInFlightAllocatesNothing: callers that wait for messages in flight request no permits.
func TestInFlightAllocatesNothing(t *testing.T) {
	p := policy.Policy{MessageRate: policy.PerSecond(1000), MaxInFlight: new(int64(1))}
	fleets(t, "", p, func(t *testing.T, f *fleet) {
		a, b := f.join(0, "a"), f.join(1, "b")
		a.greedy(1) // never done
		b.wg.Go(func() {
			for {
				g, err := b.sub.Acquire(b.ctx, 1)
				if err != nil {
					return
				}
				b.record(1, 1)
				time.Sleep(time.Millisecond / 2)
				g.Done(1, 0)
			}
		})
		time.Sleep(10 * second)
		assert.Equal(t, 1, f.by(0, 0, 10*second))
		within(t, "the other has it all", f.by(1, second, 10*second), 8900, 9100)
	})
}
