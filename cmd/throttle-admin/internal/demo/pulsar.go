package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"
	pulsarlog "github.com/apache/pulsar-client-go/pulsar/log"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// A pulsarBroker has the demo's topic, without partitions, which only an administrator can create.
// A group is a Shared subscription. Pulsar removes the topic some time after its subscriptions.
type pulsarBroker struct {
	client   pulsar.Client
	topic    string
	groups   []string
	producer pulsar.Producer
}

// openPulsar creates the topic.
func openPulsar(url, topic string) (*pulsarBroker, error) {
	silent := pulsarlog.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil)))
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: url, Logger: silent, OperationTimeout: cleanUp,
	})
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("--pulsar: %w", err))
	}
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, BatchingMaxMessages: 100, MaxPendingMessages: 5000,
	})
	if err != nil {
		client.Close()
		return nil, cli.Hint(fmt.Errorf("create topic %s: %w", topic, err),
			"check --pulsar, and whether it is up")
	}
	return &pulsarBroker{client: client, topic: topic, producer: producer}, nil
}

func (b *pulsarBroker) Close() error {
	defer b.client.Close()
	b.producer.Close()
	var errs []error
	for _, group := range b.groups {
		c, err := b.client.Subscribe(b.options(group))
		if err == nil {
			err = c.UnsubscribeForce()
			c.Close()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("the demo's subscription %s of %s was not removed: %w",
				group, b.topic, err))
		}
	}
	return errors.Join(errs...)
}

func (b *pulsarBroker) write(ctx context.Context, lane int, from int64, n int) error {
	var sent sync.WaitGroup
	failed := make(chan error, n)
	for i := range n {
		sent.Add(1)
		m := &pulsar.ProducerMessage{Payload: order(lane, from+int64(i))}
		done := func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				failed <- err
			}
			sent.Done()
		}
		b.producer.SendAsync(ctx, m, done)
	}
	err := b.producer.FlushWithCtx(ctx)
	sent.Wait()
	select {
	case first := <-failed:
		return first
	default:
		return err
	}
}

func (b *pulsarBroker) begin(_ context.Context, group string, _ [lanes]int64) error {
	c, err := b.client.Subscribe(b.options(group)) // starts at the end of the topic
	if err != nil {
		return fmt.Errorf("create subscription %s: %w", group, err)
	}
	c.Close()
	b.groups = append(b.groups, group)
	return nil
}

func (b *pulsarBroker) options(group string) pulsar.ConsumerOptions {
	return pulsar.ConsumerOptions{Topic: b.topic, SubscriptionName: group, Type: pulsar.Shared}
}

func (b *pulsarBroker) consumer(
	group string, number int, lim *dispatch.Limiter,
) (consumer, error) {
	options := b.options(group)
	options.Name = fmt.Sprintf("%s-%d", group, number)
	c, err := pulsarthrottle.Subscribe(b.client, options, lim)
	if err != nil {
		return nil, err
	}
	return pulsarConsumer{c}, nil
}

type pulsarConsumer struct{ *pulsarthrottle.Consumer }

func (d pulsarConsumer) next(ctx context.Context) (lane int, offset int64, err error) {
	m, err := d.Receive(ctx)
	if err != nil {
		return 0, 0, err
	}
	_, err = fmt.Sscanf(string(m.Payload()), `{"order":"%d-%d"`, &lane, &offset)
	if err != nil || lane < 0 || lane >= lanes {
		return 0, 0, fmt.Errorf("message %s is not the demo's: %.60q", m.ID(), m.Payload())
	}
	return lane, offset, d.Ack(m)
}

func (d pulsarConsumer) Close() error {
	d.Consumer.Close()
	return nil
}
