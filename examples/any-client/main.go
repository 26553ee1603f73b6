// Command any-client throttles a client that has no adapter, here franz-go. It needs an etcd, a
// Redis and a Kafka (docker compose up):
//
//	export THROTTLE_POLICIES=etcd://127.0.0.1:2379 THROTTLE_PERMITS=redis://127.0.0.1:6379
//	go run ./cmd/throttle-admin set-msg-rate kafka://public/default/orders 100
//	go run ./examples/any-client 127.0.0.1:9092 orders billing
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: any-client BROKER TOPIC GROUP")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1], os.Args[2], os.Args[3])
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, broker, topic, group string) (err error) {
	lim, err := throttle.FromEnv(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lim.Close()) }()
	sub, err := lim.Subscription("kafka://public/default/"+topic, group)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(broker), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group),
		kgo.FetchMaxBytes(256<<10), // keeps prefetch small, which the limit does not cover
		kgo.DisableAutoCommit())
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		fetches := client.PollRecords(ctx, 100)
		if err := fetches.Err(); err != nil {
			return err
		}
		if err := handle(ctx, sub, fetches.Records()); err != nil {
			return err
		}
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			return err
		}
	}
}

// handle prints the records, as many at a time as there are permits.
func handle(ctx context.Context, sub *dispatch.Subscription, records []*kgo.Record) error {
	for len(records) > 0 {
		grant, err := sub.Acquire(ctx, len(records)) // at least one permit
		if err != nil {
			return err
		}
		bytes := int64(0)
		for _, r := range records[:grant.N()] {
			fmt.Printf("%d/%d %s\n", r.Partition, r.Offset, r.Value)
			bytes += int64(len(r.Key) + len(r.Value))
		}
		records = records[grant.N():]
		grant.Done(grant.N(), bytes) // charges the exact bytes
	}
	return nil
}
