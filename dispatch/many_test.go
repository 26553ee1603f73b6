package dispatch_test

import (
	"context"
	"fmt"
	"math"
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

// many is one process with 10,000 limits of 10/s to 100/s, of which 1,000 are busy.
type many struct {
	lim   *dispatch.Limiter
	rates []float64      // of the busy limits, permits a second
	got   []atomic.Int64 // permits of the busy limits
	bytes float64        // of the heap, for all limits
	stop  context.CancelFunc
	busy  sync.WaitGroup
}

func openMany(t testing.TB) *many {
	const limits, busy = 10_000, 1000
	m := &many{rates: make([]float64, busy), got: make([]atomic.Int64, busy)}
	entries, names := make([]policy.Entry, limits), make([]string, limits)
	rate := func(i int) int64 { return int64(10 * (1 + i%10)) }
	for i := range entries {
		names[i] = fmt.Sprintf("kafka://public/default/topic-%d", i)
		topic, err := policy.ParseTopic(names[i])
		require.NoError(t, err)
		entries[i] = policy.Entry{Scope: policy.TopicScope(topic), Settings: perSecond(rate(i))}
	}
	set, err := policy.NewSet(entries)
	require.NoError(t, err)
	source := new(permitstest.Policies)
	source.Set(set)
	m.lim, err = dispatch.Open(t.Context(), dispatch.Config{Policies: source})
	require.NoError(t, err)
	before := heap()
	ctx, stop := context.WithCancel(t.Context())
	m.stop = stop
	for i, name := range names {
		sub, err := m.lim.Subscription(name, "group")
		require.NoError(t, err)
		if i%10 == 0 {
			at := i / 10
			n := i + at%10 // so that all rates are busy
			sub, err = m.lim.Subscription(names[n], "group")
			require.NoError(t, err)
			m.rates[at] = float64(rate(n))
			m.busy.Go(func() {
				for {
					g, err := sub.Acquire(ctx, 10)
					if err != nil {
						return
					}
					m.got[at].Add(int64(g.N()))
				}
			})
		}
	}
	m.bytes = heap() - before
	return m
}

// run returns the smallest and the largest part of its rate that a busy limit has granted during d,
// and the largest excess over the rate, in seconds of it.
func (m *many) run(d time.Duration) (least, most, excess float64) {
	before := make([]int64, len(m.got))
	for i := range m.got {
		before[i] = m.got[i].Load()
	}
	start := time.Now()
	time.Sleep(d)
	least = math.Inf(1)
	for i := range m.got {
		n, secs := float64(m.got[i].Load()-before[i]), time.Since(start).Seconds()
		least, most = min(least, n/secs/m.rates[i]), max(most, n/secs/m.rates[i])
		excess = max(excess, n/m.rates[i]-secs)
	}
	return least, most, excess
}

func (m *many) close(t testing.TB) {
	m.stop()
	m.busy.Wait()
	require.NoError(t, m.lim.Close())
}

// TestManyLimits: each of 1,000 busy limits among 10,000 is used in full and never exceeded.
func TestManyLimits(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		m := openMany(t)
		time.Sleep(3 * time.Second)
		least, most, excess := m.run(10 * time.Second)
		t.Logf("%.2f %% to %.2f %% of each limit", 100*least, 100*most)
		assert.GreaterOrEqual(t, least, 0.995)
		assert.LessOrEqual(t, excess, 0.25)
		m.close(t)
	})
}

// BenchmarkManyLimits: the same on real timers, for ten seconds.
func BenchmarkManyLimits(b *testing.B) {
	for b.Loop() {
		m := openMany(b)
		time.Sleep(3 * time.Second)
		requests, used := m.lim.Stats().Permits.Requests, cpuTime(b)
		least, most, _ := m.run(10 * time.Second)
		used = cpuTime(b) - used
		requests = m.lim.Stats().Permits.Requests - requests
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(m.bytes/10_000, "B/limit")
		b.ReportMetric(100*used.Seconds()/10, "%-of-a-core")
		b.ReportMetric(float64(requests)/10, "requests/s")
		b.ReportMetric(100*least, "%-least")
		b.ReportMetric(100*most, "%-most")
		m.close(b)
	}
}
