package kafkathrottle_test

import (
	"context"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/policy"
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

// A limitedReader reads 100-byte messages at 500 a second.
type limitedReader struct {
	*kafkathrottle.Reader
	t testing.TB
}

func newLimitedReader(t testing.TB, p policy.Policy) limitedReader {
	t.Helper()
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 4000, 100)
	p.CaughtUp.Throttle = new(true)
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, throttletest.Open(t, p))
	fetch(t, r)
	return limitedReader{r, t}
}

// next reads n messages in order, and returns how long that took.
func (r limitedReader) next(n int) time.Duration {
	r.t.Helper()
	start, offset := time.Now(), r.Offset()
	for i := range n {
		require.Equal(r.t, offset+int64(i), fetch(r.t, r.Reader).Offset)
	}
	require.Equal(r.t, offset+int64(n), r.Offset())
	return time.Since(start)
}

// limits are those of a limitedReader.
var limits = map[string]policy.Policy{
	"messages":    {MessageRate: policy.PerSecond(500)},
	"exact bytes": {ByteRate: policy.PerSecond(50_000)},
}

// A Reader returns the messages in order, and none before its permit.
func TestReaderObeysTheLimit(t *testing.T) {
	t.Parallel()
	for name, limit := range limits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Greater(t, newLimitedReader(t, limit).next(1000), 1750*time.Millisecond, "1000/500 s, less 250 ms")
		})
	}
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
	all, done := context.WithTimeout(t.Context(), throttletest.Patience)
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
		ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
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

// TestTopicsInOneLine: a Reader of topics with different limits says that they hold each other up,
// and Stats name the topics behind the one that waits.
func TestTopicsInOneLine(t *testing.T) {
	t.Parallel()
	_, brokers := broker(t, 1, "fast", "slow")
	fill(t, brokers, "slow", 1, 10, 10)
	lim := throttletest.Open(t, policy.Policy{})
	cfg := kafka.ReaderConfig{Brokers: brokers, GroupTopics: []string{"fast", "slow"}, GroupID: "billing"}
	var log logger
	cfg.ErrorLogger = &log
	warnings := 0
	warns := func(p policy.Policy, want int) {
		t.Helper()
		lim.Set(policy.Policy{})
		lim.Add("kafka://public/default/slow", p)
		require.NoError(t, newReader(t, cfg, lim).Close())
		wrapped, err := kafkathrottle.Wrap(kafka.NewReader(cfg), lim.Limiter)
		require.NoError(t, err)
		require.NoError(t, wrapped.Close())
		warnings += want
		require.Equal(t, warnings, strings.Count(log.String(), "different limits"), "%+v", p)
	}
	warns(policy.Policy{}, 0)
	warns(policy.Policy{MessageRate: policy.PerSecond(1), Mode: policy.Shadow}, 0)
	warns(policy.Policy{MaxInFlight: new(int64(1))}, 2)
	warns(policy.Policy{Paused: new(true)}, 2)
	slow := policy.Policy{
		MessageRate: policy.Rate{Permits: 1, Period: time.Hour}, CaughtUp: policy.CaughtUp{Throttle: new(true)},
	}
	warns(slow, 2)
	r := newReader(t, cfg, lim)
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	waiting.Go(func() {
		for ctx.Err() == nil {
			_, _ = r.FetchMessage(ctx) // fails when ctx ends
		}
	})
	throttletest.Until(t, "the slow topic holds up the fast one", func() bool {
		for _, s := range lim.Stats().Subscriptions {
			if s.Waiting > 0 {
				return slices.Equal([]string{"kafka://public/default/fast"}, s.HoldsUp) &&
					s.Topic == "kafka://public/default/slow"
			}
		}
		return false
	})
}
