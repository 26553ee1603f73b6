package pulsarthrottle_test

import (
	"context"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A message comes again from the retry topic, with permits of that topic.
func TestReconsumeLater(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	lim := throttletest.Open(t, fast(10))
	topic := w.topic(0)
	w.subscribe(topic, "billing")
	w.produce(topic, 2, 1)
	c := w.open(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, RetryEnable: true}, lim)
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	for i := range 2 {
		m, err := c.Receive(ctx)
		require.NoError(t, err)
		if i == 0 {
			c.ReconsumeLater(m, 200*time.Millisecond)
		} else {
			c.ReconsumeLaterWithCustomProperties(m, map[string]string{"why": "later"}, 200*time.Millisecond)
		}
		assert.Zero(t, inFlight(lim))
	}
	why := 0
	for range 2 {
		m, err := c.Receive(ctx)
		require.NoError(t, err)
		assert.Contains(t, m.Topic(), "-RETRY")
		if m.Properties()["why"] == "later" {
			why++
		}
		require.NoError(t, c.Ack(m))
	}
	assert.Equal(t, 1, why)
	var topics []string
	for _, s := range lim.Stats().Subscriptions {
		topics = append(topics, s.Topic)
		assert.EqualValues(t, 2, s.Limits[0].Granted-s.Limits[0].Returned, s.Topic)
	}
	assert.Equal(t, []string{topic, topic + "-billing-RETRY"}, topics)
}
