package pulsarthrottle_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	pulsarlog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // they mostly wait
	throttletest.Main(m, left)
}

// left reports the goroutines that run code of this package. The client leaves some of its own.
func left(...goleak.Option) error {
	var stacks []string
	buffer := make([]byte, 16<<20)
	for stack := range strings.SplitSeq(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		if strings.Contains(stack, "dispatchthrottle/throttle/adapters/pulsar.") {
			stacks = append(stacks, stack)
		}
	}
	if stacks == nil {
		return nil
	}
	return errors.New("goroutines left behind:\n\n" + strings.Join(stacks, "\n\n"))
}

// A brokerClient is a broker with a client and an admin client of it.
type brokerClient struct {
	t      testing.TB
	broker *services.PulsarBroker
	client pulsar.Client
	admin  pulsaradmin.Client
}

func newBrokerClient(t testing.TB) *brokerClient {
	t.Helper()
	broker := services.Pulsar(t)
	client, err := pulsar.NewClient(clientOptions(broker))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	admin, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: broker.Web})
	require.NoError(t, err)
	return &brokerClient{t, broker, client, admin}
}

func clientOptions(broker *services.PulsarBroker) pulsar.ClientOptions {
	silent := pulsarlog.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil)))
	return pulsar.ClientOptions{URL: broker.URL, Logger: silent, OperationTimeout: 30 * time.Second}
}

// transaction begins a transaction, as soon as the broker has a coordinator.
func (w *brokerClient) transaction() (txn pulsar.Transaction) {
	w.t.Helper()
	options := clientOptions(w.broker)
	options.EnableTransaction = true
	client, err := pulsar.NewClient(options)
	require.NoError(w.t, err)
	w.t.Cleanup(client.Close)
	throttletest.Until(w.t, "a transaction begins", func() bool {
		txn, err = client.NewTransaction(10 * time.Second)
		return err == nil
	})
	return txn
}

// topic creates a topic; 0 means that it has no partitions.
func (w *brokerClient) topic(partitions int) string {
	w.t.Helper()
	name := "persistent://public/default/" + services.Name(w.t)
	full, err := utils.GetTopicName(name)
	require.NoError(w.t, err)
	require.NoError(w.t, w.admin.Topics().Create(*full, partitions))
	return name
}

// subscribe creates subscriptions at the beginning of a topic: what is produced is their backlog.
func (w *brokerClient) subscribe(topic string, names ...string) {
	w.t.Helper()
	full, err := utils.GetTopicName(topic)
	require.NoError(w.t, err)
	for _, name := range names {
		require.NoError(w.t, w.admin.Subscriptions().Create(*full, name, utils.Earliest))
	}
}

// produce writes messages 0 to n-1, in batches, to all partitions.
func (w *brokerClient) produce(topic string, n, batch int) {
	w.t.Helper()
	w.produceFrom(topic, 0, n, batch)
}

func (w *brokerClient) produceFrom(topic string, first, n, batch int) {
	w.t.Helper()
	p, err := w.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, MaxPendingMessages: 10_000,
		DisableBatching: batch <= 1, BatchingMaxMessages: uint(max(batch, 1)),
		BatchingMaxPublishDelay: 10 * time.Second, // Flush is sooner
	})
	require.NoError(w.t, err)
	defer p.Close()
	failed := make(chan error, n)
	for i := range n {
		p.SendAsync(w.t.Context(),
			&pulsar.ProducerMessage{Payload: fmt.Appendf(nil, "%d", first+i)},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { failed <- err })
	}
	require.NoError(w.t, p.FlushWithCtx(w.t.Context()))
	for range n {
		require.NoError(w.t, <-failed)
	}
}

// stats returns the statistics of a subscription, over all partitions.
func (w *brokerClient) stats(topic, subscription string) utils.SubscriptionStats {
	w.t.Helper()
	full, err := utils.GetTopicName(topic)
	require.NoError(w.t, err)
	if partitioned, err := w.admin.Topics().GetPartitionedStats(*full, false); err == nil {
		return partitioned.Subscriptions[subscription]
	}
	stats, err := w.admin.Topics().GetStats(*full)
	require.NoError(w.t, err)
	return stats.Subscriptions[subscription]
}

// receive reads n messages and acknowledges them.
func receive(t testing.TB, c pulsar.Consumer, n int) (texts []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	for range n {
		m, err := c.Receive(ctx)
		require.NoError(t, err)
		require.NoError(t, c.Ack(m))
		texts = append(texts, string(m.Payload()))
	}
	return texts
}

func receiveOne(t testing.TB, c pulsar.Consumer) pulsar.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	m, err := c.Receive(ctx)
	require.NoError(t, err)
	return m
}

// quiet requires that no message comes.
func quiet(t testing.TB, c pulsar.Consumer, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	m, err := c.Receive(ctx)
	if err == nil {
		t.Errorf("received %q", m.Payload())
	}
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
