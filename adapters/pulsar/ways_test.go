package pulsarthrottle_test

import (
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// fast is a limit that does not delay a test, and counts its messages.
func fast(inFlight int64) policy.Policy {
	p := throttletest.PerSecond(2000)
	if inFlight > 0 {
		p.MaxInFlight = &inFlight
	}
	return p
}

// An opener opens a Consumer.
type opener = func(pulsar.ConsumerOptions, *throttletest.Limiter) *pulsarthrottle.Consumer

// A scenario is a test of the Consumers that open opens.
type scenario = func(t *testing.T, w *brokerClient, open opener)

// ways runs f for each way in which a Consumer gets its messages.
func ways(t *testing.T, f scenario) {
	queued(t, f)
	way(t, "zero", pulsar.ConsumerOptions{EnableZeroQueueConsumer: true}, (*brokerClient).open, f)
	way(t, "wrapped zero", pulsar.ConsumerOptions{EnableZeroQueueConsumer: true}, (*brokerClient).wrap, f)
}

// queued runs f for Consumers with a queue, which have a channel.
func queued(t *testing.T, f scenario) {
	way(t, "queue", pulsar.ConsumerOptions{ReceiverQueueSize: 5}, (*brokerClient).open, f)
	way(t, "wrapped", pulsar.ConsumerOptions{}, (*brokerClient).wrap, f)
}

// A subscriber is the method of a brokerClient by which a way opens its Consumers.
type subscriber = func(
	*brokerClient, pulsar.ConsumerOptions, *throttletest.Limiter, ...pulsarthrottle.Option,
) *pulsarthrottle.Consumer

func way(t *testing.T, name string, queue pulsar.ConsumerOptions, subscribe subscriber, f scenario) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		w := newBrokerClient(t)
		f(t, w, func(options pulsar.ConsumerOptions, lim *throttletest.Limiter) *pulsarthrottle.Consumer {
			options.ReceiverQueueSize = queue.ReceiverQueueSize
			options.EnableZeroQueueConsumer = queue.EnableZeroQueueConsumer
			return subscribe(w, options, lim)
		})
	})
}

// wrap subscribes with the client, and wraps its consumer.
func (w *brokerClient) wrap(
	options pulsar.ConsumerOptions, lim *throttletest.Limiter, opts ...pulsarthrottle.Option,
) *pulsarthrottle.Consumer {
	w.t.Helper()
	options.SubscriptionName = "billing"
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	inner, err := w.client.Subscribe(options)
	require.NoError(w.t, err)
	c, err := pulsarthrottle.Wrap(inner, lim.Limiter, opts...)
	require.NoError(w.t, err)
	w.t.Cleanup(c.Close)
	return c
}

// inFlight returns what maxInFlight counts.
func inFlight(lim *throttletest.Limiter) (n int64) {
	for _, s := range lim.Stats().Subscriptions {
		n += s.InFlight
	}
	return n
}

func waiting(lim *throttletest.Limiter) (n int) {
	for _, s := range lim.Stats().Subscriptions {
		n += s.Waiting
	}
	return n
}
