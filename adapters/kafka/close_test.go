package kafkathrottle_test

import (
	"io"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestCloseEndsAWait(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 100, 10)
	lim := throttletest.Open(t, policy.Policy{Paused: new(true)})
	// keeps the subscription open
	other := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim)
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim)
	errs := make(chan error, 3)
	for range 3 { // one waits for a permit, the others for the lock
		go func() {
			_, err := r.FetchMessage(t.Context())
			errs <- err
		}()
	}
	require.Eventually(t, func() bool { return waits(lim) }, throttletest.Patience, time.Millisecond)
	start := time.Now()
	require.NoError(t, r.Close())
	require.Less(t, time.Since(start), throttletest.Patience, "the permit that it waits for never comes")
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
