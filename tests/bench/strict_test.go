package bench

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/dispatchthrottle/throttle/dispatch"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// An openDo opens one caller of a limit: do waits for its turn and calls f, and requests counts the
// requests to Redis so far.
type openDo func(tb testing.TB, redisURL, limit string) (do doFunc, requests func() int64)

type doFunc func(ctx context.Context, f func()) error

// BenchmarkOnePer10ms has eight callers, each with a connection of its own, share a limit of one
// call every 10 ms. It measures the calls, the shortest time between two of them, and the requests
// to Redis.
func BenchmarkOnePer10ms(b *testing.B) {
	const period, callers, d = 10 * time.Millisecond, 8, 5 * time.Second
	for name, open := range map[string]openDo{
		"throttle":   strictDo,
		"redis_rate": rateDo,
	} {
		b.Run(name, func(b *testing.B) {
			redisURL := services.Redis(b)
			for b.Loop() {
				limit := services.Name(b)
				ctx, cancel := context.WithTimeout(b.Context(), d)
				var mu sync.Mutex
				var calls []time.Time
				var requests int64
				var all sync.WaitGroup
				for range callers {
					do, count := open(b, redisURL, limit)
					all.Go(func() {
						for do(ctx, func() {
							mu.Lock()
							defer mu.Unlock()
							calls = append(calls, time.Now())
						}) == nil {
						}
						mu.Lock()
						defer mu.Unlock()
						requests += count()
					})
				}
				all.Wait()
				cancel()
				slices.SortFunc(calls, time.Time.Compare)
				nearest := d
				for i := range calls[1:] {
					nearest = min(nearest, calls[i+1].Sub(calls[i]))
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(100*float64(len(calls))/float64(d/period), "%-of-calls")
				b.ReportMetric(nearest.Seconds()*1000, "ms-shortest-gap")
				b.ReportMetric(float64(requests)/float64(len(calls)), "requests/call")
			}
		})
	}
}

// strictDo limits by dispatch.Subscription.Do.
func strictDo(tb testing.TB, redisURL, limit string) (do doFunc, requests func() int64) {
	opts, err := redis.ParseURL(redisURL)
	check(err == nil)
	permits := redispermits.Open(redis.UniversalOptions{Addrs: []string{opts.Addr}}, 0)
	strict := policy.Sharing{Mode: policy.Strict}
	p := policy.Policy{MessageRate: policy.PerSecond(100), Sharing: strict}
	lim, err := dispatch.Open(tb.Context(), dispatch.Config{
		Policies: dispatch.Fixed(p), Permits: permits, Cluster: limit, OnClose: permits.Close,
	})
	check(err == nil)
	tb.Cleanup(func() { check(lim.Close() == nil) })
	sub, err := lim.Subscription("kafka://public/default/orders", "group")
	check(err == nil)
	return func(ctx context.Context, f func()) error {
		return sub.Do(ctx, func(context.Context) error { f(); return nil })
	}, func() int64 { return lim.Stats().Permits.Requests }
}

// rateDo limits by redis_rate with a burst of 1. It asks again after the time that redis_rate
// returns.
func rateDo(tb testing.TB, redisURL, limit string) (do doFunc, requests func() int64) {
	opts, err := redis.ParseURL(redisURL)
	check(err == nil)
	client := redis.NewClient(opts)
	tb.Cleanup(func() { check(client.Close() == nil) })
	l, asked := redis_rate.NewLimiter(client), int64(0)
	return func(ctx context.Context, f func()) error {
		for {
			asked++
			r, err := l.Allow(ctx, limit, redis_rate.Limit{Rate: 100, Burst: 1, Period: time.Second})
			if err != nil {
				return err
			}
			if r.Allowed == 1 {
				f()
				return nil
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(r.RetryAfter):
			}
		}
	}, func() int64 { return asked }
}
