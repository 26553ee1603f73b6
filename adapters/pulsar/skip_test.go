package pulsarthrottle_test

import (
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestSkip: messages of a batch that are skipped before they are acknowledged use no permits and no
// bytes, and are not in flight; also those of a Reader.
func TestSkip(t *testing.T) {
	t.Parallel()
	always := policy.CaughtUp{Throttle: new(true)}
	hour := policy.Rate{Permits: 10, Period: time.Hour}
	for name, p := range map[string]policy.Policy{
		"messages":  {MessageRate: hour, CaughtUp: always},
		"bytes":     {ByteRate: policy.Rate{Permits: 1000, Period: time.Hour}, CaughtUp: always},
		"in flight": {MessageRate: hour, MaxInFlight: new(int64(1)), CaughtUp: always},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBrokerClient(t)
			topic := w.topic(2)
			w.subscribe(topic, "billing")
			w.produce(topic, 100, 10)
			lim := throttletest.Open(t, p)
			c := w.open(pulsar.ConsumerOptions{Topic: topic}, lim)
			for range 100 {
				m, err := c.Receive(t.Context())
				require.NoError(t, err)
				c.Skip(m)
				c.Skip(m) // again
				require.NoError(t, c.Ack(m))
			}
			limit := lim.Stats().Subscriptions[0].Limits[0]
			assert.Zero(t, limit.Granted-limit.Returned)
			assert.Zero(t, lim.Stats().Subscriptions[0].InFlight)
		})
	}
	w := newBrokerClient(t)
	topic := w.topic(0)
	w.produce(topic, 50, 10)
	lim := throttletest.Open(t, policy.Policy{MessageRate: hour, CaughtUp: always})
	r, err := pulsarthrottle.CreateReader(w.client, pulsar.ReaderOptions{
		Topic: topic, StartMessageID: pulsar.EarliestMessageID(),
	}, lim.Limiter)
	require.NoError(t, err)
	defer r.Close()
	for range 50 {
		m, err := r.Next(t.Context())
		require.NoError(t, err)
		r.Skip(m)
	}
	limit := lim.Stats().Subscriptions[0].Limits[0]
	assert.Zero(t, limit.Granted-limit.Returned)
}
