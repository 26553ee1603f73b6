package kafkathrottle_test

import (
	"context"
	"io"
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

func TestReaderWithoutALimiter(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 3, 10)
	r, err := kafkathrottle.NewReader(kafka.ReaderConfig{Brokers: brokers, Topic: "orders", MaxWait: soon}, nil)
	require.NoError(t, err)
	require.EqualValues(t, 0, fetch(t, r).Offset)
	require.NoError(t, r.SetOffset(2))
	require.EqualValues(t, 2, r.Offset())
	m := fetch(t, r)
	require.EqualValues(t, 2, m.Offset)
	r.Skip(m)
	require.NoError(t, r.Close())
	_, err = r.ReadMessage(t.Context())
	require.ErrorIs(t, err, io.EOF)
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
