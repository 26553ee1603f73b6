package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// A kafkaBroker has the demo's topic, with a partition for each lane.
type kafkaBroker struct {
	addrs  []string
	client *kafka.Client
	topic  string
	franz  bool     // one group reads with franz-go
	stops  []func() // stop what was started, in this order
}

// openKafka creates the topic; if addr is "", on a broker in this process. With franz, one group
// reads with franz-go.
func openKafka(ctx context.Context, addr, topic string, franz bool) (*kafkaBroker, error) {
	b := &kafkaBroker{addrs: []string{addr}, topic: topic, franz: franz}
	if addr == "" {
		broker, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			return nil, fmt.Errorf("start a broker: %w", err)
		}
		b.stops = append(b.stops, broker.Close)
		b.addrs = broker.ListenAddrs()
	}
	transport := &kafka.Transport{MetadataTTL: time.Second}
	b.stops = slices.Insert(b.stops, 0, transport.CloseIdleConnections)
	b.client = &kafka.Client{Addr: kafka.TCP(b.addrs...), Transport: transport}
	config := kafka.TopicConfig{Topic: topic, NumPartitions: lanes, ReplicationFactor: 1}
	created, err := b.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{config},
	})
	if err == nil {
		err = created.Errors[topic]
	}
	if err != nil {
		b.stop()
		return nil, fmt.Errorf("create topic %s on %s: %w", topic, b.addrs[0], err)
	}
	return b, nil
}

func (b *kafkaBroker) stop() {
	for _, stop := range b.stops {
		stop()
	}
}

func (b *kafkaBroker) Close() error {
	defer b.stop()
	ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
	defer cancel()
	deleted, err := b.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{
		Topics: []string{b.topic},
	})
	if err == nil {
		err = deleted.Errors[b.topic]
	}
	if err != nil {
		return fmt.Errorf("the demo's topic %s was not removed: %w", b.topic, err)
	}
	return nil
}

func (b *kafkaBroker) write(ctx context.Context, lane int, from int64, n int) error {
	for n > 0 {
		batch := min(n, 5000)
		records := make([]kafka.Record, batch)
		for i := range records {
			records[i].Value = kafka.NewBytes(order(lane, from+int64(i)))
		}
		produced, err := b.client.Produce(ctx, &kafka.ProduceRequest{
			Topic: b.topic, Partition: lane, RequiredAcks: kafka.RequireAll,
			Records: kafka.NewRecordReader(records...),
		})
		if err == nil {
			err = produced.Error
		}
		notReady := errors.Is(err, kafka.NotLeaderForPartition) ||
			errors.Is(err, kafka.UnknownTopicOrPartition)
		if from == 0 && notReady && sleep(ctx, 20*time.Millisecond) == nil {
			continue // the topic is new
		}
		if err != nil {
			return err
		}
		from += int64(batch)
		n -= batch
	}
	return nil
}

func (b *kafkaBroker) begin(ctx context.Context, group string, ends [lanes]int64) error {
	var offsets []kafka.OffsetCommit
	for p, end := range ends {
		offsets = append(offsets, kafka.OffsetCommit{Partition: p, Offset: end})
	}
	for {
		committed, err := b.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{
			GroupID: b.groupID(group), GenerationID: -1,
			Topics: map[string][]kafka.OffsetCommit{b.topic: offsets},
		})
		if err == nil {
			for _, p := range committed.Topics[b.topic] {
				err = errors.Join(err, p.Error)
			}
		}
		if err == nil {
			return nil
		}
		notReady := errors.Is(err, kafka.GroupCoordinatorNotAvailable) ||
			errors.Is(err, kafka.NotCoordinatorForGroup)
		if !notReady || sleep(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("commit for group %s: %w", group, err)
		}
	}
}

// groupID returns Kafka's name of a group, which is unique to this demo.
func (b *kafkaBroker) groupID(group string) string { return b.topic + "-" + group }

func (b *kafkaBroker) consumer(group string, _ int, lim *dispatch.Limiter) (consumer, error) {
	if b.franz && group == franzGroup {
		return b.franzConsumer(group, lim)
	}
	r, err := kafkathrottle.NewReader(kafka.ReaderConfig{
		Brokers: b.addrs, GroupID: b.groupID(group), Topic: b.topic,
		MinBytes: 1, MaxBytes: 1e6, MaxWait: 250 * time.Millisecond,
		HeartbeatInterval: 200 * time.Millisecond, // a rebalance takes that long
		SessionTimeout:    6 * time.Second,
		RebalanceTimeout:  5 * time.Second, JoinGroupBackoff: 200 * time.Millisecond,
		ReadBackoffMin: 10 * time.Millisecond, ReadBackoffMax: 100 * time.Millisecond,
	}, lim, kafkathrottle.WithSubscription(group))
	if err != nil {
		return nil, err
	}
	return &kafkaConsumer{Reader: r, done: map[int]kafka.Message{}, committed: time.Now()}, nil
}

// A kafkaConsumer commits at intervals.
type kafkaConsumer struct {
	*kafkathrottle.Reader
	done      map[int]kafka.Message // the last received and not committed, by partition
	committed time.Time
}

// commitEvery is the interval of commits.
const commitEvery = 200 * time.Millisecond

func (d *kafkaConsumer) next(ctx context.Context) (lane int, offset int64, err error) {
	if now := time.Now(); len(d.done) > 0 && now.Sub(d.committed) >= commitEvery {
		if err := d.CommitMessages(ctx, slices.Collect(maps.Values(d.done))...); err != nil {
			return 0, 0, err
		}
		clear(d.done)
		d.committed = now
	}
	m, err := d.FetchMessage(ctx)
	if err == nil {
		d.done[m.Partition] = m
	}
	return m.Partition, m.Offset, err
}
