package franzthrottle_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A tally counts which records were returned.
type tally struct {
	mu   sync.Mutex
	seen map[string]int
}

func (c *tally) add(r *kgo.Record) { c.addValue(fmt.Sprintf("%d/%d", r.Partition, r.Offset)) }

func (c *tally) addValue(value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	c.seen[value]++
}

// count returns how many records were returned, and how many of them more than once.
func (c *tally) count() (n, again int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, times := range c.seen {
		if times > 1 {
			again++
		}
	}
	return len(c.seen), again
}

// An order checks that the records of a partition come one after the other, from each time that it
// is assigned to a client.
type order struct {
	mu   sync.Mutex
	next map[int32]int64
}

// assigned is a callback for partitions that are assigned.
func (o *order) assigned(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range partitions["orders"] {
		delete(o.next, id)
	}
}

func (o *order) add(t *testing.T, r *kgo.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if want, found := o.next[r.Partition]; found {
		assert.Equal(t, want, r.Offset, "partition %d", r.Partition)
	}
	o.next[r.Partition] = r.Offset + 1
}

// TestRebalances: members come and go while records wait; none is lost, those of a partition come
// in order, and a commit when partitions are taken away is one of the records that were returned,
// so that none comes twice.
func TestRebalances(t *testing.T) {
	const partitions, each, members = 6, 300, 4
	committing := kgo.OnPartitionsRevoked(func(ctx context.Context, cl *kgo.Client, _ map[string][]int32) {
		if err := cl.CommitUncommittedOffsets(ctx); err != nil {
			t.Log(err)
		}
	})
	for name, opts := range map[string][]kgo.Opt{
		"cooperative":         {kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.DisableAutoCommit(), committing, kgo.BlockRebalanceOnPoll()},
		"eager":               {kgo.Balancers(kgo.RangeBalancer()), kgo.DisableAutoCommit(), committing, kgo.BlockRebalanceOnPoll()},
		"marks, cooperative":  {kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.AutoCommitMarks(), kgo.BlockRebalanceOnPoll()},
		"marks, not blocking": {kgo.Balancers(kgo.RangeBalancer()), kgo.AutoCommitMarks()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokers := broker(t, partitions, "orders")
			fill(t, brokers, "orders", partitions, each, 10)
			lim := throttletest.Open(t, perSecond(600))
			opts := append([]kgo.Opt{
				kgo.SeedBrokers(brokers...), kgo.FetchMaxWait(soon), kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("billing"),
				kgo.HeartbeatInterval(50 * time.Millisecond),
			}, opts...)
			blocks := name != "marks, not blocking"
			var got tally
			ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
			defer cancel()
			var running sync.WaitGroup
			for range members {
				running.Go(func() {
					for ctx.Err() == nil {
						came := order{next: map[int32]int64{}}
						c, err := franzthrottle.New(lim.Limiter, append(slices.Clip(opts), kgo.OnPartitionsAssigned(came.assigned)))
						if !assert.NoError(t, err) {
							return
						}
						until, stop := context.WithTimeout(ctx, time.Duration(500+rand.IntN(1500))*time.Millisecond)
						for until.Err() == nil {
							fetches := c.PollRecords(until, 1+rand.IntN(50))
							fetches.EachRecord(func(r *kgo.Record) {
								if blocks { // else its partition may be assigned again by now
									came.add(t, r)
								}
								got.add(r)
							})
							c.MarkCommitRecords(fetches.Records()...)
							c.AllowRebalance()
							if n, _ := got.count(); n == partitions*each {
								cancel()
							}
						}
						stop()
						c.Close()
					}
				})
			}
			running.Wait()
			n, again := got.count()
			assert.Equal(t, partitions*each, n)
			t.Log("again:", again)
			if blocks {
				assert.Zero(t, again)
			}
		})
	}
}

// TestRevokedRecords: a Client returns no record of a partition that was revoked, even if another
// goroutine calls AllowRebalance all the time.
func TestRevokedRecords(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 8, "orders")
	for range 50 { // batches
		fill(t, brokers, "orders", 8, 10, 10)
	}
	lim := throttletest.Open(t, perSecond(1000))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var mu sync.Mutex
	owned := map[int32]bool{}
	own := func(owns bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			mu.Lock()
			defer mu.Unlock()
			for _, id := range partitions["orders"] {
				owned[id] = owns
			}
		}
	}
	sticky := kgo.Balancers(kgo.CooperativeStickyBalancer())
	c := open(t, lim, brokers, member(sticky, kgo.FetchMaxPartitionBytes(300),
		kgo.OnPartitionsAssigned(own(true)), kgo.OnPartitionsRevoked(own(false)))...)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		for ctx.Err() == nil {
			c.AllowRebalance() // kgo ignores it without BlockRebalanceOnPoll
			time.Sleep(time.Microsecond)
		}
	})
	running.Go(func() {
		for ctx.Err() == nil {
			other := open(t, lim, brokers, member(sticky)...)
			time.Sleep(200 * time.Millisecond)
			other.Close()
			time.Sleep(200 * time.Millisecond)
		}
	})
	n := 0
	for ctx.Err() == nil {
		fetches := c.PollRecords(ctx, 0)
		mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) {
			assert.True(t, owned[r.Partition], "a record of partition %d", r.Partition)
			n++
		})
		mu.Unlock()
	}
	require.Positive(t, n)
}

// TestLostPartitions: what is kept of partitions that a member has lost is dropped, and neither
// returned nor committed: not by the user's callback, which commits too late, and not with marks.
func TestLostPartitions(t *testing.T) {
	for name, auto := range map[string]kgo.Opt{"commits": kgo.DisableAutoCommit(), "marks": kgo.AutoCommitMarks()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokers := broker(t, 2, "orders")
			fill(t, brokers, "orders", 2, 200, 10)
			lim := throttletest.Open(t, perSecond(200))
			lost := make(chan error, 1)
			hook, polled := counted()
			c := open(t, lim, brokers, kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("billing"), auto, hook,
				kgo.HeartbeatInterval(50*time.Millisecond), kgo.AutoCommitInterval(time.Hour),
				kgo.OnPartitionsLost(func(ctx context.Context, cl *kgo.Client, _ map[string][]int32) {
					lost <- cl.CommitUncommittedOffsets(ctx)
				}))
			returned := 0
			for returned < 30 || polled.Load() < 400 {
				fetches := poll(t, c, 10)
				c.MarkCommitRecords(fetches.Records()...)
				returned += fetches.NumRecords()
			}
			require.Less(t, returned, 400, "none is kept")
			lim.Set(policy.Policy{Paused: new(true)})
			removeMember(t, brokers, c)
			select {
			case err := <-lost:
				require.Error(t, err, "the member is unknown")
			case <-time.After(throttletest.Patience):
				require.Fail(t, "the callback was not called")
			}
			lim.Set(policy.Policy{})
			require.Empty(t, committed(t, brokers))
			next := map[int32]int64{}
			for next[0]+next[1] < 400 { // it is a member again, and nothing was committed
				ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
				fetches := c.PollFetches(ctx) // kgo's first tells of the loss
				cancel()
				require.NotErrorIs(t, fetches.Err(), context.DeadlineExceeded)
				fetches.EachRecord(func(r *kgo.Record) {
					require.Equal(t, next[r.Partition], r.Offset, "partition %d", r.Partition)
					next[r.Partition]++
				})
			}
		})
	}
}

// removeMember has the group forget a member, which hears of it by its next heartbeat.
func removeMember(t *testing.T, brokers []string, c *franzthrottle.Client) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	require.NoError(t, err)
	defer cl.Close()
	member := kmsg.NewLeaveGroupRequestMember()
	member.MemberID, _ = c.GroupMetadata()
	r := kmsg.NewPtrLeaveGroupRequest()
	r.Group, r.Members = "billing", append(r.Members, member)
	resp, err := r.RequestWith(t.Context(), cl)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(resp.ErrorCode))
	require.Len(t, resp.Members, 1)
	require.NoError(t, kerr.ErrorForCode(resp.Members[0].ErrorCode))
}

// TestCallsThatMoveNothing drop no records.
func TestCallsThatMoveNothing(t *testing.T) {
	alone := []kgo.Opt{kgo.ConsumeTopics("orders")}
	for name, c := range map[string]struct {
		opts []kgo.Opt
		call func(*franzthrottle.Client)
	}{
		"SetOffsets": {alone, func(c *franzthrottle.Client) {
			c.SetOffsets(map[string]map[int32]kgo.EpochOffset{"orders": {}})
		}},
		"RemoveConsumePartitions": {alone, func(c *franzthrottle.Client) {
			c.RemoveConsumePartitions(map[string][]int32{"orders": nil})
		}},
		"RemoveConsumePartitions of a group": {member(), func(c *franzthrottle.Client) {
			c.RemoveConsumePartitions(map[string][]int32{"orders": {0}})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokers := broker(t, 1, "orders")
			fill(t, brokers, "orders", 1, 200, 10)
			cl := open(t, throttletest.Open(t, perSecond(200)), brokers, c.opts...)
			for next := int64(0); next < 200; {
				poll(t, cl, 0).EachRecord(func(r *kgo.Record) {
					require.Equal(t, next, r.Offset)
					next++
				})
				c.call(cl)
			}
		})
	}
}

// TestRefused: options with which records could be lost are refused, with what to do.
func TestRefused(t *testing.T) {
	lim := throttletest.Open(t, policy.Policy{})
	for want, opts := range map[string][]kgo.Opt{
		"want kgo.AutoCommitMarks":  {kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t")},
		"kgo.DisableAutoCommit":     {kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t"), kgo.GreedyAutoCommit()},
		"a share group":             {kgo.ShareGroup("g"), kgo.ConsumeTopics("t")},
		"want NewSession":           {kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t"), kgo.TransactionalID("x"), kgo.DisableAutoCommit()},
		"a group was not specified": {kgo.DisableAutoCommit()},
	} {
		_, err := franzthrottle.New(lim.Limiter, opts)
		assert.ErrorContains(t, err, want, want)
	}
	_, err := franzthrottle.NewSession(lim.Limiter, []kgo.Opt{kgo.ConsumerGroup("g"), kgo.DisableAutoCommit()})
	require.ErrorContains(t, err, "want kgo.TransactionalID")
}
