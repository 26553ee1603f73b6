package franzthrottle

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// An owing is a Client of two topics. A record of one, orders, is kept, since its limit is paused;
// the other has no limit.
type owing struct {
	*Client
	t    *testing.T
	left *int // records of the other topic that were not returned
}

func newOwing(t *testing.T, opts ...kgo.Opt) owing {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "free"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	lim := throttletest.Open(t, policy.Policy{})
	lim.Add("kafka://public/default/orders", policy.Policy{Paused: new(true)})
	c, err := New(lim.Limiter, append([]kgo.Opt{
		kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics("orders", "free"), kgo.DefaultProduceTopic("free"),
	}, opts...))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	o := owing{c, t, new(int)}
	require.NoError(t, c.ProduceSync(t.Context(), &kgo.Record{Topic: "orders"}).FirstErr())
	for !o.keepsOrders() {
		o.write()
		o.poll()
	}
	for *o.left > 0 {
		o.poll()
	}
	return o
}

func (o owing) keepsOrders() bool {
	o.shelf.mu.Lock()
	defer o.shelf.mu.Unlock()
	orders := o.shelf.topics["orders"]
	return orders != nil && orders.count > 0
}

// work has the caller work for a while between two polls.
func (o owing) work() { o.polledAt = o.polledAt.Add(-aheadFor) }

// miss has orders miss a turn while the caller works.
func (o owing) miss() {
	o.work()
	o.shelf.mu.Lock()
	defer o.shelf.mu.Unlock()
	o.shelf.topics["orders"].owed = leastOwed
}

// waits reports whether a poll waits.
func (o owing) waits() bool {
	o.shelf.mu.Lock()
	defer o.shelf.mu.Unlock()
	return o.shelf.waiting != nil
}

// write writes a record of the topic without a limit.
func (o owing) write() {
	o.t.Helper()
	require.NoError(o.t, o.ProduceSync(o.t.Context(), kgo.StringRecord("a")).FirstErr())
	*o.left++
}

// poll waits for records of that topic.
func (o owing) poll() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.t.Context()), throttletest.Patience)
	defer cancel()
	*o.left -= o.PollFetches(ctx).NumRecords()
}

// polls is poll in another goroutine. What it returns is closed when the poll has ended.
func (o owing) polls() (ended <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.poll()
	}()
	return done
}

// TestOwedFirst: topics that have missed a turn come first. The others keep their order.
func TestOwedFirst(t *testing.T) {
	a, b, c, d := &topic{}, &topic{owed: 1}, &topic{}, &topic{owed: 2}
	s := &shelf{order: []*topic{a, b, c, d}}
	s.owedFirst()
	require.True(t, slices.Equal([]*topic{d, b, a, c}, s.order))
}

// TestNoTurnComes: polls do not wait for long for the turn of a topic whose limit is paused.
func TestNoTurnComes(t *testing.T) {
	o := newOwing(t)
	o.miss()
	for o.shelf.owes() {
		o.write()
		o.work()
		o.poll()
	}
}

// TestADeadlineInATurn: a poll whose context ends while it waits for the turn of another topic
// returns the records that are there.
func TestADeadlineInATurn(t *testing.T) {
	o := newOwing(t)
	o.write()
	throttletest.Until(t, "records come with a deadline", func() bool {
		o.miss()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		*o.left -= o.PollFetches(ctx).NumRecords()
		return *o.left == 0
	})
}

// TestACommitWhileATurnIsAwaited: no record is committed that was not returned.
func TestACommitWhileATurnIsAwaited(t *testing.T) {
	o := newOwing(t, kgo.ConsumerGroup("billing"), kgo.DisableAutoCommit())
	require.NoError(t, o.CommitUncommittedOffsets(t.Context()))
	before := o.CommittedOffsets()["free"][0].Offset
	o.write()
	o.miss()
	returned := o.polls()
	for {
		require.NoError(t, o.CommitUncommittedOffsets(t.Context()))
		committed := o.CommittedOffsets()["free"][0].Offset
		if o.waits() {
			require.Equal(t, before, committed)
		}
		select {
		case <-returned:
			return
		default:
		}
	}
}

// TestARebalanceWhileATurnIsAwaited: it does not wait for the poll.
func TestARebalanceWhileATurnIsAwaited(t *testing.T) {
	var o owing
	var revoked, first atomic.Bool
	o = newOwing(t, kgo.ConsumerGroup("billing"), kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(20*time.Millisecond), kgo.Balancers(kgo.RangeBalancer()),
		kgo.OnPartitionsRevoked(func(context.Context, *kgo.Client, map[string][]int32) {
			first.Store(o.waits())
			revoked.Store(true)
		}))
	throttletest.Until(t, "a rebalance comes first", func() bool {
		for !o.keepsOrders() { // they were dropped in the last one
			o.write()
			o.poll()
		}
		o.write()
		o.miss()
		revoked.Store(false)
		returned := o.polls()
		throttletest.Until(t, "it waits", func() bool {
			select {
			case <-returned:
				return true
			default:
				return o.waits()
			}
		})
		o.ForceRebalance()
		throttletest.Until(t, "it is revoked", revoked.Load)
		<-returned
		return first.Load()
	})
}
