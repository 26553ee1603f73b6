package bench

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	goredisstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	limiter "github.com/ulule/limiter/v3"
	redisstore "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/dispatchthrottle/throttle/tests/services"
)

// BenchmarkRedis takes one permit of a limit that is shared through a real Redis. It measures the
// time, and the requests that are sent to Redis.
func BenchmarkRedis(b *testing.B) {
	for _, p := range []struct {
		name  string
		admit func(testing.TB, *redis.Client) func(int)
	}{
		{"redis_rate", func(tb testing.TB, client *redis.Client) func(int) {
			l, key := redis_rate.NewLimiter(client), services.Name(tb)
			return func(n int) {
				for range n {
					r, err := l.Allow(ctx, key, redis_rate.PerSecond(plenty))
					check(err == nil && r.Allowed == 1)
				}
			}
		}},
		{"throttled", func(tb testing.TB, client *redis.Client) func(int) {
			store, err := goredisstore.NewCtx(client, services.Name(tb))
			if err != nil {
				tb.Fatal(err)
			}
			return throttledTake(throttledLimiter(tb, store, plentyQuota), 1, false)
		}},
		{"ulule", func(tb testing.TB, client *redis.Client) func(int) {
			opts := limiter.StoreOptions{Prefix: services.Name(tb)}
			store, err := redisstore.NewStoreWithOptions(client, opts)
			if err != nil {
				tb.Fatal(err)
			}
			return ululeTake(limiter.New(store, plentyHourly), false)
		}},
	} {
		b.Run(p.name, func(b *testing.B) {
			opts, err := redis.ParseURL(services.Redis(b))
			if err != nil {
				b.Fatal(err)
			}
			client := redis.NewClient(opts)
			defer client.Close()
			op := p.admit(b, client)
			var t requests
			client.AddHook(&t)
			op(1) // the first call may load a script
			before := t.Load()
			op(10)
			perPermit := float64(t.Load()-before) / 10
			loopBlocks(b, op, 1)
			b.ReportMetric(perPermit, "requests/permit")
		})
	}
}

// requests counts what a client sends to Redis; a pipeline is one request.
type requests struct{ atomic.Int64 }

func (t *requests) DialHook(next redis.DialHook) redis.DialHook { return next }

func (t *requests) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		t.Add(1)
		return next(ctx, cmd)
	}
}

func (t *requests) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		t.Add(1)
		return next(ctx, cmds)
	}
}
