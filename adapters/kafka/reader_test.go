package kafkathrottle_test

import (
	"context"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

const soon = 100 * time.Millisecond // kafka-go's MaxWait, so that Close is quick

func newReader(
	t testing.TB, cfg kafka.ReaderConfig, lim *throttletest.Limiter, opts ...kafkathrottle.Option,
) *kafkathrottle.Reader {
	t.Helper()
	cfg.MaxWait = soon
	r, err := kafkathrottle.NewReader(cfg, lim.Limiter, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// waits reports whether a FetchMessage waits for a permit.
func waits(lim *throttletest.Limiter) bool {
	for _, s := range lim.Stats().Subscriptions {
		if s.Waiting > 0 {
			return true
		}
	}
	return false
}

func TestReaderObeysTheLimit(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 4000, 100)
	lim := throttletest.Open(t,
		policy.Policy{MessageRate: policy.PerSecond(500), CaughtUp: policy.CaughtUp{Throttle: new(true)}})
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim)
	fetch(t, r)
	next := int64(1)
	loosely.Hold(t, func(loose assert.TestingT) {
		start := time.Now()
		for range 1000 {
			require.Equal(t, next, fetch(t, r).Offset)
			next++
		}
		took := time.Since(start)
		require.Greater(t, took, 1750*time.Millisecond)
		assert.Less(loose, took, 2250*time.Millisecond)
		require.Equal(t, next, r.Offset())
	})
}

func TestReaderChargesTheExactBytes(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 4000, 100)
	lim := throttletest.Open(t,
		policy.Policy{ByteRate: policy.PerSecond(50_000), CaughtUp: policy.CaughtUp{Throttle: new(true)}})
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim)
	fetch(t, r)
	loosely.Hold(t, func(loose assert.TestingT) {
		start := time.Now()
		for range 1000 {
			fetch(t, r)
		}
		took := time.Since(start)
		require.Greater(t, took, 1750*time.Millisecond)
		assert.Less(loose, took, 2250*time.Millisecond)
	})
}

func TestReaderWithoutALimiter(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 3, 10)
	r, err := kafkathrottle.NewReader(kafka.ReaderConfig{Brokers: brokers, Topic: "orders", MaxWait: soon}, nil)
	require.NoError(t, err)
	require.EqualValues(t, 0, fetch(t, r).Offset)
	require.NoError(t, r.SetOffset(2))
	require.EqualValues(t, 2, r.Offset())
	require.EqualValues(t, 2, fetch(t, r).Offset)
	require.NoError(t, r.Close())
	_, err = r.ReadMessage(t.Context())
	require.ErrorIs(t, err, io.EOF)
}

func TestCancelKeepsTheMessage(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 100, 10)
	lim := throttletest.Open(t, policy.Policy{Paused: new(true)})
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		m, err := r.FetchMessage(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, m, "a message and an error")
		cancel()
	}
	require.Zero(t, r.Offset(), "nothing has been handed over")
	lim.Set(policy.Policy{})
	for i := range 100 {
		require.EqualValues(t, i, fetch(t, r).Offset)
	}
}

// Goroutines that share a Reader and give up at random get each message once, each of them in
// order.
func TestManyGoroutinesLoseNothing(t *testing.T) {
	const partitions, each = 4, 250
	_, brokers := broker(t, partitions, "orders")
	fill(t, brokers, "orders", partitions, each, 10)
	lim := throttletest.Open(t,
		policy.Policy{MessageRate: policy.PerSecond(500),
			CaughtUp: policy.CaughtUp{Throttle: new(true)}})
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders", GroupID: "billing"}, lim)
	var mu sync.Mutex
	seen := map[string]int{}
	all, done := context.WithTimeout(t.Context(), 30*time.Second)
	defer done()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			last := map[int]int64{}
			for all.Err() == nil {
				ctx, cancel := context.WithTimeout(all, time.Duration(rand.IntN(20))*time.Millisecond)
				m, err := r.FetchMessage(ctx)
				cancel()
				if err != nil {
					continue
				}
				mu.Lock()
				if before, ok := last[m.Partition]; ok && m.Offset <= before {
					t.Errorf("partition %d: %d after %d", m.Partition, m.Offset, before)
				}
				last[m.Partition] = m.Offset
				seen[strings.TrimSpace(string(m.Value))]++
				if len(seen) == partitions*each {
					done()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, partitions*each)
	for value, n := range seen {
		require.Equal(t, 1, n, value)
	}
}

// A message to which no limit applies costs no memory allocation beyond those of kafka-go.
func TestAnUnlimitedMessageAllocatesNothing(t *testing.T) {
	const messages = 20_000
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, messages, 100)
	cfg := kafka.ReaderConfig{Brokers: brokers, Topic: "orders", MaxWait: soon, ReadLagInterval: -1}
	bare := kafka.NewReader(cfg)
	defer func() { require.NoError(t, bare.Close()) }()
	ours := newReader(t, cfg, throttletest.Open(t, policy.Policy{}))
	allocations := func(r interface {
		FetchMessage(context.Context) (kafka.Message, error)
	}) float64 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range messages {
			_, err := r.FetchMessage(ctx)
			require.NoError(t, err)
		}
		runtime.ReadMemStats(&after)
		return float64(after.Mallocs-before.Mallocs) / messages
	}
	require.InDelta(t, allocations(bare), allocations(ours), 0.5)
}
