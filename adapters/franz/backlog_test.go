package franzthrottle_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	"github.com/dispatchthrottle/throttle/adapters/internal/adaptertest"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestCaughtUp: a Client that has read all that it may read has caught up, whatever else the topic
// has.
func TestCaughtUp(t *testing.T) {
	for name, c := range map[string]struct {
		partitions int
		write      func(t *testing.T, brokers []string)
		opts       []kgo.Opt
	}{
		"one partition of two": {2, func(t *testing.T, brokers []string) { fill(t, brokers, "orders", 2, 1000, 10) },
			[]kgo.Opt{kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"orders": {0: kgo.NewOffset().AtStart()}})}},
		"records of a transaction that was aborted": {1, func(t *testing.T, brokers []string) {
			fill(t, brokers, "orders", 1, 1000, 10)
			begin(t, brokers, "aborts", 1000)(kgo.TryAbort)
		}, []kgo.Opt{kgo.ConsumeTopics("orders"), kgo.FetchIsolationLevel(kgo.ReadCommitted())}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokers := broker(t, c.partitions, "orders")
			c.write(t, brokers)
			lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(100_000)})
			cl := open(t, lim, brokers, c.opts...)
			for n := 0; n < 1000; {
				n += poll(t, cl, 0).NumRecords()
			}
			go cl.PollFetches(t.Context()) // waits for more
			throttletest.Until(t, "it has caught up", func() bool { return lim.Stats().Subscriptions[0].Exempt })
		})
	}
}

// TestNothingToRead: a Client has no backlog of a topic that it does not read any more, with or
// without a group.
func TestNothingToRead(t *testing.T) {
	start := kgo.NewOffset().AtStart()
	direct := kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"orders": {0: start}})
	purge := func(c *franzthrottle.Client) { c.PurgeTopicsFromConsuming("orders") }
	for name, c := range map[string]struct {
		opts []kgo.Opt
		stop func(*franzthrottle.Client)
	}{
		"removed":           {[]kgo.Opt{direct}, func(c *franzthrottle.Client) { c.RemoveConsumePartitions(map[string][]int32{"orders": {0}}) }},
		"a partition":       {[]kgo.Opt{direct}, purge},
		"a topic":           {[]kgo.Opt{kgo.ConsumeTopics("orders", "other")}, purge},
		"a topic, in group": {member(kgo.ConsumeTopics("orders", "other")), purge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokers := broker(t, 2, "orders", "other")
			fill(t, brokers, "orders", 2, 1000, 10)
			lim := throttletest.Open(t, policy.Policy{})
			lim.Add(orders, perSecond(100))
			cl := open(t, lim, brokers, c.opts...)
			for n := 0; n < 10; {
				n += poll(t, cl, 5).NumRecords()
			}
			backlog := func(is func(n int64) bool) func() bool {
				return func() bool {
					for _, s := range lim.Stats().Subscriptions {
						if s.Topic == orders {
							return is(s.Backlog)
						}
					}
					return false
				}
			}
			throttletest.Until(t, "the backlog is known", backlog(func(n int64) bool { return n > 0 }))
			c.stop(cl)
			throttletest.Until(t, "there is none", backlog(func(n int64) bool { return n == 0 }))
		})
	}
}

// TestWhatIsRead: the backlog is that of the partitions that a Client reads, whatever was added to
// them and removed since it was opened.
func TestWhatIsRead(t *testing.T) {
	start := kgo.NewOffset().AtStart()
	add := func(c *franzthrottle.Client) {
		c.AddConsumePartitions(map[string]map[int32]kgo.Offset{"orders": {0: start}})
	}
	remove := func(ids ...int32) func(*franzthrottle.Client) {
		return func(c *franzthrottle.Client) { c.RemoveConsumePartitions(map[string][]int32{"orders": ids}) }
	}
	purge := func(c *franzthrottle.Client) { c.PurgeTopicsFromConsuming("orders") }
	topic := func(c *franzthrottle.Client) { c.AddConsumeTopics("orders") }
	one := kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"orders": {0: start}})
	all := kgo.ConsumeTopics("orders")
	for name, c := range map[string]struct {
		opt     kgo.Opt
		changes []func(*franzthrottle.Client)
		backlog int64
	}{
		"a partition":                      {one, nil, 100},
		"a partition, and the topic":       {one, []func(*franzthrottle.Client){topic}, 100}, // as in kgo
		"a partition, then the topic":      {one, []func(*franzthrottle.Client){remove(0), topic}, 700},
		"a partition, purged, then added":  {one, []func(*franzthrottle.Client){purge, add}, 100},
		"a partition, purged, then all":    {one, []func(*franzthrottle.Client){purge, topic}, 700},
		"the topic":                        {all, nil, 700},
		"the topic, and a partition":       {all, []func(*franzthrottle.Client){add}, 700},
		"the topic, a partition, not it":   {all, []func(*franzthrottle.Client){add, remove(0)}, 600},
		"the topic but a partition":        {all, []func(*franzthrottle.Client){remove(1)}, 500},
		"the topic but all partitions":     {all, []func(*franzthrottle.Client){remove(0, 1, 2)}, 0},
		"the topic without all, and again": {all, []func(*franzthrottle.Client){remove(0, 1, 2), topic}, 700},
		"the topic, purged, and again":     {all, []func(*franzthrottle.Client){purge, topic}, 700},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokers := broker(t, 3, "orders")
			write := func() {
				for id, n := range []int{50, 100, 200} {
					adaptertest.Write(t, brokers, "orders", id, make([]string, n))
				}
			}
			write()
			lim := throttletest.Open(t, policy.Policy{})
			limit := perSecond(1)
			limit.Paused = new(true)
			lim.Add(orders, limit)
			cl := open(t, lim, brokers, c.opt)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go cl.PollFetches(ctx)
			backlog := func() int64 {
				all := lim.Stats().Subscriptions
				if len(all) != 1 {
					return -2
				}
				return all[0].Backlog
			}
			throttletest.Until(t, "the backlog is known", func() bool { return backlog() > 0 })
			for _, change := range c.changes {
				change(cl)
			}
			write() // so that what was reported before does not count
			throttletest.Until(t, "the backlog is that of what is read", func() bool { return backlog() == c.backlog })
		})
	}
}

// TestOpenTransaction: a Client that reads committed records is behind by those up to the first
// open transaction, and another by all.
func TestOpenTransaction(t *testing.T) {
	for name, c := range map[string]struct {
		level   kgo.IsolationLevel
		backlog int64
	}{"committed": {kgo.ReadCommitted(), 50}, "uncommitted": {kgo.ReadUncommitted(), 1110}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokers := broker(t, 1, "orders")
			fill(t, brokers, "orders", 1, 50, 10)
			begin(t, brokers, "first", 50)
			begin(t, brokers, "second", 1000)
			fill(t, brokers, "orders", 1, 10, 10)
			lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(1), Paused: new(true)})
			cl := open(t, lim, brokers, kgo.ConsumeTopics("orders"), kgo.FetchIsolationLevel(c.level))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go cl.PollFetches(ctx)
			backlog := int64(-1)
			throttletest.Until(t, "the backlog is known", func() bool {
				if all := lim.Stats().Subscriptions; len(all) == 1 {
					backlog = all[0].Backlog
				}
				return backlog > 0
			})
			require.Equal(t, c.backlog, backlog)
		})
	}
}

// TestAFetchBeforeAnOpenTransaction: what a fetch tells of the records of an open transaction is no
// backlog.
func TestAFetchBeforeAnOpenTransaction(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 50, 10)
	commit := begin(t, brokers, "first", 50)
	begin(t, brokers, "second", 1000)
	lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(100_000)})
	c := open(t, lim, brokers, kgo.ConsumeTopics("orders"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	read := func() {
		for n := 0; n < 50; {
			n += poll(t, c, 0).NumRecords()
		}
	}
	read()
	throttletest.Until(t, "it has caught up", func() bool {
		nothing(t, c, soon)
		return lim.Stats().Subscriptions[0].Exempt
	})
	commit(kgo.TryCommit)
	read()
	require.LessOrEqual(t, lim.Stats().Subscriptions[0].Backlog, int64(50))
}

// begin writes records in a transaction. The function that it returns ends that.
func begin(t *testing.T, brokers []string, id string, n int) (end func(kgo.TransactionEndTry)) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.TransactionalID(id), kgo.DefaultProduceTopic("orders"))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	require.NoError(t, cl.BeginTransaction())
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = kgo.StringRecord("in a transaction")
	}
	require.NoError(t, cl.ProduceSync(t.Context(), records...).FirstErr())
	return func(how kgo.TransactionEndTry) { require.NoError(t, cl.EndTransaction(t.Context(), how)) }
}

// TestOnlyItsTopicsAreOpened: an error of a poll is of no topic.
func TestOnlyItsTopicsAreOpened(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 1, "orders")
	lim := throttletest.Open(t, perSecond(100))
	c, err := franzthrottle.New(lim.Limiter, []kgo.Opt{
		kgo.SeedBrokers(brokers...), kgo.FetchMaxWait(soon), kgo.ConsumeTopics("orders"),
	}, franzthrottle.WithTopic(func(name string) string {
		if name != "orders" {
			t.Errorf("topic %q", name)
		}
		return orders
	}))
	require.NoError(t, err)
	defer c.Close()
	for range 3 {
		nothing(t, c, soon)
	}
	fill(t, brokers, "orders", 1, 1, 10)
	poll(t, c, 0)
}
