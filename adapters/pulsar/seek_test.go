package pulsarthrottle_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A Seek that succeeds drops the message that waits for its permit.
func TestSeek(t *testing.T) {
	ways(t, func(t *testing.T, w *brokerClient, open opener) {
		lim := throttletest.Open(t, fast(0))
		topic := w.topic(0)
		w.subscribe(topic, "billing")
		w.produce(topic, 10, 1)
		c := open(pulsar.ConsumerOptions{Topic: topic, StartMessageIDInclusive: true}, lim)
		first := receiveOne(t, c)
		assert.Equal(t, []string{"1", "2"}, receive(t, c, 2))
		lim.Set(policy.Policy{Paused: new(true)})
		quiet(t, c, 100*time.Millisecond)

		received := make(chan string, 1)
		go func() { // it waits all the time
			m, err := c.Receive(context.Background())
			if err != nil {
				received <- err.Error()
				return
			}
			received <- string(m.Payload())
		}()
		require.Eventually(t, func() bool { return waiting(lim) == 1 }, throttletest.Patience, time.Millisecond)
		require.NoError(t, c.Seek(first.ID()))
		lim.Set(fast(0))
		assert.Equal(t, "0", <-received)
		assert.Equal(t, []string{"1", "2"}, receive(t, c, 2))

		lim.Set(policy.Policy{Paused: new(true)})
		quiet(t, c, 100*time.Millisecond)
		require.Error(t, c.Seek(pulsar.NewMessageID(1, 1, 0, 99)), "there is no such partition")
		lim.Set(fast(0))
		assert.Equal(t, []string{"3", "4"}, receive(t, c, 2))

		require.NoError(t, c.SeekByTime(time.Now().Add(-time.Hour)))
		assert.Equal(t, []string{"0", "1"}, receive(t, c, 2))
	})
}

// Unsubscribe does not wait for a Receive, and no more messages come.
func TestUnsubscribe(t *testing.T) {
	ways(t, func(t *testing.T, w *brokerClient, open opener) {
		for name, unsubscribe := range map[string]func(*pulsarthrottle.Consumer) error{
			"gentle": (*pulsarthrottle.Consumer).Unsubscribe,
			"force":  (*pulsarthrottle.Consumer).UnsubscribeForce,
		} {
			lim := throttletest.Open(t, fast(0))
			topic := w.topic(0)
			w.subscribe(topic, "billing")
			w.produce(topic, 3, 1)
			c := open(pulsar.ConsumerOptions{Topic: topic}, lim)
			receive(t, c, 1)
			lim.Set(policy.Policy{Paused: new(true)})
			quiet(t, c, 50*time.Millisecond)
			require.NoError(t, unsubscribe(c), name)
			lim.Set(fast(0))
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			for err := error(nil); err == nil; { // the client may have some left
				_, err = c.Receive(ctx)
			}
			cancel()
			assert.Empty(t, w.stats(topic, "billing").SubType, "%s: the subscription is gone", name)
		}
	})
}

// A seeking consumer has a broker that answers at once.
type seeking struct{ suppliedConsumer }

func (seeking) Seek(pulsar.MessageID) error { return nil }
func (seeking) SeekByTime(t time.Time) error {
	if t.IsZero() {
		return errors.New("refused")
	}
	return nil
}
func (seeking) Unsubscribe() error { return nil }

// TestSeekWaitsForTheReconnect: a seek of a zero-queue consumer gives the client time to reconnect,
// unless it failed or the consumer is closed. Nothing else waits.
func TestSeekWaitsForTheReconnect(t *testing.T) {
	for _, zero := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: dispatch.Fixed(fast(0))})
			require.NoError(t, err)
			defer func() { require.NoError(t, lim.Close()) }()
			var inner pulsar.Consumer = seeking{suppliedConsumer{supply: &supply{}}}
			pause := time.Duration(0)
			if zero {
				inner, pause = struct {
					pulsar.Consumer
					*sync.Mutex
				}{inner, &sync.Mutex{}}, 100*time.Millisecond
			}
			c, err := pulsarthrottle.Wrap(inner, lim)
			require.NoError(t, err)
			takes := func(want time.Duration, seek func() error) {
				t.Helper()
				start := time.Now()
				_ = seek()
				assert.Equal(t, want, time.Since(start))
			}
			takes(pause, func() error { return c.Seek(pulsar.EarliestMessageID()) })
			takes(pause, func() error { return c.SeekByTime(time.Now()) })
			takes(0, func() error { return c.SeekByTime(time.Time{}) })
			takes(0, c.Unsubscribe)
			time.AfterFunc(30*time.Millisecond, c.Close)
			takes(min(pause, 30*time.Millisecond), func() error { return c.Seek(pulsar.EarliestMessageID()) })
			c.Close()
		})
	}
}
