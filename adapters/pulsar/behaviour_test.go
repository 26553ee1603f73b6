package pulsarthrottle_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/adapters/internal/adaptertest"
	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestBehaviours(t *testing.T) {
	t.Parallel()
	adaptertest.Run(t, "pulsar-client-go", func(t testing.TB) adaptertest.Broker { return &suiteBroker{brokerClient: newBrokerClient(t)} })
}

// A suiteBroker is a real broker for the suite.
type suiteBroker struct {
	*brokerClient
	hidden atomic.Bool // the ends of topics
}

func (b *suiteBroker) Topic(_ testing.TB, partitions int) string {
	topic := b.topic(partitions)
	b.subscribe(topic, "billing")
	return topic
}

func (b *suiteBroker) Write(t testing.TB, topic string, partition int, values []string) {
	t.Helper()
	p, err := b.client.CreateProducer(pulsar.ProducerOptions{
		Topic: fmt.Sprintf("%s-partition-%d", topic, partition), MaxPendingMessages: 10_000,
		DisableBatching: true, // what is acknowledged of a batch would come again with the rest
	})
	require.NoError(t, err)
	defer p.Close()
	failed := make(chan error, len(values))
	for _, value := range values {
		p.SendAsync(context.WithoutCancel(t.Context()), &pulsar.ProducerMessage{Payload: []byte(value)},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { failed <- err })
	}
	for range values {
		require.NoError(t, <-failed)
	}
}

func (b *suiteBroker) HideBacklog(testing.TB) (show func()) {
	b.hidden.Store(true)
	return func() { b.hidden.Store(false) }
}

func (b *suiteBroker) Open(t testing.TB, lim *throttletest.Limiter, o adaptertest.Options) adaptertest.Consumer {
	t.Helper()
	var opts []pulsarthrottle.Option
	if o.TagOf != nil {
		opts = append(opts, pulsarthrottle.WithTagOf(func(m pulsar.Message) string { return o.TagOf(string(m.Payload())) }))
	}
	c, err := pulsarthrottle.Subscribe(hiding{b.client, &b.hidden}, pulsar.ConsumerOptions{
		Topic: o.Topic, SubscriptionName: "billing", Type: pulsar.Failover,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest, AckWithResponse: true,
	}, lim.Limiter, opts...)
	require.NoError(t, err)
	return consumer{c}
}

// A hiding is a client whose consumers do not know how far topics go while these are hidden.
type hiding struct {
	pulsar.Client
	hidden *atomic.Bool
}

func (h hiding) Subscribe(o pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	c, err := h.Client.Subscribe(o)
	return hidingConsumer{c, h.hidden}, err
}

type hidingConsumer struct {
	pulsar.Consumer
	hidden *atomic.Bool
}

func (h hidingConsumer) GetLastMessageIDs() ([]pulsar.TopicMessageID, error) {
	if h.hidden.Load() {
		return nil, errors.New("not now")
	}
	return h.Consumer.GetLastMessageIDs()
}

type consumer struct{ *pulsarthrottle.Consumer }

func (c consumer) Next(ctx context.Context) (adaptertest.Message, error) {
	m, err := c.Receive(ctx)
	if err != nil {
		return adaptertest.Message{}, err
	}
	return adaptertest.Message{Value: string(m.Payload()), Raw: m}, nil
}

func (c consumer) Settle(_ context.Context, m adaptertest.Message) error {
	return c.Ack(m.Raw.(pulsar.Message))
}

func (c consumer) Skip(m adaptertest.Message) { c.Consumer.Skip(m.Raw.(pulsar.Message)) }

func (c consumer) Rewind(context.Context) error { return c.SeekByTime(time.Unix(1, 0)) }

func (c consumer) Close() error {
	c.Consumer.Close()
	return nil
}
