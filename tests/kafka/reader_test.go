package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle"
	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// consumerEnv makes this test binary a consumer process. Its value is brokers, topic and consumer
// group, separated by blanks.
const consumerEnv = "THROTTLE_TEST_KAFKA_CONSUMER"

// TestMain runs the tests, or the consumer process.
func TestMain(m *testing.M) {
	if args := os.Getenv(consumerEnv); args != "" {
		if err := read(strings.Fields(args)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// read reports each message it reads, and each commit, until its input ends. It retries errors,
// such as that of a consumer group that cannot form yet. After a rebalance, it reports a commit as
// unsettled: the new owners of the partitions may have read the committed offsets before it.
func read(args []string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go fleet.UntilInputEnds(cancel)
	lim, err := throttle.FromEnv(ctx, throttle.WithOpenTimeout(throttletest.Patience))
	if err != nil {
		return err
	}
	r, err := kafkathrottle.NewReader(kafka.ReaderConfig{
		Brokers: strings.Split(args[0], ","), Topic: args[1], GroupID: args[2],
		MaxWait: 500 * time.Millisecond, ReadLagInterval: -1,
		HeartbeatInterval: 200 * time.Millisecond, SessionTimeout: sessionTimeout, RebalanceTimeout: sessionTimeout,
	}, lim)
	if err != nil {
		return errors.Join(err, lim.Close())
	}
	var batch []kafka.Message
	for {
		m, err := r.FetchMessage(ctx)
		if ctx.Err() != nil {
			break
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		fleet.Print(fleet.Read, fmt.Sprint(m.Partition, "/", m.Offset))
		if batch = append(batch, m); len(batch) < commitEvery {
			continue
		}
		if err := r.CommitMessages(ctx, batch...); err != nil {
			break
		}
		if r.Stats().Rebalances == 0 {
			fleet.Print(fleet.Committed, "-")
		} else {
			fleet.Print(fleet.Unsettled, "-")
		}
		batch = batch[:0]
	}
	return errors.Join(r.Close(), lim.Close())
}

// commitEvery is the number of messages between two commits.
const commitEvery = 8

// sessionTimeout is how long the partitions of a killed process are not read. It is the shortest
// that Kafka allows by default.
const sessionTimeout = 6 * time.Second
