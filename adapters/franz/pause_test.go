package franzthrottle_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	"github.com/dispatchthrottle/throttle/adapters/internal/adaptertest"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestAnIdleTopicDelaysNoOther: a fetch waits for records of an idle topic for FetchMaxWait, and
// records of another that come meanwhile do not wait for it: whether the limit is reached or not.
func TestAnIdleTopicDelaysNoOther(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{100, 1_000_000} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			brokers := broker(t, 1, "orders", "idle")
			lim := throttletest.Open(t, perSecond(limit))
			c, err := franzthrottle.New(lim.Limiter, []kgo.Opt{kgo.SeedBrokers(brokers...),
				kgo.ConsumeTopics("orders", "idle"), kgo.FetchMaxWait(throttletest.Patience)})
			require.NoError(t, err)
			defer c.Close()
			for i := range 50 {
				adaptertest.Write(t, brokers, "orders", 0, []string{"a", "b", "c"})
				for n := 0; n < 3; {
					n += poll(t, c, 0).NumRecords() // does not wait for FetchMaxWait
				}
				if i == 25 {
					time.Sleep(time.Second) // what was passed on is long ago
				}
			}
		})
	}
}

// TestAPausedPartitionHoldsUpNoOther of its topic, though records of it are kept.
func TestAPausedPartitionHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 2, "orders")
	for range 20 { // batches
		fill(t, brokers, "orders", 2, 50, 10)
	}
	c := open(t, throttletest.Open(t, perSecond(1000)), brokers, kgo.ConsumeTopics("orders"), kgo.FetchMaxPartitionBytes(1000))
	n := map[int32]int{}
	read := func(r *kgo.Record) { n[r.Partition]++ }
	for n[0]+n[1] < 50 {
		poll(t, c, 0).EachRecord(read)
	}
	c.PauseFetchPartitions(map[string][]int32{"orders": {1}})
	for n[0] < 1000 {
		poll(t, c, 0).EachRecord(read)
	}
	require.Less(t, n[1], 1000)
}

// TestKeptIsBounded: a Client keeps no more than what it has passed on in 250 ms, and one fetched
// batch of each partition. If somebody has kgo resume the topic, one more comes of each.
func TestKeptIsBounded(t *testing.T) {
	t.Parallel()
	const (
		batch = 50
		rate  = 80
		ahead = rate * 2 / 4 // in 250 ms, with the slack of a limit
	)
	for _, partitions := range []int{1, 3} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) {
			t.Parallel()
			brokers := broker(t, partitions, "orders")
			for range 20 { // batches
				fill(t, brokers, "orders", partitions, batch, 10)
			}
			c := open(t, throttletest.Open(t, perSecond(rate)), brokers, member(kgo.FetchMaxPartitionBytes(1000))...)
			bound, resumed := ahead+partitions*batch, false
			for n := 0; n < 250; {
				n += poll(t, c, 0).NumRecords()
				kept := -n
				for _, polled := range c.Client.UncommittedOffsets()["orders"] { // nothing is committed
					kept += int(polled.Offset)
				}
				require.LessOrEqual(t, kept, bound)
				if n > 100 && !resumed {
					c.Client.ResumeFetchTopics("orders")
					bound += partitions * batch
					resumed = true
				}
			}
		})
	}
}

// TestMax: a poll returns no more records than it was asked for, of topics with a limit and
// without.
func TestMax(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 1, "orders", "free")
	fill(t, brokers, "orders", 1, 500, 10)
	fill(t, brokers, "free", 1, 500, 10)
	lim := throttletest.Open(t, policy.Policy{})
	lim.Add(orders, perSecond(500))
	c := open(t, lim, brokers, kgo.ConsumeTopics("orders", "free"), kgo.FetchMaxPartitionBytes(1000))
	for n := 0; n < 1000; {
		got := poll(t, c, 1+n%7).NumRecords()
		require.LessOrEqual(t, got, 1+n%7)
		n += got
	}
}

// TestEachPartitionOnce: a poll returns what it has of a partition together and in order, whatever
// the batches and tags. Its caller may work on several partitions at once.
func TestEachPartitionOnce(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 2, "orders")
	fill(t, brokers, "orders", 2, 500, 10)
	tagOf := franzthrottle.WithTagOf(func(r *kgo.Record) string { return strconv.FormatInt(r.Offset%2, 10) })
	opts := []kgo.Opt{kgo.SeedBrokers(brokers...), kgo.ConsumeTopics("orders"), kgo.FetchMaxPartitionBytes(500)}
	c, err := franzthrottle.New(throttletest.Open(t, perSecond(2000)).Limiter, opts, tagOf)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	next, together := make(map[int32]int64), 0
	for n := 0; n < 1000; {
		fetches, seen := poll(t, c, 0), make(map[int32]bool)
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			require.False(t, seen[p.Partition])
			seen[p.Partition] = true
			for _, r := range p.Records {
				require.Equal(t, next[p.Partition], r.Offset)
				next[p.Partition]++
			}
			together = max(together, len(p.Records))
			n += len(p.Records)
		})
	}
	require.Greater(t, together, 1, "records with several tags came together")
}

// counted returns an option that counts the records that kgo hands out.
func counted() (opt kgo.Opt, n *atomic.Int64) {
	n = new(atomic.Int64)
	return kgo.WithHooks(onUnbuffered(func(*kgo.Record) { n.Add(1) })), n
}

// keep polls until a Client whose topics are paused keeps all records.
func keep(t *testing.T, c *franzthrottle.Client, polled *atomic.Int64, all int64) {
	t.Helper()
	throttletest.Until(t, "all records are kept", func() bool {
		nothing(t, c, soon)
		return polled.Load() == all
	})
}

// TestTurns: topics of a Client come in turn, however few records a poll asks for.
func TestTurns(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 1, "orders", "other")
	fill(t, brokers, "orders", 1, 100, 10)
	fill(t, brokers, "other", 1, 100, 10)
	lim := throttletest.Open(t, policy.Policy{Paused: new(true)})
	hook, polled := counted()
	c := open(t, lim, brokers, kgo.ConsumeTopics("orders", "other"), hook)
	keep(t, c, polled, 200)
	c.PauseFetchTopics("orders", "other") // one might get its permits before the other
	lim.Set(policy.Policy{})
	throttletest.Until(t, "no call waits, and no limit applies", func() bool {
		nothing(t, c, soon)
		return waiting(lim, 0)() && !slices.ContainsFunc(lim.Stats().Subscriptions, func(s dispatch.SubscriptionStats) bool {
			return len(s.Limits) > 0
		})
	})
	c.ResumeFetchTopics("orders", "other")
	n := map[string]int{}
	for n["orders"]+n["other"] < 100 {
		poll(t, c, 1).EachRecord(func(r *kgo.Record) { n[r.Topic]++ })
	}
	require.InDelta(t, n["orders"], n["other"], 20)
}

// TestAPlaceInTheLine: of two Clients of a topic, the one that reads records of another topic
// meanwhile gets its part.
func TestAPlaceInTheLine(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 2, "orders", "free")
	fill(t, brokers, "orders", 2, 1000, 10)
	lim := throttletest.Open(t, policy.Policy{})
	limit := perSecond(400)
	limit.Paused = new(true)
	lim.Add(orders, limit)
	start := kgo.NewOffset().AtStart()
	of := func(id int32) map[int32]kgo.Offset { return map[int32]kgo.Offset{id: start} }
	hook, polled := counted()
	one := open(t, lim, brokers, hook, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"orders": of(0)}))
	keep(t, one, polled, 1000)
	other := open(t, lim, brokers, hook, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		"orders": of(1), "free": {0: start, 1: start}}))
	keep(t, other, polled, 2000)
	fill(t, brokers, "free", 2, 50_000, 10)
	limit.Paused = new(false)
	lim.Add(orders, limit)
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	got := make(chan int)
	for _, c := range []*franzthrottle.Client{one, other} {
		go func() {
			n := 0
			for ctx.Err() == nil {
				time.Sleep(time.Millisecond) // for the work
				c.PollRecords(ctx, 5).EachRecord(func(r *kgo.Record) {
					if r.Topic != "orders" {
						return
					}
					if n++; n == 500 {
						cancel()
					}
				})
			}
			got <- n
		}()
	}
	a, b := <-got, <-got
	require.Greater(t, min(a, b), 100)
}
