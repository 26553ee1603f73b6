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

// A kafkaBroker has the demo's topic in partitions, one for each lane.
type kafkaBroker struct {
	addrs  []string
	client *kafka.Client
	topic  string
	end    []func() // what was started, the last first
}

// openKafka creates the topic, on a broker of this process if addr is empty.
func openKafka(ctx context.Context, addr, topic string) (*kafkaBroker, error) {
	b := &kafkaBroker{addrs: []string{addr}, topic: topic}
	if addr == "" {
		broker, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			return nil, fmt.Errorf("start a broker: %w", err)
		}
		b.end = append(b.end, broker.Close)
		b.addrs = broker.ListenAddrs()
	}
	transport := &kafka.Transport{MetadataTTL: time.Second}
	b.end = slices.Insert(b.end, 0, transport.CloseIdleConnections)
	b.client = &kafka.Client{Addr: kafka.TCP(b.addrs...), Transport: transport}
	created, err := b.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
		{Topic: topic, NumPartitions: demoLanes, ReplicationFactor: 1},
	}})
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
	for _, end := range b.end {
		end()
	}
}

func (b *kafkaBroker) Close() error {
	defer b.stop()
	ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
	defer cancel()
	deleted, err := b.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{b.topic}})
	if err == nil {
		err = deleted.Errors[b.topic]
	}
	if err != nil {
		return fmt.Errorf("the demo's topic %s is still there: %w", b.topic, err)
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
			Topic: b.topic, Partition: lane, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...),
		})
		if err == nil {
			err = produced.Error
		}
		if from == 0 && (errors.Is(err, kafka.NotLeaderForPartition) || errors.Is(err, kafka.UnknownTopicOrPartition)) {
			if sleep(ctx, 20*time.Millisecond) == nil {
				continue // the topic is new
			}
		}
		if err != nil {
			return err
		}
		from += int64(batch)
		n -= batch
	}
	return nil
}

func (b *kafkaBroker) begin(ctx context.Context, group string, ends [demoLanes]int64) error {
	var offsets []kafka.OffsetCommit
	for p, end := range ends {
		offsets = append(offsets, kafka.OffsetCommit{Partition: p, Offset: end})
	}
	for {
		committed, err := b.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{
			GroupID: b.groupID(group), GenerationID: -1, Topics: map[string][]kafka.OffsetCommit{b.topic: offsets},
		})
		if err == nil {
			for _, p := range committed.Topics[b.topic] {
				err = errors.Join(err, p.Error)
			}
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, kafka.GroupCoordinatorNotAvailable) && !errors.Is(err, kafka.NotCoordinatorForGroup) || sleep(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("commit for group %s: %w", group, err)
		}
	}
}

// groupID is Kafka's name of a group, which is the demo's own.
func (b *kafkaBroker) groupID(group string) string { return b.topic + "-" + group }

func (b *kafkaBroker) reader(group string, _ int, lim *dispatch.Limiter) (drainer, error) {
	r, err := kafkathrottle.NewReader(kafka.ReaderConfig{
		Brokers: b.addrs, GroupID: b.groupID(group), Topic: b.topic,
		MinBytes: 1, MaxBytes: 1e6, MaxWait: 250 * time.Millisecond,
		HeartbeatInterval: 200 * time.Millisecond, SessionTimeout: 6 * time.Second, // a rebalance takes a heartbeat
		RebalanceTimeout: 5 * time.Second, JoinGroupBackoff: 200 * time.Millisecond,
		ReadBackoffMin: 10 * time.Millisecond, ReadBackoffMax: 100 * time.Millisecond,
	}, lim, kafkathrottle.WithSubscription(group))
	if err != nil {
		return nil, err
	}
	return &kafkaDrainer{Reader: r, done: map[int]kafka.Message{}, committed: time.Now()}, nil
}

type kafkaDrainer struct {
	*kafkathrottle.Reader
	done      map[int]kafka.Message // the last of each partition that is not committed
	committed time.Time
}

// commitEvery is how often a reader commits.
const commitEvery = 200 * time.Millisecond

func (d *kafkaDrainer) next(ctx context.Context) (lane int, offset int64, err error) {
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
