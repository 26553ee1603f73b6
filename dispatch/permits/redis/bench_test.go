package redispermits_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// bare is the minimum that a script on a hash can do.
const bare = `local t = redis.call('TIME')
local h = redis.call('HMGET', KEYS[1], 'a', 'b')
redis.call('HSET', KEYS[1], 'a', t[1], 'b', t[2])
return t[2]`

// cpu is what the server has used of its processor, in seconds.
func cpu(b *testing.B, client *redis.Client) float64 {
	info, err := client.Info(context.Background(), "cpu").Result()
	require.NoError(b, err)
	sum := 0.0
	for line := range strings.Lines(info) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok && (name == "used_cpu_user_main_thread" || name == "used_cpu_sys_main_thread") {
			seconds, err := strconv.ParseFloat(value, 64)
			require.NoError(b, err)
			sum += seconds
		}
	}
	return sum
}

// clientCPU is what this process has used, in seconds.
func clientCPU(b *testing.B) float64 {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// BenchmarkAllocation measures the server's and the client's CPU an allocation, in pipelines of
// 100.
func BenchmarkAllocation(b *testing.B) {
	server := services.RedisServer(b)
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer func() { require.NoError(b, client.Close()) }()
	const pipelined = 100
	measure := func(b *testing.B, f func()) (redisCPU float64) {
		f()
		before, own, n := cpu(b, client), clientCPU(b), 0
		start := time.Now()
		for b.Loop() {
			f()
			n += pipelined
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(float64(time.Since(start).Microseconds())/float64(n), "us-in-all")
		redisCPU = (cpu(b, client) - before) * 1e6 / float64(n)
		b.ReportMetric((clientCPU(b)-own)*1e6/float64(n), "us-of-client-cpu")
		b.ReportMetric(redisCPU, "us-of-redis-cpu")
		return redisCPU
	}
	bareCPU := 0.0
	b.Run("bare script", func(b *testing.B) {
		script := redis.NewScript(bare)
		require.NoError(b, script.Load(b.Context(), client).Err())
		bareCPU = measure(b, func() {
			pipe := client.Pipeline()
			for i := range pipelined {
				script.EvalSha(b.Context(), pipe, []string{fmt.Sprint("bare", i%10)})
			}
			_, err := pipe.Exec(b.Context())
			require.NoError(b, err)
		})
	})
	for _, replicas := range []int{8, 1000} {
		b.Run(fmt.Sprintf("%d replicas/throttle", replicas), func(b *testing.B) {
			store := redispermits.Open(redis.UniversalOptions{Addrs: []string{server.Addr}}, time.Second)
			defer func() { require.NoError(b, store.Close()) }()
			carries := make([]schedule.Carry, replicas)
			next := 0
			requests := make([]*permits.Request, pipelined)
			for i := range requests {
				requests[i] = &permits.Request{
					Key:      fmt.Sprintf("throttle:{bench%d}", replicas),
					Allocate: &permits.Allocate{Request: request(1e6)},
				}
			}
			used := measure(b, func() {
				for i, r := range requests {
					r.Allocate.Carry = carries[(next+i)%replicas]
				}
				store.Do(b.Context(), requests)
				for i, r := range requests {
					require.NoError(b, r.Err)
					carries[(next+i)%replicas] = r.Allocate.Reply.Carry
				}
				next += pipelined
			})
			if bareCPU > 0 { // it has been measured
				b.ReportMetric(used/bareCPU, "x-bare-redis-cpu")
			}
		})
	}
}
