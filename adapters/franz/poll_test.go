package franzthrottle_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

const orders = "kafka://public/default/orders"

// TestPauses: records of what the user has paused are kept until it is resumed.
func TestPauses(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 2, "orders", "other")
	fill(t, brokers, "orders", 2, 100, 10)
	fill(t, brokers, "other", 2, 100, 10)
	lim := throttletest.Open(t, perSecond(200))
	c := open(t, lim, brokers, kgo.ConsumeTopics("orders", "other"))
	got := map[string]map[int32]int{"orders": {}, "other": {}}
	take := func(n int) {
		t.Helper()
		for n > 0 {
			poll(t, c, min(n, 5)).EachRecord(func(r *kgo.Record) {
				require.EqualValues(t, got[r.Topic][r.Partition], r.Offset)
				got[r.Topic][r.Partition]++
				n--
			})
		}
	}
	take(40) // by now, records of all partitions are kept
	assert.Equal(t, []string{"orders"}, c.PauseFetchTopics("orders"))
	paused := map[string][]int32{"other": {1}}
	assert.Equal(t, []int32{1}, c.PauseFetchPartitions(paused)["other"])
	orders, other := got["orders"][0]+got["orders"][1], got["other"][1]
	take(100 - got["other"][0])
	assert.Equal(t, orders, got["orders"][0]+got["orders"][1])
	assert.Equal(t, other, got["other"][1])
	require.Nil(t, c.PollRecords(nil, 0)) //nolint:staticcheck // as kgo: it does not wait
	c.ResumeFetchPartitions(paused)
	c.ResumeFetchTopics("orders")
	take(300 - orders - other)
}

// TestABurstIsNoticed: a Client that has caught up is throttled as soon as a fetch tells of more.
func TestABurstIsNoticed(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 10, 10)
	lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(200)})
	c := open(t, lim, brokers, kgo.ConsumeTopics("orders"), kgo.FetchMaxPartitionBytes(1000))
	read := func(n int) {
		for n > 0 {
			n -= poll(t, c, 0).NumRecords()
		}
	}
	read(10)
	throttletest.Until(t, "it has caught up", func() bool { return lim.Stats().Subscriptions[0].Exempt })
	fill(t, brokers, "orders", 1, 5000, 10)
	start := time.Now()
	read(400)
	require.Greater(t, time.Since(start), 1500*time.Millisecond, "only the first fetch of a burst is exempt")
}

// TestMarksSettle: marked records are in flight until they are committed, and callbacks are the
// user's.
func TestMarksSettle(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 30, 10)
	lim := throttletest.Open(t, behind(policy.Policy{MessageRate: policy.PerSecond(1000), MaxInFlight: new(int64(10))}))
	c := open(t, lim, brokers, kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("billing"), kgo.AutoCommitMarks(),
		kgo.AutoCommitInterval(100*time.Millisecond))
	for n := 0; n < 30; { // the third ten come when the first have been committed
		fetches := poll(t, c, 0)
		n += fetches.NumRecords()
		c.MarkCommitRecords(fetches.Records()...)
	}
	throttletest.Until(t, "all are settled", func() bool { return lim.Stats().Subscriptions[0].InFlight == 0 })
}

// TestWithoutALimiter: every call is kgo's.
func TestWithoutALimiter(t *testing.T) {
	brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 30, 10)
	c, err := franzthrottle.New(nil, []kgo.Opt{
		kgo.SeedBrokers(brokers...), kgo.FetchMaxWait(soon), kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("billing"),
	}) // with plain auto-commit
	require.NoError(t, err)
	for n := 0; n < 30; {
		fetches := poll(t, c, 0)
		n += fetches.NumRecords()
		c.Skip(fetches.Records()...)
	}
	c.PauseFetchTopics("orders")
	c.ResumeFetchTopics("orders")
	c.SetOffsets(map[string]map[int32]kgo.EpochOffset{"orders": {0: {Epoch: -1, Offset: 20}}})
	require.EqualValues(t, 20, poll(t, c, 1).Records()[0].Offset)
	require.NoError(t, c.CommitUncommittedOffsets(t.Context()))
	require.Empty(t, c.UncommittedOffsets())
	c.AllowRebalance()
	c.Close()
	require.ErrorIs(t, c.PollFetches(context.Background()).Err(), kgo.ErrClientClosed)
}

// TestNames: limits are those of kafka://public/default, of a namespace, or of what a function
// says; a topic whose name is none is an error, and holds up no other.
func TestNames(t *testing.T) {
	brokers := broker(t, 1, "orders", "other")
	fill(t, brokers, "orders", 1, 10, 10)
	fill(t, brokers, "other", 1, 10, 10)
	for name, c := range map[string]struct {
		opts []franzthrottle.Option
		want [2]string
	}{
		"default":      {nil, [2]string{orders, franzthrottle.DefaultSubscription}},
		"namespace":    {[]franzthrottle.Option{franzthrottle.WithNamespace("a/b")}, [2]string{"kafka://a/b/orders", "standalone"}},
		"subscription": {[]franzthrottle.Option{franzthrottle.WithSubscription("s")}, [2]string{orders, "s"}},
	} {
		lim := throttletest.Open(t, perSecond(1000))
		cl, err := franzthrottle.New(lim.Limiter, []kgo.Opt{
			kgo.SeedBrokers(brokers...), kgo.FetchMaxWait(soon), kgo.ConsumeTopics("orders"),
		}, c.opts...)
		require.NoError(t, err)
		poll(t, cl, 1)
		s := lim.Stats().Subscriptions
		require.Len(t, s, 1, name)
		assert.Equal(t, c.want, [2]string{s[0].Topic, s[0].Subscription}, name)
		cl.Close()
	}
	lim := throttletest.Open(t, policy.Policy{})
	c, err := franzthrottle.New(lim.Limiter, []kgo.Opt{
		kgo.SeedBrokers(brokers...), kgo.FetchMaxWait(soon), kgo.ConsumeTopics("orders", "other"),
	}, franzthrottle.WithTopic(func(name string) string {
		if name == "other" {
			return "no topic"
		}
		return "kafka://public/default/" + name
	}))
	require.NoError(t, err)
	defer c.Close()
	records, failed := 0, error(nil)
	throttletest.Until(t, "the records of one, and the error of the other", func() bool {
		fetches := c.PollFetches(t.Context())
		fetches.EachError(func(topic string, _ int32, err error) {
			assert.Equal(t, "other", topic)
			failed = err
		})
		records += fetches.NumRecords()
		return records == 10 && failed != nil
	})
	require.ErrorContains(t, failed, `franzthrottle: topic other: `)
}
