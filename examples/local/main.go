// Command local shares a limit between the goroutines of one process. It needs no service:
//
//	go run ./examples/local
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	const limit, messages = 500, 1000
	policies := dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(limit)})
	lim, err := dispatch.Open(ctx, dispatch.Config{Policies: policies})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lim.Close()) }()

	var taken atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for _, name := range []string{"billing", "audit"} { // two subscriptions, one limit
		sub, err := lim.Subscription("kafka://public/default/orders", name)
		if err != nil {
			return err
		}
		for range 2 {
			wg.Go(func() {
				for taken.Add(1) <= messages {
					if _, err := sub.Acquire(ctx, 1); err != nil {
						return // the Limiter was closed
					}
				}
			})
		}
	}
	wg.Wait()
	took := time.Since(start)
	fmt.Printf("limit: %d messages a second\n", limit)
	fmt.Printf("dispatched: %d messages\n", messages)
	aboutTwo := took > 1800*time.Millisecond && took < 2500*time.Millisecond
	fmt.Printf("took about two seconds: %t\n", aboutTwo)
	return nil
}
