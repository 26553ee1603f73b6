package dispatch_test

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/policy"
)

// BenchmarkManyTopics: one process has 10,000 topics with a policy each. 1,000 of them are active
// for a moment; then all are idle for three seconds.
func BenchmarkManyTopics(b *testing.B) {
	const topics, active = 10_000, 1000
	b.Run("throttle", func(b *testing.B) {
		for b.Loop() {
			entries := make([]policy.Entry, topics)
			names := make([]string, topics)
			for i := range entries {
				names[i] = fmt.Sprintf("kafka://public/default/topic-%d", i)
				tp, err := policy.ParseTopic(names[i])
				require.NoError(b, err)
				entries[i] = policy.Entry{Scope: policy.TopicScope(tp), Settings: perSecond(1000)}
			}
			set, err := policy.NewSet(entries)
			require.NoError(b, err)
			source := new(permitstest.Policies)
			source.Set(set)
			lim, err := dispatch.Open(b.Context(), dispatch.Config{Policies: source})
			require.NoError(b, err)
			before := heap()
			subs := make([]*dispatch.Subscription, topics)
			for i := range subs {
				subs[i], err = lim.Subscription(names[i], "group")
				require.NoError(b, err)
			}
			for _, sub := range subs[:active] {
				_, err := sub.Acquire(b.Context(), 1)
				require.NoError(b, err)
			}
			perTopic := (heap() - before) / topics
			time.Sleep(5 * time.Second) // permits that were allocated ahead expire
			requests, used := lim.Stats().Permits.Requests, cpuTime(b)
			time.Sleep(3 * time.Second)
			used = cpuTime(b) - used
			requests = lim.Stats().Permits.Requests - requests
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(perTopic, "B/topic")
			b.ReportMetric(100*used.Seconds()/3, "%-of-a-core-idle")
			b.ReportMetric(float64(requests), "requests-idle")
			runtime.KeepAlive(subs)
			require.NoError(b, lim.Close())
		}
	})
}

func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkOneWaiter: one caller acquires one permit at a time, on real timers.
func BenchmarkOneWaiter(b *testing.B) {
	for _, rate := range []int64{1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("%d/throttle", rate), func(b *testing.B) {
			for b.Loop() {
				sub := open(b, perSecond(rate), nil)
				_, err := sub.Acquire(b.Context(), 1)
				require.NoError(b, err)
				start, n := time.Now(), 0
				for time.Since(start) < 3*time.Second {
					_, err := sub.Acquire(b.Context(), 1)
					require.NoError(b, err)
					n++
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(100*float64(n)/3/float64(rate), "%-of-limit")
			}
		})
	}
}
