// Command quotas shares a warehouse that can take 100 writes a second between two tags. It needs
// an etcd and a Redis (docker compose up), or the etcd of throttle-admin dev for both:
//
//	export THROTTLE_POLICIES=etcd://127.0.0.1:2379 THROTTLE_PERMITS=redis://127.0.0.1:6379
//	go run ./cmd/throttle-admin quota settings ignoreZones=0
//	go run ./cmd/throttle-admin quota set tag:gold reserved=800kB total=1638400
//	go run ./cmd/throttle-admin quota set tag:bulk total=1638400
//	go run ./examples/quotas
//
// Meanwhile, `go run ./cmd/throttle-admin quota status` shows the rates. A write of 1000 bytes
// costs 16384 bytes: one page, times four.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	lim, err := throttle.FromEnv(ctx, throttle.WithRatekeeper())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lim.Close()) }()
	warehouse, err := lim.Backend("warehouse", "eu-1")
	if err != nil {
		return err
	}
	tags := []string{"gold", "bulk"}
	written := make([]atomic.Int64, len(tags))
	var consumers sync.WaitGroup
	defer consumers.Wait()
	for i, tag := range tags {
		sub, err := lim.Subscription("kafka://public/default/orders", "billing",
			dispatch.WithTag(tag))
		if err != nil {
			return err
		}
		consumers.Go(func() {
			for ctx.Err() == nil {
				if err := sub.Do(ctx, func(context.Context) error { return nil }); err != nil {
					return // interrupted
				}
				warehouse.Wrote(sub, 1000)
				written[i].Add(1)
				time.Sleep(time.Millisecond)
			}
		})
	}
	for every := time.NewTicker(time.Second); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
		gold, bulk := written[0].Swap(0), written[1].Swap(0)
		fmt.Printf("gold %4d/s  bulk %4d/s  warehouse at %3d %%\n", gold, bulk, gold+bulk)
		// The warehouse slows its callers down from 60 % on.
		load := quota.Load{Queue: float64(gold + bulk), Target: 100, Spring: 40}
		if err := warehouse.ReportLoad(load); err != nil {
			return err
		}
	}
}
