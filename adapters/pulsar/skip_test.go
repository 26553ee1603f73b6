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

// TestSkipOfAReader: messages that are skipped use no permits.
func TestSkipOfAReader(t *testing.T) {
	t.Parallel()
	always := policy.CaughtUp{Throttle: new(true)}
	hour := policy.Rate{Permits: 10, Period: time.Hour}
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
