// Command pulsar reads a Pulsar topic under a shared limit. It needs an etcd, a Redis and a
// Pulsar (docker compose up):
//
//	export THROTTLE_POLICIES=etcd://127.0.0.1:2379 THROTTLE_PERMITS=redis://127.0.0.1:6379
//	go run ./cmd/throttle-admin set-msg-rate persistent://public/default/orders 100
//	go run ./examples/pulsar loop pulsar://127.0.0.1:6650 orders billing
//
// in any number of terminals. In place of loop, batches reads 50 messages at a time, or what
// comes in a second, and chan reads from a channel.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle"
	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
)

func main() {
	ways := map[string]func(context.Context, pulsar.Consumer) error{
		"loop": loop, "batches": batches, "chan": channel,
	}
	if len(os.Args) != 5 || ways[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: pulsar loop|batches|chan URL TOPIC SUBSCRIPTION")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[2], os.Args[3], os.Args[4], ways[os.Args[1]])
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(
	ctx context.Context, url, topic, subscription string,
	read func(context.Context, pulsar.Consumer) error,
) (err error) {
	lim, err := throttle.FromEnv(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lim.Close()) }()
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: url})
	if err != nil {
		return err
	}
	defer client.Close()
	c, err := pulsarthrottle.Subscribe(client, pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: subscription, Type: pulsar.Shared,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}, lim)
	if err != nil {
		return err
	}
	defer c.Close()
	return read(ctx, c)
}

func loop(ctx context.Context, c pulsar.Consumer) error {
	for {
		m, err := c.Receive(ctx) // returns when there is a permit for m
		if err != nil {
			return err
		}
		fmt.Printf("%s %s\n", m.ID(), m.Payload())
		if err := c.Ack(m); err != nil {
			return err
		}
	}
}

func batches(ctx context.Context, c pulsar.Consumer) error {
	for ctx.Err() == nil {
		var ids []pulsar.MessageID
		filling, cancel := context.WithTimeout(ctx, time.Second)
		for len(ids) < 50 {
			m, err := c.Receive(filling)
			if errors.Is(err, context.DeadlineExceeded) {
				break // a message that waits for its permit is in the next batch
			} else if err != nil {
				cancel()
				return err
			}
			ids = append(ids, m.ID())
		}
		cancel()
		fmt.Printf("%d messages\n", len(ids))
		if err := c.AckIDList(ids); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func channel(ctx context.Context, c pulsar.Consumer) error {
	for {
		select {
		case m := <-c.Chan():
			fmt.Printf("%s %s\n", m.ID(), m.Payload())
			if err := m.Ack(m.Message); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
