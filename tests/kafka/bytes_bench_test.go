package kafka_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// BenchmarkByteLimit reads messages of 100 bytes at 100 kB/s and counts them in the 10 s from the
// first one: with this project's limit, and with Kafka's own consumer_byte_rate.
func BenchmarkByteLimit(b *testing.B) {
	const rate, size = 100_000, 100
	broker := services.Kafka(b)
	run := func(b *testing.B, lim *dispatch.Limiter) {
		for b.Loop() {
			topic := services.Name(b)
			broker.CreateTopic(topic, 4)
			w := kafka.Writer{
				Addr: kafka.TCP(broker.Brokers...), Topic: topic, RequiredAcks: kafka.RequireAll,
				BatchTimeout: 10 * time.Millisecond, Balancer: &kafka.RoundRobin{},
			}
			batch := make([]kafka.Message, 15_000)
			for i := range batch {
				batch[i].Value = make([]byte, size)
			}
			require.Eventually(b, func() bool {
				return w.WriteMessages(b.Context(), batch...) == nil
			}, throttletest.Patience, 100*time.Millisecond)
			require.NoError(b, w.Close())
			r, err := kafkathrottle.NewReader(kafka.ReaderConfig{
				Brokers: broker.Brokers, GroupID: topic, Topic: topic, MaxBytes: 1 << 20,
				StartOffset: kafka.FirstOffset,
			}, lim)
			require.NoError(b, err)
			_, err = r.FetchMessage(b.Context())
			require.NoError(b, err)
			start := time.Now()
			ctx, cancel := context.WithDeadline(b.Context(), start.Add(10*time.Second))
			read := []window.Event{{At: 0, N: size}}
			for {
				if _, err := r.FetchMessage(ctx); err != nil {
					break
				}
				read = append(read, window.Event{At: time.Since(start), N: size})
			}
			cancel()
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(100*float64(len(read)*size)/(10*rate), "%-of-limit")
			b.ReportMetric(100*float64(window.Max(time.Second, read))/rate, "%-any-second")
			require.NoError(b, r.Close())
		}
	}
	b.Run("throttle", func(b *testing.B) {
		p := policy.Policy{ByteRate: policy.PerSecond(rate), CaughtUp: policy.CaughtUp{Throttle: new(true)}}
		lim, err := dispatch.Open(b.Context(), dispatch.Config{Policies: dispatch.Fixed(p)})
		require.NoError(b, err)
		defer func() { require.NoError(b, lim.Close()) }()
		run(b, lim)
	})
	b.Run("kafka", func(b *testing.B) {
		client, err := kgo.NewClient(kgo.SeedBrokers(broker.Brokers...))
		require.NoError(b, err)
		defer client.Close()
		setQuota(b, client, rate, false)
		defer setQuota(b, client, 0, true)
		run(b, nil)
	})
}

// setQuota sets or removes consumer_byte_rate for every client.
func setQuota(b *testing.B, client *kgo.Client, rate float64, remove bool) {
	req := kmsg.NewAlterClientQuotasRequest()
	entry := kmsg.NewAlterClientQuotasRequestEntry()
	entity := kmsg.NewAlterClientQuotasRequestEntryEntity()
	op := kmsg.NewAlterClientQuotasRequestEntryOp()
	entity.Type = "client-id" // the default of all clients
	op.Key, op.Value, op.Remove = "consumer_byte_rate", rate, remove
	entry.Entity, entry.Ops = append(entry.Entity, entity), append(entry.Ops, op)
	req.Entries = append(req.Entries, entry)
	resp, err := req.RequestWith(b.Context(), client)
	require.NoError(b, err)
	for _, e := range resp.Entries {
		require.Zero(b, e.ErrorCode, fmt.Sprint(e.ErrorMessage))
	}
	time.Sleep(time.Second) // until the broker applies it
}
