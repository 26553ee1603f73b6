package franzthrottle_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	"github.com/dispatchthrottle/throttle/adapters/internal/adaptertest"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestMain fails if goroutines are left behind.
func TestMain(m *testing.M) { throttletest.Main(m, goleak.Find) }

const soon = 100 * time.Millisecond // the longest wait of a fetch, so that Close is quick

// broker starts an in-process Kafka with topics.
func broker(t testing.TB, partitions int, topics ...string) []string {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(int32(partitions), topics...))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c.ListenAddrs()
}

// fill writes n records of size bytes to each partition of a topic; their values begin with
// partition/offset.
func fill(t testing.TB, brokers []string, topic string, partitions, n, size int) {
	t.Helper()
	for p := range partitions {
		values := make([]string, n)
		for i := range values {
			values[i] = fmt.Sprintf("%-*s", size, fmt.Sprintf("%d/%d", p, i))
		}
		adaptertest.Write(t, brokers, topic, p, values)
	}
}

// behind is a policy whose limits hold for subscriptions without a backlog, too.
func behind(p policy.Policy) policy.Policy {
	p.CaughtUp.Throttle = new(true)
	return p
}

// perSecond is a limit that holds for a subscription without a backlog, too.
func perSecond(n int64) policy.Policy { return behind(policy.Policy{MessageRate: policy.PerSecond(n)}) }

// member are the options of a member of a group.
func member(opts ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("billing"), kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(50 * time.Millisecond)}, opts...)
}

// open opens a Client, which is closed at the end of the test.
func open(t testing.TB, lim *throttletest.Limiter, brokers []string, opts ...kgo.Opt) *franzthrottle.Client {
	t.Helper()
	all := []kgo.Opt{kgo.SeedBrokers(brokers...), kgo.FetchMaxWait(soon)}
	c, err := franzthrottle.New(lim.Limiter, append(all, opts...))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// nothing requires that no records come within a time.
func nothing(t testing.TB, c *franzthrottle.Client, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	fetches := c.PollFetches(ctx)
	require.ErrorIs(t, fetches.Err(), context.DeadlineExceeded)
	require.Zero(t, fetches.NumRecords())
}

// poll is PollRecords with a timeout.
func poll(t testing.TB, c *franzthrottle.Client, max int) kgo.Fetches {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), throttletest.Patience)
	defer cancel()
	fetches := c.PollRecords(ctx, max)
	require.NoError(t, fetches.Err())
	return fetches
}
