// Command handler throttles calls of functions. It needs no service:
//
//	go run ./examples/handler
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
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
	// A program would call throttle.FromEnv(ctx).
	limit := dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(20)})
	lim, err := dispatch.Open(ctx, dispatch.Config{Policies: limit})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lim.Close()) }()
	sub, err := lim.Subscription("kafka://public/default/orders", "billing")
	if err != nil {
		return err
	}

	// Do waits for a permit, then calls the function.
	err = sub.Do(ctx, func(context.Context) error {
		fmt.Println("Do: called")
		return nil
	})
	if err != nil {
		return err
	}

	// TryDo calls the function only if a permit is available now.
	calls := 0
	for range 1000 {
		ran, err := sub.TryDo(ctx, func(context.Context) error { return nil })
		if err != nil {
			return err
		}
		if ran {
			calls++
		}
	}
	fmt.Println("TryDo: most calls were skipped:", calls < 100)

	// Throttled wraps a function, so that each call waits for a permit.
	shout := dispatch.Throttled(sub, func(_ context.Context, s string) (string, error) {
		return strings.ToUpper(s), nil
	})
	for _, word := range []string{"one", "after", "the", "other"} {
		s, err := shout(ctx, word)
		if err != nil {
			return err
		}
		fmt.Println("Throttled:", s)
	}

	// Reporting, inside Throttled, reports the answers of a service. While the service is busy, all
	// replicas of the subscription call it less often.
	post := dispatch.Throttled(sub, dispatch.Reporting(sub, post))
	for _, word := range []string{"a word", "one too many"} {
		s, err := post(ctx, word)
		if busy, ok := errors.AsType[*dispatch.BusyError](err); ok {
			fmt.Println("Reporting:", busy)
		} else if err != nil {
			return err
		} else {
			fmt.Println("Reporting:", s)
		}
	}
	return nil
}

// post stands for a call of a service. For real ones, see httpthrottle.Error and
// grpcthrottle.Error.
func post(_ context.Context, s string) (string, error) {
	if s == "one too many" {
		return "", &dispatch.BusyError{
			RetryAfter: time.Second, Err: errors.New("429 Too Many Requests"),
		}
	}
	return s + " was posted", nil
}
