// Command kafka reads a Kafka topic under a shared limit. It needs an etcd, a Redis and a Kafka
// (docker compose up):
//
//	export THROTTLE_POLICIES=etcd://127.0.0.1:2379 THROTTLE_PERMITS=redis://127.0.0.1:6379
//	go run ./cmd/throttle-admin set-msg-rate kafka://public/default/orders 100
//	go run ./examples/kafka 127.0.0.1:9092 orders billing   # in any number of terminals
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle"
	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: kafka BROKER TOPIC GROUP")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2], os.Args[3]); err != nil {
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
	r, err := kafkathrottle.NewReader(kafka.ReaderConfig{
		Brokers: []string{broker}, Topic: topic, GroupID: group,
	}, lim)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for {
		m, err := r.FetchMessage(ctx) // returns when there is a permit for m
		if errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		fmt.Printf("%d/%d %s\n", m.Partition, m.Offset, m.Value)
		if err := r.CommitMessages(ctx, m); err != nil {
			return err
		}
	}
}
