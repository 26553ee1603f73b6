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

// A pulsarBroker has the demo's topic, without partitions: those take the rights of an administrator. A group is a Shared
// subscription. The topic goes by itself some time after its subscriptions.
type pulsarBroker struct {
	client   pulsar.Client
	topic    string
	groups   []string
	producer pulsar.Producer
}

// openPulsar creates the topic.
func openPulsar(url, topic string) (*pulsarBroker, error) {
	silent := pulsarlog.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil)))
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, Logger: silent, OperationTimeout: cleanUp})
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("--pulsar: %w", err))
	}
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, BatchingMaxMessages: 100, MaxPendingMessages: 5000})
	if err != nil {
		client.Close()
		return nil, cli.Hint(fmt.Errorf("create topic %s: %w", topic, err), "check --pulsar, and whether it is up")
	}
	return &pulsarBroker{client: client, topic: topic, producer: producer}, nil
}

func (b *pulsarBroker) Close() error {
	defer b.client.Close()
	b.producer.Close()
	var errs []error
	for _, group := range b.groups {
		c, err := b.client.Subscribe(pulsar.ConsumerOptions{Topic: b.topic, SubscriptionName: group, Type: pulsar.Shared})
		if err == nil {
			err = c.UnsubscribeForce()
			c.Close()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("the demo's subscription %s of %s is still there: %w", group, b.topic, err))
		}
	}
	return errors.Join(errs...)
}

func (b *pulsarBroker) write(ctx context.Context, lane int, from int64, n int) error {
	var sent sync.WaitGroup
	failed := make(chan error, n)
	for i := range n {
		sent.Add(1)
		b.producer.SendAsync(ctx, &pulsar.ProducerMessage{Payload: order(lane, from+int64(i))}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				failed <- err
			}
			sent.Done()
		})
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

func (b *pulsarBroker) begin(_ context.Context, group string, _ [demoLanes]int64) error {
	c, err := b.client.Subscribe(pulsar.ConsumerOptions{Topic: b.topic, SubscriptionName: group, Type: pulsar.Shared}) // at the end
	if err != nil {
		return fmt.Errorf("create subscription %s: %w", group, err)
	}
	c.Close()
	b.groups = append(b.groups, group)
	return nil
}

func (b *pulsarBroker) reader(group string, number int, lim *dispatch.Limiter) (drainer, error) {
	c, err := pulsarthrottle.Subscribe(b.client, pulsar.ConsumerOptions{
		Topic: b.topic, SubscriptionName: group, Type: pulsar.Shared, Name: fmt.Sprintf("%s-%d", group, number),
	}, lim)
	if err != nil {
		return nil, err
	}
	return pulsarDrainer{c}, nil
}

type pulsarDrainer struct{ *pulsarthrottle.Consumer }

func (d pulsarDrainer) next(ctx context.Context) (lane int, offset int64, err error) {
	m, err := d.Receive(ctx)
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscanf(string(m.Payload()), `{"order":"%d-%d"`, &lane, &offset); err != nil || lane < 0 || lane >= demoLanes {
		return 0, 0, fmt.Errorf("message %s is not the demo's: %.60q", m.ID(), m.Payload())
	}
	return lane, offset, d.Ack(m)
}

func (d pulsarDrainer) Close() error {
	d.Consumer.Close()
	return nil
}
