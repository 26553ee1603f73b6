package hour

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	pulsarlog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
)

func (s *scene) produceKafka(ctx context.Context) {
	w := &kafka.Writer{
		Addr: kafka.TCP(s.kafka.Brokers...), Topic: kafkaTopic, RequiredAcks: kafka.RequireAll,
		Balancer: &kafka.RoundRobin{}, BatchTimeout: 5 * time.Millisecond, WriteTimeout: 2 * time.Second,
		Transport: &kafka.Transport{MetadataTTL: time.Second},
	}
	s.produce(ctx, "kafka", func(ctx context.Context, ids []string) error {
		messages := make([]kafka.Message, len(ids))
		for i, id := range ids {
			messages[i].Value = []byte(id)
		}
		return w.WriteMessages(ctx, messages...)
	})
	assert.NoError(s.t, w.Close())
}

func (s *scene) producePulsar(ctx context.Context) {
	silent := pulsarlog.NewLoggerWithSlog(slog.New(slog.DiscardHandler))
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: s.pulsar.URL, Logger: silent})
	if !assert.NoError(s.t, err) {
		return
	}
	defer client.Close()
	p, err := client.CreateProducer(pulsar.ProducerOptions{Topic: pulsarTopic, DisableBatching: true})
	if !assert.NoError(s.t, err) {
		return
	}
	defer p.Close()
	s.produce(ctx, "pulsar", func(ctx context.Context, ids []string) error {
		sent := make(chan error, len(ids))
		for _, id := range ids {
			p.SendAsync(ctx, &pulsar.ProducerMessage{Payload: []byte(id)},
				func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { sent <- err })
		}
		var errs []error
		for range ids {
			select {
			case err := <-sent:
				errs = append(errs, err)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return errors.Join(errs...)
	})
}
