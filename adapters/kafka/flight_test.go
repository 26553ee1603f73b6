package kafkathrottle_test

import (
	"context"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
)

// With maxInFlight, a message is handed over when enough of those before it are committed.
func TestCommitsEndFlights(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 20, 10)
	lim := open(t, policy.Policy{MaxInFlight: new(int64(3)), ByteRate: policy.PerSecond(1_000_000)})
	r := newReader(t, groupConfig(brokers, "orders"), lim)
	var got []kafka.Message
	for range 3 {
		got = append(got, fetch(t, r, 10*time.Second))
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
	require.NoError(t, r.CommitMessages(t.Context(), got[1])) // and with it the one before
	require.EqualValues(t, 1, lim.Stats().Subscriptions[0].InFlight)
	for i := range 2 {
		require.EqualValues(t, 3+i, fetch(t, r, time.Second).Offset)
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

// Without a group nothing says when a message is done with.
func TestNoGroupNoFlights(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 20, 10)
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, open(t, policy.Policy{MaxInFlight: new(int64(3))}))
	for i := range 20 {
		require.EqualValues(t, i, fetch(t, r, 5*time.Second).Offset)
	}
}
