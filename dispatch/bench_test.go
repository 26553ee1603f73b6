package dispatch_test

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// plenty is a permit store that grants all that is requested, at once.
type plenty struct{ *memory.Store }

func (p plenty) Do(_ context.Context, requests []*permits.Request) {
	for _, r := range requests {
		r.Allocate.Reply = schedule.Reply{
			N: math.Floor(r.Allocate.Want), Start: -1e7, Share: r.Allocate.Rate, Rate: r.Allocate.Rate, Now: 1,
			Carry: schedule.Carry{Inc: 1, Epoch: 1, Round: 0.1},
		}
	}
}

func open(b *testing.B, p policy.Policy, store dispatch.PermitStore) *dispatch.Subscription {
	lim, err := dispatch.Open(b.Context(), dispatch.Config{Policies: dispatch.Fixed(p), Permits: store})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, lim.Close()) })
	sub, err := lim.Subscription(topic, "group")
	require.NoError(b, err)
	return sub
}

func admit(b *testing.B) *dispatch.Subscription {
	sub := open(b, policy.Policy{MessageRate: policy.PerSecond(1e6)}, plenty{memory.New()})
	fill(b, sub)
	return sub
}

// fill fills the counters of a subscription, so that a benchmark never waits: many callers get a
// lot of permits, and give them back.
func fill(b *testing.B, sub *dispatch.Subscription) {
	var callers sync.WaitGroup
	for range 500 {
		callers.Go(func() {
			g, err := sub.Acquire(b.Context(), math.MaxInt32)
			assert.NoError(b, err)
			g.Done(0, 0)
		})
	}
	callers.Wait()
}

func BenchmarkNoPolicy(b *testing.B) {
	sub, ctx := open(b, policy.Policy{}, nil), b.Context()
	b.ReportAllocs()
	for b.Loop() {
		g, _ := sub.Acquire(ctx, 1)
		g.Done(1, 0)
	}
}

func BenchmarkAdmit(b *testing.B) {
	sub, ctx := admit(b), b.Context()
	b.ReportAllocs()
	for b.Loop() {
		g, _ := sub.Acquire(ctx, 1)
		g.Done(1, 0)
	}
}

func BenchmarkAdmit64Goroutines(b *testing.B) {
	sub, ctx := admit(b), b.Context()
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			g, _ := sub.Acquire(ctx, 1)
			g.Done(1, 0)
		}
	})
}

// BenchmarkBareCounter64Goroutines is the cost of one shared atomic on this machine.
func BenchmarkBareCounter64Goroutines(b *testing.B) {
	var n atomic.Int64
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			n.Add(-1)
		}
	})
}

func BenchmarkBatchOf64(b *testing.B) {
	sub, ctx := admit(b), b.Context()
	b.ReportAllocs()
	for b.Loop() {
		g, _ := sub.Acquire(ctx, 64)
		g.Done(64, 0)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/message")
}

func BenchmarkReturn(b *testing.B) {
	sub, ctx := admit(b), b.Context()
	b.ReportAllocs()
	for b.Loop() {
		g, _ := sub.Acquire(ctx, 1)
		g.Done(0, 0)
	}
}

func BenchmarkDeny(b *testing.B) {
	sub := open(b, policy.Policy{MessageRate: policy.Rate{Permits: 1, Period: time.Hour}}, memory.New())
	for range 100 {
		sub.TryAcquire(math.MaxInt32)
		time.Sleep(time.Millisecond)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, ok := sub.TryAcquire(1); ok {
			b.Fatal("granted")
		}
	}
}

// BenchmarkFourLimits: the limits of a topic, its subscription, its namespace and its tenant.
func BenchmarkFourLimits(b *testing.B) {
	source := new(permitstest.Policies)
	source.Set(set(b, map[string]policy.Policy{
		topic: perSecond(1e6), topic + "?subscription=group": perSecond(1e6), "tenant:public": perSecond(1e6),
		"public/default": {MessageRate: policy.PerSecond(1e6), Aggregate: new(true)},
	}))
	lim, err := dispatch.Open(b.Context(), dispatch.Config{Policies: source, Permits: plenty{memory.New()}})
	require.NoError(b, err)
	defer func() { require.NoError(b, lim.Close()) }()
	sub, err := lim.Subscription(topic, "group")
	require.NoError(b, err)
	fill(b, sub)
	require.Len(b, lim.Stats().Subscriptions[0].Limits, 4)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		g, _ := sub.Acquire(ctx, 1)
		g.Done(1, 0)
	}
}
