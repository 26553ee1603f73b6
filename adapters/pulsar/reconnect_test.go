package pulsarthrottle_test

import (
	"context"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// Without its broker a Consumer waits on, Close returns, and messages that were not acknowledged
// come again.
func TestBrokerUnavailable(t *testing.T) {
	t.Parallel()
	broker := services.StartPulsar(t)
	w := brokerClientOf(t, &broker.PulsarBroker)
	topic := w.topic(2)
	w.subscribe(topic, "billing")
	w.produce(topic, 20, 1)
	lim := throttletest.Open(t, fast(0))
	open := func() *pulsarthrottle.Consumer {
		return w.open(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared}, lim)
	}
	stays, goes := open(), open()
	receive(t, stays, 2)
	lim.Set(policy.Policy{Paused: new(true)})
	quiet(t, stays, 1500*time.Millisecond) // there was a poll
	ended := make(chan error, 1)
	go func() {
		_, err := goes.Receive(context.Background())
		ended <- err
	}()
	broker.Kill()
	quiet(t, stays, 1500*time.Millisecond)
	returnsSoon(t, "Close", goes.Close)
	require.Error(t, <-ended)
	broker.Start()
	lim.Set(fast(0))
	seen := map[string]bool{}
	for len(seen) < 18 {
		seen[receive(t, stays, 1)[0]] = true // some may come twice
	}
}
