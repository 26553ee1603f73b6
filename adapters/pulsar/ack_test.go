package pulsarthrottle_test

import (
	"context"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// Each method that settles messages does so at the broker, and they are no longer in flight.
func TestSettling(t *testing.T) {
	ways(t, func(t *testing.T, w *brokerClient, open opener) {
		lim := throttletest.Open(t, fast(20))
		var topic string
		var c *pulsarthrottle.Consumer
		begin := func(kind pulsar.SubscriptionType, messages int) {
			topic = w.topic(0)
			w.subscribe(topic, "billing")
			w.produce(topic, messages, 1)
			c = open(pulsar.ConsumerOptions{Topic: topic, Type: kind, AckWithResponse: true,
				NackRedeliveryDelay: 100 * time.Millisecond}, lim)
		}
		next := func() pulsar.Message {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
			defer cancel()
			m, err := c.Receive(ctx)
			require.NoError(t, err)
			assert.Positive(t, inFlight(lim))
			return m
		}
		settled := func(what string, err error, backlog int64) {
			t.Helper()
			require.NoError(t, err, what)
			assert.Zero(t, inFlight(lim), what)
			throttletest.Until(t, what, func() bool { return w.stats(topic, "billing").MsgBacklog == backlog })
		}
		begin(pulsar.Exclusive, 8)
		settled("Ack", c.Ack(next()), 7)
		settled("AckID", c.AckID(next().ID()), 6)
		settled("AckIDList", c.AckIDList([]pulsar.MessageID{next().ID(), next().ID()}), 4)
		next()
		settled("AckCumulative", c.AckCumulative(next()), 2)
		next()
		settled("AckIDCumulative", c.AckIDCumulative(next().ID()), 0)
		c.Close()

		begin(pulsar.Shared, 1)
		c.Nack(next())
		settled("Nack", nil, 1)
		c.NackID(next().ID())
		settled("NackID", nil, 1)
		m := next()
		assert.EqualValues(t, 2, m.RedeliveryCount())
		txn := w.transaction()
		require.NoError(t, c.AckWithTxn(m, txn))
		require.NoError(t, txn.Commit(t.Context()))
		settled("AckWithTxn", nil, 0)

		assert.Equal(t, "billing", c.Subscription())
		assert.NotEmpty(t, c.Name())
		ids, err := c.GetLastMessageIDs()
		require.NoError(t, err)
		assert.Equal(t, topic, ids[0].Topic())
	})
}
