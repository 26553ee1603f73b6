package pulsarthrottle_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// The channel has the messages that Receive would return, each after its permit, and settles
// through the Consumer.
func TestChan(t *testing.T) {
	queued(t, func(t *testing.T, w *brokerClient, open opener) {
		lim := throttletest.Open(t, fast(0))
		topic := w.topic(0)
		w.subscribe(topic, "billing")
		w.produce(topic, 50, 5)
		c := open(pulsar.ConsumerOptions{Topic: topic, StartMessageIDInclusive: true}, lim)
		first := receiveOne(t, c)
		receive(t, c, 4)
		messages := c.Chan()
		for i := 5; i < 20; i++ {
			m := <-messages
			assert.Equal(t, fmt.Sprint(i), string(m.Payload()))
			require.NoError(t, m.Ack(m.Message))
			assert.Equal(t, c, m.Consumer)
		}
		assert.Equal(t, []string{"20", "21"}, receive(t, c, 2))
		time.Sleep(50 * time.Millisecond) // one waits in the channel
		require.NoError(t, c.Seek(first.ID()))
		assert.Equal(t, "0", string((<-messages).Payload()))
		used := lim.Stats().Subscriptions[0].Limits[0]
		assert.InDelta(t, 23, used.Granted-used.Returned, 1,
			"each message was charged, and one may wait in the channel")

		lim.Set(policy.Policy{Paused: new(true)})
		drained := time.After(300 * time.Millisecond)
		for n := 0; n < 2; {
			select {
			case <-messages:
				n++
			case <-drained:
				n = 2
			}
		}
		c.Close()
		_, err := c.Receive(context.Background())
		requireClosed(t, err)

		lim = throttletest.Open(t, fast(0))
		c = open(pulsar.ConsumerOptions{Topic: topic}, lim)
		require.NoError(t, lim.Close())
		c.Chan()
		_, err = c.Receive(context.Background())
		require.ErrorIs(t, err, dispatch.ErrClosed)
	})
}

// A channel of the user's own gets the messages that have permits.
func TestMessageChannel(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	lim := throttletest.Open(t, throttletest.PerSecond(50))
	topic := w.topic(2)
	w.subscribe(topic, "billing")
	w.produce(topic, 100, 1)
	own := make(chan pulsar.ConsumerMessage, 100)
	begin := time.Now()
	w.open(pulsar.ConsumerOptions{Topic: topic, MessageChannel: own}, lim)
	require.Eventually(t, func() bool { return len(own) >= 30 }, throttletest.Patience, time.Millisecond)
	assert.LessOrEqual(t, float64(len(own)), 50*(time.Since(begin).Seconds()+0.25))
	require.NoError(t, (<-own).Consumer.Ack((<-own).Message))
}
