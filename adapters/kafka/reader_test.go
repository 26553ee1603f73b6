package kafkathrottle_test

import (
	"context"
	"fmt"
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
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

const soon = 100 * time.Millisecond // kafka-go's MaxWait, so that Close is quick

func newReader(t testing.TB, cfg kafka.ReaderConfig, lim *throttletest.Limiter, opts ...kafkathrottle.Option) *kafkathrottle.Reader {
	t.Helper()
	cfg.MaxWait = soon
	r, err := kafkathrottle.NewReader(cfg, lim.Limiter, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// waits tells whether a FetchMessage waits for a permit now.
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
	lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(500), CaughtUp: policy.CaughtUp{Throttle: new(true)}})
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
	lim := throttletest.Open(t, policy.Policy{ByteRate: policy.PerSecond(50_000), CaughtUp: policy.CaughtUp{Throttle: new(true)}})
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
		_, err := r.FetchMessage(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
	}
	require.Zero(t, r.Offset(), "nothing has been handed over")
	lim.Set(policy.Policy{})
	for i := range 100 {
		require.EqualValues(t, i, fetch(t, r).Offset)
	}
}

// Goroutines that share a Reader and give up at random must see each message once, and each of them in order.
func TestManyGoroutinesLoseNothing(t *testing.T) {
	const partitions, each = 4, 250
	_, brokers := broker(t, partitions, "orders")
	fill(t, brokers, "orders", partitions, each, 10)
	lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(500), CaughtUp: policy.CaughtUp{Throttle: new(true)}})
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

func TestSetOffsetDropsWhatWaits(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 100, 10)
	lim := throttletest.Open(t, policy.Policy{})
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim)
	require.EqualValues(t, 0, fetch(t, r).Offset)
	lim.Set(policy.Policy{Paused: new(true)})
	got := make(chan kafka.Message, 1)
	go func() {
		m, _ := r.FetchMessage(t.Context())
		got <- m
	}()
	require.Eventually(t, func() bool { return waits(lim) }, 5*time.Second, time.Millisecond)
	require.EqualValues(t, 1, r.Offset(), "the message that waits has not been handed over")
	require.NoError(t, r.SetOffset(50))
	require.EqualValues(t, 50, r.Offset())
	lim.Set(policy.Policy{})
	require.EqualValues(t, 50, (<-got).Offset)

	// To skip only the message that waits is a move, too, though kafka-go is there already.
	lim.Set(policy.Policy{Paused: new(true)})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := r.FetchMessage(ctx)
	require.Error(t, err)
	require.NoError(t, r.SetOffset(52))
	lim.Set(policy.Policy{})
	require.EqualValues(t, 52, fetch(t, r).Offset)
	require.NoError(t, r.SetOffsetAt(t.Context(), time.Unix(1, 0)))
	require.EqualValues(t, 0, fetch(t, r).Offset)
}

func TestCloseEndsAWait(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 100, 10)
	lim := throttletest.Open(t, policy.Policy{Paused: new(true)})
	other := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim) // keeps the subscription open
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim)
	errs := make(chan error, 3)
	for range 3 { // one waits for a permit, the others for their turn
		go func() {
			_, err := r.FetchMessage(t.Context())
			errs <- err
		}()
	}
	require.Eventually(t, func() bool { return waits(lim) }, 5*time.Second, time.Millisecond)
	start := time.Now()
	require.NoError(t, r.Close())
	require.Less(t, time.Since(start), 5*time.Second, "the permit that it waits for never comes")
	for range 3 {
		require.ErrorIs(t, <-errs, io.EOF)
	}
	_, err := r.FetchMessage(t.Context())
	require.ErrorIs(t, err, io.EOF)
	require.Len(t, lim.Stats().Subscriptions, 1)
	require.NoError(t, other.Close())
	require.Empty(t, lim.Stats().Subscriptions)
	require.NoError(t, other.Close(), "a second Close does nothing")
}

func TestLimiterClosedFirst(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 100, 10)
	lim := throttletest.Open(t, policy.Policy{Paused: new(true)})
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim)
	require.NoError(t, lim.Close())
	_, err := r.FetchMessage(t.Context())
	require.ErrorIs(t, err, dispatch.ErrClosed)
	_, err = kafkathrottle.NewReader(kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim.Limiter)
	require.ErrorIs(t, err, dispatch.ErrClosed)
}

// Each of a group's topics has its own limit; the one that is paused holds up its messages only where they are next.
func TestGroupTopicsHaveTheirOwnLimits(t *testing.T) {
	_, brokers := broker(t, 1, "orders", "audit")
	lim := throttletest.Open(t, policy.Policy{})
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, GroupID: "billing", GroupTopics: []string{"orders", "audit", "orders"}}, lim,
		kafkathrottle.WithNamespace("bank/prod"))
	var names []string
	for _, s := range lim.Stats().Subscriptions {
		names = append(names, s.Topic+" "+s.Subscription)
	}
	require.Equal(t, []string{"kafka://bank/prod/audit billing", "kafka://bank/prod/orders billing"}, names)
	fill(t, brokers, "orders", 1, 10, 10)
	fill(t, brokers, "audit", 1, 10, 10)
	count := map[string]int{}
	for range 20 {
		m, err := r.ReadMessage(t.Context())
		require.NoError(t, err)
		count[m.Topic]++
	}
	require.Equal(t, map[string]int{"orders": 10, "audit": 10}, count)
}

func TestNames(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	lim := throttletest.Open(t, policy.Policy{})
	cfg := kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}
	newReader(t, cfg, lim)
	newReader(t, cfg, lim, kafkathrottle.WithSubscription("billing"),
		kafkathrottle.WithTopic(func(topic string) string { return "persistent://public/default/" + topic + "-partition-3" }))
	var names []string
	for _, s := range lim.Stats().Subscriptions {
		names = append(names, s.Topic+" "+s.Subscription)
	}
	require.Equal(t, []string{"kafka://public/default/orders " + kafkathrottle.DefaultSubscription, "persistent://public/default/orders billing"}, names)

	var field *policy.FieldError
	_, err := kafkathrottle.NewReader(cfg, lim.Limiter, kafkathrottle.WithNamespace("public"))
	require.ErrorAs(t, err, &field)
	_, err = kafkathrottle.NewReader(kafka.ReaderConfig{Brokers: brokers}, lim.Limiter)
	require.ErrorContains(t, err, "empty topic")
	require.Len(t, lim.Stats().Subscriptions, 2, "a Reader that does not open leaves nothing behind")
}

func TestPrefetchIsSizedToTheLimit(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	for _, test := range []struct {
		p               policy.Policy
		cfg             kafka.ReaderConfig
		queue, maxBytes int
	}{
		{policy.Policy{}, kafka.ReaderConfig{}, 100, 1e6}, // kafka-go's defaults
		{policy.Policy{MessageRate: policy.PerSecond(1000)}, kafka.ReaderConfig{}, 100, 1e6},
		{policy.Policy{MessageRate: policy.PerSecond(100)}, kafka.ReaderConfig{}, 25, 100 << 10},
		{policy.Policy{MessageRate: rate(t, "1/1h")}, kafka.ReaderConfig{}, 1, 16 << 10},
		{policy.Policy{ByteRate: policy.PerSecond(100_000)}, kafka.ReaderConfig{}, 25, 100_000},
		{policy.Policy{MessageRate: policy.PerSecond(100)}, kafka.ReaderConfig{QueueCapacity: 7, MaxBytes: 5000}, 7, 5000},
		{policy.Policy{MessageRate: policy.PerSecond(1)}, kafka.ReaderConfig{MinBytes: 50_000, MaxBytes: 80_000}, 1, 50_000},
		{policy.Policy{MessageRate: policy.PerSecond(1), Mode: policy.Shadow}, kafka.ReaderConfig{}, 100, 1e6},
	} {
		t.Run(fmt.Sprintf("%v %v", test.p.MessageRate, test.p.ByteRate), func(t *testing.T) {
			test.cfg.Brokers, test.cfg.Topic = brokers, "orders"
			r := newReader(t, test.cfg, throttletest.Open(t, test.p))
			require.Equal(t, test.queue, r.Config().QueueCapacity)
			require.Equal(t, test.maxBytes, r.Config().MaxBytes)
		})
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
