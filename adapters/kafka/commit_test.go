package kafkathrottle_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// With maxInFlight, a message is returned when enough of those before it are committed.
func TestCommittedMessagesAreNotInFlight(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 20, 10)
	lim := throttletest.Open(t, policy.Policy{MaxInFlight: new(int64(3)), ByteRate: policy.PerSecond(1_000_000)})
	r := newReader(t, groupConfig(brokers, "orders"), lim)
	var got []kafka.Message
	for range 3 {
		got = append(got, fetch(t, r))
	}
	full := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := r.FetchMessage(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualValues(t, 3, lim.Stats().Subscriptions[0].InFlight)
	}
	full()
	require.NoError(t, r.CommitMessages(t.Context(), got[1])) // and the one before it
	require.EqualValues(t, 1, lim.Stats().Subscriptions[0].InFlight)
	for i := range 2 {
		require.EqualValues(t, 3+i, fetch(t, r).Offset)
	}
	full()
	require.NoError(t, r.CommitMessages(t.Context(), kafka.Message{Topic: "orders", Partition: 0, Offset: 4}))
	for i := range 15 { // ReadMessage commits each
		m, err := r.ReadMessage(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 5+i, m.Offset)
	}
	require.Zero(t, lim.Stats().Subscriptions[0].InFlight)
}

// TestACommitIsOfItsPartition: a commit settles no messages of other partitions.
func TestACommitIsOfItsPartition(t *testing.T) {
	_, brokers := broker(t, 2, "orders")
	fill(t, brokers, "orders", 2, 10, 10)
	lim := throttletest.Open(t, policy.Policy{MaxInFlight: new(int64(100))})
	r := newReader(t, groupConfig(brokers, "orders"), lim)
	last := map[int]kafka.Message{} // by partition
	for range 20 {
		m := fetch(t, r)
		last[m.Partition] = m
	}
	inFlight := func() int64 { return lim.Stats().Subscriptions[0].InFlight }
	require.EqualValues(t, 20, inFlight())
	require.NoError(t, r.CommitMessages(t.Context(), last[1]))
	require.EqualValues(t, 10, inFlight())
	require.NoError(t, r.CommitMessages(t.Context(), last[0]))
	require.Zero(t, inFlight())
}

// Without a group nothing tells when a message is done, so none is in flight.
func TestWithoutAGroupNothingIsInFlight(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 20, 10)
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"},
		throttletest.Open(t, policy.Policy{MaxInFlight: new(int64(3))}))
	for i := range 20 {
		require.EqualValues(t, i, fetch(t, r).Offset)
	}
}

// Messages are no longer in flight when their Reader is closed, or has lost their partitions
// while it waited for messages.
func TestNothingIsInFlightWithoutItsReader(t *testing.T) {
	t.Parallel()
	_, brokers := broker(t, 2, "orders")
	fill(t, brokers, "orders", 2, 2, 10)
	lim := throttletest.Open(t, policy.Policy{MaxInFlight: new(int64(10))})
	elsewhere := throttletest.Open(t, policy.Policy{})
	keep, err := lim.Subscription("kafka://public/default/orders", "orders-billing")
	require.NoError(t, err)
	defer func() { require.NoError(t, keep.Close()) }()
	inFlight := func() int64 { return lim.Stats().Subscriptions[0].InFlight }
	r := newReader(t, groupConfig(brokers, "orders"), lim)
	var mu sync.Mutex
	last, read := map[int]kafka.Message{}, map[string]bool{} // by partition, by value
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			m, err := r.FetchMessage(context.Background()) // ends with Close
			if err != nil {
				return
			}
			mu.Lock()
			last[m.Partition], read[string(m.Value)] = m, true
			mu.Unlock()
		}
	})
	require.Eventually(t, func() bool { return inFlight() == 4 }, throttletest.Patience, 10*time.Millisecond)
	other, err := kafkathrottle.NewReader(groupConfig(brokers, "orders"), elsewhere.Limiter)
	require.NoError(t, err)
	fetch(t, other)
	throttletest.Until(t, "only messages of the other partition are in flight", func() bool { return inFlight() == 2 })
	mu.Lock()
	clear(read)
	mu.Unlock()
	require.NoError(t, other.Close())
	throttletest.Until(t, "all messages are read again, and counted once", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(read) == 4 && inFlight() == 4
	})
	mu.Lock()
	for _, m := range last {
		require.NoError(t, r.CommitMessages(t.Context(), m))
	}
	mu.Unlock()
	require.Zero(t, inFlight())
	require.NoError(t, r.Close())
	wg.Wait()

	fill(t, brokers, "orders", 2, 2, 10)
	r = newReader(t, groupConfig(brokers, "orders"), lim)
	for range 3 {
		fetch(t, r)
	}
	require.EqualValues(t, 3, inFlight())
	require.NoError(t, r.Close())
	require.Zero(t, inFlight())
}
