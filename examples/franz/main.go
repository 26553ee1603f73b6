// Command franz reads a Kafka topic with franz-go under a shared limit. It needs an etcd, a Redis
// and a Kafka (docker compose up):
//
//	export THROTTLE_POLICIES=etcd://127.0.0.1:2379 THROTTLE_PERMITS=redis://127.0.0.1:6379
//	go run ./cmd/throttle-admin set-msg-rate kafka://public/default/orders 100
//	go run ./examples/franz 127.0.0.1:9092 orders billing   # in any number of terminals
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dispatchthrottle/throttle"
	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: franz BROKER TOPIC GROUP")
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
	client, err := franzthrottle.New(lim, []kgo.Opt{
		kgo.SeedBrokers(broker), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group),
		kgo.AutoCommitMarks(), // commits what is marked below
	})
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx) // returns the records that have permits
		if err := fetches.Err(); err != nil {
			return err
		}
		for r := range fetches.RecordsAll() {
			fmt.Printf("%d/%d %s\n", r.Partition, r.Offset, r.Value)
			client.MarkCommitRecords(r)
		}
	}
}
