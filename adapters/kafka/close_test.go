package kafkathrottle_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

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

// TestCloseEndsACommit: kafka-go keeps a commit for the group's next generation, and answers none
// if Close comes first.
func TestCloseEndsACommit(t *testing.T) {
	c, brokers := broker(t, 1, "orders")
	joins := make(chan struct{}, 1)
	c.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		select {
		case joins <- struct{}{}:
		default:
		}
		return nil, errors.New("no coordinator"), true
	})
	r := newReader(t, groupConfig(brokers, "orders"), throttletest.Open(t, policy.Policy{}))
	<-joins
	committed := make(chan error)
	go func() { committed <- r.CommitMessages(context.Background(), kafka.Message{Topic: "orders"}) }()
	select {
	case err := <-committed:
		require.Fail(t, "ended without a group", "%v", err)
	case <-time.After(50 * time.Millisecond): // it waits by now, or it will
	}
	require.NoError(t, r.Close())
	require.ErrorIs(t, <-committed, io.ErrClosedPipe)
	require.ErrorIs(t, r.CommitMessages(t.Context(), kafka.Message{Topic: "orders"}), io.ErrClosedPipe)
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
