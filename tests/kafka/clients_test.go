package kafka_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dispatchthrottle/throttle"
	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestAccuracyTwoClients: one limit over a consumer group of two kafka-go Readers and one of two
// franz-go clients, on a topic of 12 partitions. Each consumer has a Limiter of its own.
func TestAccuracyTwoClients(t *testing.T) {
	const (
		partitions, rate = 12, 1000
		kafkaGo, franz   = 0, 1 // the groups
	)
	accuracy.Measure(t, func(m *accuracy.M) {
		k, permits := services.Kafka(t), services.Redis(t)
		topic, cluster := services.Name(t), services.Name(t)
		k.CreateTopic(topic, partitions)
		write(t, k.Brokers, topic)
		write(t, k.Brokers, topic)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		limiter := func(name string) *dispatch.Limiter {
			store, err := throttle.OpenPermits(permits)
			require.NoError(t, err)
			lim, err := dispatch.Open(t.Context(), dispatch.Config{
				Replica: name, Cluster: cluster, Permits: store,
				Policies: dispatch.Fixed(policy.Policy{
					MessageRate: policy.PerSecond(rate), CaughtUp: policy.CaughtUp{Throttle: new(true)},
				}),
			})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, lim.Close()) })
			return lim
		}
		read := window.NewRecord()
		var joined [4]sync.WaitGroup // each consumer has read something
		for i := range 2 {
			joined[2*i].Add(1)
			joined[2*i+1].Add(1)
			r, err := kafkathrottle.NewReader(kafka.ReaderConfig{
				Brokers: k.Brokers, Topic: topic, GroupID: topic + "-kafka-go", MaxWait: 100 * time.Millisecond,
				CommitInterval: time.Second,
			}, limiter(fmt.Sprint("kafka-go ", i)))
			require.NoError(t, err)
			running.Go(func() {
				defer func() { assert.NoError(t, r.Close()) }()
				first := sync.OnceFunc(joined[2*i].Done)
				for {
					message, err := r.FetchMessage(ctx)
					if err != nil {
						return
					}
					read.Add(kafkaGo, 1)
					first()
					_ = r.CommitMessages(ctx, message) // fails when ctx ends
				}
			})
			c, err := franzthrottle.New(limiter(fmt.Sprint("franz-go ", i)), []kgo.Opt{
				kgo.SeedBrokers(k.Brokers...), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(topic + "-franz-go"),
				kgo.AutoCommitMarks(),
			})
			require.NoError(t, err)
			running.Go(func() {
				defer c.Close()
				first := sync.OnceFunc(joined[2*i+1].Done)
				for {
					fetches := c.PollFetches(ctx)
					if fetches.Err() != nil {
						return
					}
					read.Add(franz, fetches.NumRecords())
					first()
					c.MarkCommitRecords(fetches.Records()...)
				}
			})
		}
		for i := range joined {
			joined[i].Wait()
		}
		time.Sleep(2 * time.Second)
		from := read.Now()
		time.Sleep(20 * time.Second)
		to := from + 20*time.Second
		m.Within("used, %", 100*float64(read.Between(from, to))/(rate*20), 99, 101)
		m.AtMost("any second, %", 100*float64(read.Max(time.Second, from))/rate, 105)
		m.Within("part of the group of kafka-go, %", 100*float64(read.By(kafkaGo, from, to))/float64(read.Between(from, to)), 45, 55)
	})
}
