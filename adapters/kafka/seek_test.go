package kafkathrottle_test

import (
	"context"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestASeekDropsTheWaitingMessage(t *testing.T) {
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
	require.Eventually(t, func() bool { return waits(lim) }, throttletest.Patience, time.Millisecond)
	require.EqualValues(t, 1, r.Offset(), "the message that waits has not been handed over")
	require.NoError(t, r.SetOffset(50))
	require.EqualValues(t, 50, r.Offset())
	lim.Set(policy.Policy{})
	require.EqualValues(t, 50, (<-got).Offset)

	// A seek past the waiting message alone drops it, although kafka-go is at that offset already.
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
