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
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// consumerEnv makes this test binary a consumer process. Its value is brokers, topic, consumer
// group, the client and what that wants more, separated by blanks.
const consumerEnv = "THROTTLE_TEST_KAFKA_CONSUMER"

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

// The clients of consumer processes.
const (
	kafkaGo        = "kafka-go"
	franzGo        = "franz-go"
	franzGoEager   = "franz-go-eager" // gives all partitions back in a rebalance
	franzGoSession = "franz-go-session"
)

// consume runs a consumer until its input ends.
func consume(args []string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go fleet.UntilInputEnds(cancel)
	lim, err := throttle.FromEnv(ctx, throttle.WithOpenTimeout(throttletest.Patience))
	if err != nil {
		return err
	}
	switch brokers := strings.Split(args[0], ","); args[3] {
	case kafkaGo:
		err = read(ctx, lim, brokers, args[1], args[2])
	case franzGoSession:
		err = copyOver(ctx, lim, brokers, args[1], args[2], args[4])
	default:
		err = poll(ctx, lim, brokers, args[1], args[2], args[3])
	}
	return errors.Join(err, lim.Close())
}

// read reports each message that a Reader reads, and each commit. It retries errors, such as that
// of a consumer group that cannot form yet. After a rebalance, it reports a commit as unsettled:
// the new owners of the partitions may have read the committed offsets before it.
func read(ctx context.Context, lim *dispatch.Limiter, brokers []string, topic, group string) error {
	r, err := kafkathrottle.NewReader(kafka.ReaderConfig{
		Brokers: brokers, Topic: topic, GroupID: group,
		MaxWait: 500 * time.Millisecond, ReadLagInterval: -1,
		HeartbeatInterval: 200 * time.Millisecond, SessionTimeout: sessionTimeout, RebalanceTimeout: sessionTimeout,
	}, lim)
	if err != nil {
		return err
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
	return r.Close()
}

// commitEvery is the number of messages between two commits.
const commitEvery = 8

// sessionTimeout is how long the partitions of a killed process are not read. It is the shortest
// that Kafka allows by default.
const sessionTimeout = 6 * time.Second
