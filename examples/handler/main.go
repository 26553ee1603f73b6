// Command handler puts a limit in front of functions. It needs no service:
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
	lim, err := dispatch.Open(ctx, dispatch.Config{Policies: dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(20)})})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lim.Close()) }()
	sub, err := lim.Subscription("kafka://public/default/orders", "billing")
	if err != nil {
		return err
	}

	// Do waits for a permit and calls.
	err = sub.Do(ctx, func(context.Context) error {
		fmt.Println("Do: called")
		return nil
	})
	if err != nil {
		return err
	}

	// TryDo calls only if there is a permit now.
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

	// Throttled decorates a function once and for all.
	shout := dispatch.Throttled(sub, func(_ context.Context, s string) (string, error) { return strings.ToUpper(s), nil })
	for _, word := range []string{"one", "after", "the", "other"} {
		s, err := shout(ctx, word)
		if err != nil {
			return err
		}
		fmt.Println("Throttled:", s)
	}

	// Reporting, inside it, tells what was answered: while a service is busy, all processes of the subscription call it less.
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

// post stands for a call of a service. See httpthrottle.Error and grpcthrottle.Error for real ones.
func post(_ context.Context, s string) (string, error) {
	if s == "one too many" {
		return "", &dispatch.BusyError{RetryAfter: time.Second, Err: errors.New("429 Too Many Requests")}
	}
	return s + " was posted", nil
}
