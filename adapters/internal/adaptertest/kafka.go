package adaptertest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A Kafka is an in-process Kafka, which Topic starts again.
type Kafka struct {
	Brokers []string

	hidden atomic.Bool // the ends of topics
}

// readerVersion is the version in which a kafka-go Reader asks for the ends of topics, each time
// that it connects: it would not read while they are hidden. The adapters ask in a later one.
const readerVersion = 1

// Topic implements Broker.
func (k *Kafka) Topic(t testing.TB, partitions int) string {
	t.Helper()
	const name = "orders"
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(int32(partitions), name))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	cluster.ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		return nil, errors.New("cut"), k.hidden.Load() && r.GetVersion() > readerVersion
	})
	k.Brokers = cluster.ListenAddrs()
	return name
}

// Write implements Broker.
func (k *Kafka) Write(t testing.TB, topic string, partition int, values []string) {
	t.Helper()
	Write(t, k.Brokers, topic, partition, values)
}

// Write appends messages to a partition of a topic of any Kafka.
func Write(t testing.TB, brokers []string, topic string, partition int, values []string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(1<<20))
	require.NoError(t, err)
	defer cl.Close()
	var all []*kgo.Record
	for _, value := range values {
		all = append(all, &kgo.Record{Topic: topic, Partition: int32(partition), Value: []byte(value)})
	}
	require.NoError(t, cl.ProduceSync(context.WithoutCancel(t.Context()), all...).FirstErr())
}

// HideBacklog implements Broker: connections that ask for the ends of topics are cut, but those of
// kafka-go's Readers.
func (k *Kafka) HideBacklog(testing.TB) (show func()) {
	k.hidden.Store(true)
	return func() { k.hidden.Store(false) }
}
