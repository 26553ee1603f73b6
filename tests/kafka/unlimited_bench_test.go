package kafka_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/pairs"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// BenchmarkUnlimited reads the same messages with a kafka.Reader and with a Reader to which no
// limit applies.
func BenchmarkUnlimited(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("%dB/throttle", size), func(b *testing.B) {
			for b.Loop() {
				benchmarkUnlimited(b, size)
			}
		})
	}
}

// A fetcher is a kafka.Reader or ours.
type fetcher interface {
	FetchMessage(context.Context) (kafka.Message, error)
	SetOffset(int64) error
	Close() error
}

func benchmarkUnlimited(b *testing.B, size int) {
	messages := benchBytes / size
	broker, topic := filled(b, size)
	cfg := kafka.ReaderConfig{
		Brokers: broker.Brokers, Topic: topic, MaxWait: 100 * time.Millisecond, ReadLagInterval: -1,
	}
	lim := throttletest.Open(b, policy.Policy{})
	ours, err := kafkathrottle.NewReader(cfg, lim.Limiter)
	require.NoError(b, err)
	bare := kafka.NewReader(cfg)
	defer func() { require.NoError(b, bare.Close()); require.NoError(b, ours.Close()) }()
	read := func(f fetcher) func() pairs.Cost {
		return func() pairs.Cost {
			require.NoError(b, f.SetOffset(0))
			_, err := f.FetchMessage(b.Context()) // returns when the connection is open
			require.NoError(b, err)
			ctx := b.Context()
			return pairs.Measure(b, messages, func() {
				for range messages {
					if _, err := f.FetchMessage(ctx); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
	pairs.Report(b, 31, read(bare), read(ours))
}

// benchBytes are those of the values that are read in a run.
const benchBytes = 30_000_000

// filled returns a topic of one partition with a tenth more messages than a run reads, so that it
// ends before the end of the topic.
func filled(b *testing.B, size int) (broker *services.KafkaBroker, topic string) {
	b.Helper()
	messages := benchBytes / size
	broker, topic = services.Kafka(b), services.Name(b)
	broker.CreateTopic(topic, 1)
	w := kafka.Writer{
		Addr: kafka.TCP(broker.Brokers...), Topic: topic, RequiredAcks: kafka.RequireAll,
		BatchSize: 500_000 / size, BatchBytes: 1 << 20,
	}
	part := make([]kafka.Message, messages/10)
	for i := range part {
		part[i].Value = make([]byte, size)
	}
	for range 11 {
		require.NoError(b, w.WriteMessages(b.Context(), part...))
	}
	require.NoError(b, w.Close())
	return broker, topic
}
