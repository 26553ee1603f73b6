// Command any-client throttles a client that has no adapter, here a consumer group of a Redis
// stream. It needs an etcd and a Redis (docker compose up):
//
//	export THROTTLE_POLICIES=etcd://127.0.0.1:2379 THROTTLE_PERMITS=redis://127.0.0.1:6379
//	go run ./cmd/throttle-admin set-msg-rate redis://public/default/orders 100
//	redis-cli eval 'for i = 1, 10000 do redis.call("XADD", "orders", "*", "order", i) end' 0
//	go run ./examples/any-client 127.0.0.1:6379 orders billing
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: any-client REDIS STREAM GROUP")
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

func run(ctx context.Context, addr, stream, group string) (err error) {
	lim, err := throttle.FromEnv(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lim.Close()) }()
	sub, err := lim.Subscription("redis://public/default/"+stream, group)
	if err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { err = errors.Join(err, client.Close()) }()
	created := client.XGroupCreateMkStream(ctx, stream, group, "0").Err()
	if created != nil && !strings.HasPrefix(created.Error(), "BUSYGROUP") { // it is there already
		return created
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	consumer := fmt.Sprintf("%s-%d", host, os.Getpid()) // each process has a name of its own
	polling, stop := context.WithCancel(ctx)
	defer stop()
	go reportBacklog(polling, client, stream, group, sub)
	for {
		grant, err := sub.Acquire(ctx, 100) // at least one permit
		if err != nil {
			return err
		}
		grant.Hold(wait) // permits can go back after the read, too
		messages, bytes, err := read(ctx, client, stream, group, consumer, grant.N())
		grant.Done(messages, bytes) // charges the exact bytes, and gives unused permits back
		if err != nil {
			return err
		}
	}
}

// wait is how long a read waits for a first message.
const wait = time.Second

// read prints and acknowledges up to n messages. Messages that a process has read and has not
// acknowledged stay pending under its consumer name; XAUTOCLAIM gives them to another.
func read(
	ctx context.Context, client *redis.Client, stream, group, consumer string, n int,
) (messages int, bytes int64, err error) {
	streams, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: group, Consumer: consumer, Streams: []string{stream, ">"}, Count: int64(n), Block: wait,
	}).Result()
	if errors.Is(err, redis.Nil) { // there is none
		return 0, 0, nil
	} else if err != nil {
		return 0, 0, err
	}
	for _, m := range streams[0].Messages {
		fmt.Println(m.ID, m.Values)
		for field, value := range m.Values {
			bytes += int64(len(field) + len(fmt.Sprint(value)))
		}
		if err := client.XAck(ctx, stream, group, m.ID).Err(); err != nil {
			return messages, bytes, err
		}
		messages++
	}
	return messages, bytes, nil
}

// reportBacklog reports once a second how many messages the group has not read: one without a
// backlog is not throttled.
func reportBacklog(ctx context.Context, client *redis.Client, stream, group string, sub *dispatch.Subscription) {
	for ctx.Err() == nil {
		backlog := int64(-1) // unknown, which counts as behind
		if groups, err := client.XInfoGroups(ctx, stream).Result(); err == nil {
			for _, g := range groups {
				if g.Name == group {
					backlog = g.Lag
				}
			}
		}
		sub.ReportBacklog(backlog)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}
