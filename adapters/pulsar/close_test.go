package pulsarthrottle_test

import (
	"context"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// Close ends any wait at once, returns allocated permits, and leaves messages that were not
// returned unacknowledged.
func TestClose(t *testing.T) {
	ways(t, func(t *testing.T, w *brokerClient, open opener) {
		for _, paused := range []bool{true, false} { // it waits for a permit, or for a message
			lim := throttletest.Open(t, fast(0))
			topic := w.topic(0)
			w.subscribe(topic, "billing")
			c := open(pulsar.ConsumerOptions{Topic: topic}, lim)
			if paused {
				lim.Set(policy.Policy{Paused: new(true)})
				w.produce(topic, 3, 1)
			}
			ended := make(chan error, 3)
			for range 2 {
				go func() {
					_, err := c.Receive(context.Background())
					ended <- err
				}()
			}
			time.Sleep(200 * time.Millisecond)
			begin := time.Now()
			c.Close()
			c.Close()
			assert.Less(t, time.Since(begin), throttletest.Patience, "what it waits for does not come")
			for range 2 {
				require.Error(t, <-ended)
			}
			_, err := c.Receive(context.Background())
			require.Error(t, err)
			require.NotErrorIs(t, err, context.Canceled)
			assert.Empty(t, lim.Stats().Subscriptions)

			lim.Set(fast(0))
			again := open(pulsar.ConsumerOptions{Topic: topic}, lim)
			if paused {
				assert.Equal(t, []string{"0", "1", "2"}, receive(t, again, 3))
			}
			again.Close()
		}
	})
}

// Calls return an error when the Limiter is closed first, and no message is lost.
func TestLimiterClosedFirst(t *testing.T) {
	ways(t, func(t *testing.T, w *brokerClient, open opener) {
		topic := w.topic(0)
		w.subscribe(topic, "billing")
		w.produce(topic, 3, 1)
		lim := throttletest.Open(t, policy.Policy{Paused: new(true)})
		c := open(pulsar.ConsumerOptions{Topic: topic}, lim)
		ended := make(chan error, 1)
		go func() {
			_, err := c.Receive(context.Background())
			ended <- err
		}()
		require.Eventually(t, func() bool { return waiting(lim) == 1 }, throttletest.Patience, time.Millisecond)
		require.NoError(t, lim.Close())
		require.ErrorIs(t, <-ended, dispatch.ErrClosed)
		_, err := c.Receive(context.Background())
		require.ErrorIs(t, err, dispatch.ErrClosed)
		c.Close()
		again := w.open(pulsar.ConsumerOptions{Topic: topic}, nil)
		assert.Len(t, receive(t, again, 3), 3)
	})
}

// client.Close returns whatever the Consumer has done before, and ends its waits.
func TestClientClosesFirst(t *testing.T) {
	t.Parallel()
	paused := policy.Policy{Paused: new(true)}
	for name, c := range map[string]struct {
		options pulsar.ConsumerOptions
		limit   policy.Policy
		wait    bool // a Receive without a deadline
	}{
		"after a timeout":             {pulsar.ConsumerOptions{}, throttletest.PerSecond(100), false},
		"after a timeout, zero-queue": {pulsar.ConsumerOptions{EnableZeroQueueConsumer: true}, throttletest.PerSecond(100), false},
		"while a Receive waits":       {pulsar.ConsumerOptions{}, throttletest.PerSecond(100), true},
		"while a message waits":       {pulsar.ConsumerOptions{}, paused, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBrokerClient(t)
			lim := throttletest.Open(t, c.limit)
			client := w.ownClient()
			defer client.Close()
			c.options.Topic, c.options.SubscriptionName = w.topic(0), "billing"
			w.subscribe(c.options.Topic, "billing")
			if c.limit.Paused != nil {
				w.produce(c.options.Topic, 1, 1)
			}
			consumer, err := pulsarthrottle.Subscribe(client, c.options, lim.Limiter)
			require.NoError(t, err)
			for range 3 {
				quiet(t, consumer, 20*time.Millisecond)
			}
			ended := make(chan error, 1)
			if c.wait {
				go func() {
					_, err := consumer.Receive(context.Background())
					ended <- err
				}()
				time.Sleep(100 * time.Millisecond)
			}
			returnsSoon(t, "client.Close", client.Close)
			if !c.options.EnableZeroQueueConsumer { // the client's error has no type there
				if !c.wait {
					_, err := consumer.Receive(context.Background())
					ended <- err
				}
				returnsSoon(t, "Receive", func() { err = <-ended })
				requireClosed(t, err)
			}
			if !c.wait { // the Seek of the client's closed consumer would not return
				returnsSoon(t, "Seek", func() { err = consumer.SeekByTime(time.Now()) })
				require.Error(t, err)
			}
			returnsSoon(t, "Close", consumer.Close)
		})
	}
}

// Every method of a closed Consumer or Reader returns, with the client's error.
func TestErrorsAfterClose(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	lim := throttletest.Open(t, throttletest.PerSecond(50))
	topic := w.topic(0)
	w.produce(topic, 5, 1)
	for name, options := range map[string]pulsar.ConsumerOptions{
		"one topic": {Topic: topic},
		"topics":    {Topics: []string{topic, w.topic(0)}},
		"pattern":   {TopicsPattern: topic + ".*"},
	} {
		options.SubscriptionName = name
		options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
		c := w.open(options, lim)
		m := receiveOne(t, c)
		waiting := make(chan error, 1)
		go func() {
			for {
				if _, err := c.Receive(context.Background()); err != nil {
					waiting <- err
					return
				}
			}
		}()
		c.Close()
		requireClosed(t, <-waiting)
		_, err := c.Receive(t.Context())
		requireClosed(t, err)
		for method, call := range map[string]func() error{
			"Unsubscribe":       c.Unsubscribe,
			"UnsubscribeForce":  c.UnsubscribeForce,
			"Seek":              func() error { return c.Seek(m.ID()) },
			"SeekByTime":        func() error { return c.SeekByTime(time.Now()) },
			"Ack":               func() error { return c.Ack(m) },
			"AckID":             func() error { return c.AckID(m.ID()) },
			"GetLastMessageIDs": func() error { _, err := c.GetLastMessageIDs(); return err },
		} {
			returnsSoon(t, name+": "+method, func() { err = call() })
			assert.Error(t, err, "%s: %s", name, method)
		}
		c.Nack(m)
		c.Chan()
		_, err = c.Receive(t.Context())
		requireClosed(t, err)
	}

	r := w.reader(pulsar.ReaderOptions{Topic: topic}, lim)
	m := next(t, r)
	r.Close()
	_, err := r.Next(t.Context())
	requireClosed(t, err)
	returnsSoon(t, "Seek of a Reader", func() { err = r.Seek(m.ID()) })
	require.Error(t, err)
	returnsSoon(t, "SeekByTime of a Reader", func() { err = r.SeekByTime(time.Now()) })
	require.Error(t, err)
}
