// Consumer is a consumer of the chaos hour: it records each message in its journal before it
// acknowledges it. With THROTTLE_POLICIES in its environment its messages wait for permits; without
// it, it is the bare client. It ends when its standard input ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	pulsarlog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle"
	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/tests/chaos/hour/journal"
)

// build tells builds of this program apart; the linker sets it.
var build = "one"

const (
	commitEvery = 8               // messages, with Kafka
	session     = 6 * time.Second // of Kafka: how long a dead consumer keeps its partitions
)

type consumer struct {
	broker, url, topic, group, cache string
	pace                             time.Duration
	journal                          *journal.Writer
}

func main() {
	var c consumer
	flag.StringVar(&c.broker, "broker", "", "kafka or pulsar")
	flag.StringVar(&c.url, "url", "", "of the broker")
	flag.StringVar(&c.topic, "topic", "", "topic")
	flag.StringVar(&c.group, "group", "", "consumer group or subscription")
	flag.StringVar(&c.cache, "cache", "", "file of the policies last seen")
	flag.DurationVar(&c.pace, "pace", 0, "pause after each message")
	name := flag.String("journal", "", "file")
	flag.Parse()
	if err := c.run(*name); err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
}

// run consumes until standard input ends. After an error, such as that of a broker that restarts,
// it subscribes again.
func (c *consumer) run(name string) (err error) {
	if c.journal, err = journal.Open(name); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.journal.Close()) }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // an error ends the input, too
		cancel()
	}()
	for ctx.Err() == nil {
		if err := c.session(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly), "consumer:", err)
			sleep(ctx, 500*time.Millisecond)
		}
	}
	return nil
}

func (c *consumer) session(ctx context.Context) (err error) {
	var lim *dispatch.Limiter
	if os.Getenv(throttle.EnvPolicies) != "" {
		if lim, err = throttle.FromEnv(ctx, throttle.WithCacheFile(c.cache)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lim.Close()) }()
	}
	if err := c.journal.Begin(build); err != nil {
		return err
	}
	if c.broker == "kafka" {
		return c.kafka(ctx, lim)
	}
	return c.pulsar(ctx, lim)
}

// delivered records a message, and then pauses.
func (c *consumer) delivered(ctx context.Context, d journal.Delivery) error {
	d.At = time.Now().UnixNano()
	err := c.journal.Delivered(d)
	sleep(ctx, c.pace)
	return err
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// A reader is a kafka.Reader or one that is throttled.
type reader interface {
	FetchMessage(context.Context) (kafka.Message, error)
	CommitMessages(context.Context, ...kafka.Message) error
	Close() error
}

func (c *consumer) kafka(ctx context.Context, lim *dispatch.Limiter) (err error) {
	cfg := kafka.ReaderConfig{
		Brokers: []string{c.url}, Topic: c.topic, GroupID: c.group, MaxWait: 500 * time.Millisecond,
		HeartbeatInterval: 500 * time.Millisecond, SessionTimeout: session, RebalanceTimeout: session,
		StartOffset: kafka.FirstOffset, ReadLagInterval: -1,
	}
	var r reader
	if lim == nil {
		r = kafka.NewReader(cfg)
	} else if r, err = kafkathrottle.NewReader(cfg, lim); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	var batch []kafka.Message
	commit := func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if err := r.CommitMessages(ctx, batch...); err != nil { // they will be read again
			fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly), "consumer: commit:", err)
		}
		batch = batch[:0]
	}
	for {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			commit(context.WithoutCancel(ctx))
			return err
		}
		err = c.delivered(ctx, journal.Delivery{
			Partition: m.Partition, Position: journal.Position{Entry: m.Offset}, ID: string(m.Value),
		})
		if err != nil {
			return err
		}
		if batch = append(batch, m); len(batch) == commitEvery {
			commit(ctx)
		}
	}
}

func (c *consumer) pulsar(ctx context.Context, lim *dispatch.Limiter) error {
	silent := pulsarlog.NewLoggerWithSlog(slog.New(slog.DiscardHandler))
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: c.url, Logger: silent})
	if err != nil {
		return err
	}
	defer client.Close()
	options := pulsar.ConsumerOptions{
		Topic: c.topic, SubscriptionName: c.group, Type: pulsar.Failover,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}
	var sub pulsar.Consumer
	if lim == nil {
		// As few as the throttle lets a broker push ahead at such a limit: those are what a crash or a
		// restart has delivered again.
		options.ReceiverQueueSize, options.MessageChannel = 2, make(chan pulsar.ConsumerMessage)
		sub, err = client.Subscribe(options)
	} else {
		sub, err = pulsarthrottle.Subscribe(client, options, lim)
	}
	if err != nil {
		return err
	}
	defer sub.Close()
	for {
		m, err := sub.Receive(ctx)
		if err != nil {
			return err
		}
		id := m.ID()
		err = c.delivered(ctx, journal.Delivery{
			Partition: int(id.PartitionIdx()),
			Position:  journal.Position{Ledger: id.LedgerID(), Entry: id.EntryID()},
			ID:        string(m.Payload()),
		})
		if err != nil {
			return err
		}
		if err := sub.Ack(m); err != nil { // it will be delivered again
			fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly), "consumer: ack:", err)
		}
	}
}
