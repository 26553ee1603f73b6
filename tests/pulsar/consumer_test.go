package pulsar_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	pulsarlog "github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/dispatchthrottle/throttle"
	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// consumerEnv makes this test binary a consumer process. Its value is the broker's URL, topic,
// subscription and subscription type, separated by blanks.
const consumerEnv = "THROTTLE_TEST_PULSAR_CONSUMER"

// TestMain runs the tests, or the consumer process.
func TestMain(m *testing.M) {
	if args := os.Getenv(consumerEnv); args != "" {
		if err := consume(strings.Fields(args)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func consumer(broker, topic, subscription string, kind pulsar.SubscriptionType) string {
	return fmt.Sprintf("%s=%s %s %s %d", consumerEnv, broker, topic, subscription, kind)
}

func newClient(url string) (pulsar.Client, error) {
	silent := pulsarlog.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil)))
	return pulsar.NewClient(pulsar.ClientOptions{URL: url, Logger: silent})
}

// consume reports each message it receives, and each acknowledgement, until its input ends. Without
// a policy store in its environment, it has no Limiter.
func consume(args []string) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go fleet.UntilInputEnds(cancel)
	var lim *dispatch.Limiter
	if os.Getenv(throttle.EnvPolicies) != "" {
		if lim, err = throttle.FromEnv(ctx, throttle.WithOpenTimeout(throttletest.Patience)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lim.Close()) }()
	}
	kind, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	client, err := newClient(args[0])
	if err != nil {
		return err
	}
	defer client.Close()
	c, err := pulsarthrottle.Subscribe(client, pulsar.ConsumerOptions{
		Topic: args[1], SubscriptionName: args[2], Type: pulsar.SubscriptionType(kind),
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		AckWithResponse:             kind != int(pulsar.Exclusive),
	}, lim)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		m, err := c.Receive(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		fleet.Print(fleet.Read, string(m.Payload()))
		if err := c.Ack(m); err != nil {
			fleet.Print(fleet.Unsettled, "-")
		} else {
			fleet.Print(fleet.Committed, "-")
		}
	}
}
