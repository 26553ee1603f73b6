package kafkathrottle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// groupConfig returns the configuration of a Reader that notices a rebalance within 100 ms.
func groupConfig(brokers []string, topic string) kafka.ReaderConfig {
	return kafka.ReaderConfig{
		Brokers: brokers, Topic: topic, GroupID: topic + "-billing",
		MaxWait: soon, ReadLagInterval: -1,
		HeartbeatInterval: 100 * time.Millisecond,
		SessionTimeout:    6 * time.Second, RebalanceTimeout: 6 * time.Second,
	}
}

// A tally has the offsets of returned messages, by partition, in order.
type tally struct {
	mu       sync.Mutex
	offsets  map[int][]int64
	messages int
	failed   int // commits
}

func (c *tally) add(m kafka.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.offsets == nil {
		c.offsets = map[int][]int64{}
	}
	c.offsets[m.Partition] = append(c.offsets[m.Partition], m.Offset)
	c.messages++
}

func (c *tally) commitFailed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed++
}

func (c *tally) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.messages
}

// distinct counts the messages without those that came again.
func (c *tally) distinct() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, offsets := range c.offsets {
		n += len(slices.Compact(slices.Sorted(slices.Values(offsets))))
	}
	return n
}

// check requires each of the first n offsets of each partition, in order. Messages whose commit
// failed may come again, in order, and so may as many as were being committed in a rebalance:
// kafka-go commits those in the next generation, when their partitions may be read again already.
func (c *tally) check(t *testing.T, partitions, n, committing int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	again := 0
	for p := range partitions {
		next := int64(0)
		for i, offset := range c.offsets[p] {
			require.LessOrEqual(t, offset, next, "partition %d: messages were skipped, at %d of %v", p, i, c.offsets[p])
			if offset < next {
				again++
			}
			next = max(next, offset+1)
		}
		require.EqualValues(t, n, next, "partition %d", p)
	}
	t.Logf("%d messages, %d of them twice", c.messages, again)
	require.LessOrEqual(t, again, c.failed+committing)
}

// consume reads and commits messages one by one until ctx ends or r is closed.
func consume(ctx context.Context, t *testing.T, wg *sync.WaitGroup, r *kafkathrottle.Reader, c *tally) {
	wg.Go(func() {
		for ctx.Err() == nil {
			m, err := r.FetchMessage(ctx)
			if errors.Is(err, io.EOF) {
				return
			} else if err != nil {
				continue // ctx
			}
			c.add(m)
			commit, done := context.WithTimeout(context.WithoutCancel(ctx), throttletest.Patience)
			if err := r.CommitMessages(commit, m); err != nil {
				assert.NotErrorIs(t, err, context.DeadlineExceeded)
				t.Logf("commit: %v", err)
				c.commitFailed()
			}
			done()
		}
	})
}

// Readers join and leave a group whose members all wait for permits. Each message is returned, in
// the order of its partition, and only those come twice whose commit failed or was under way.
func TestRebalanceWhileWaiting(t *testing.T) {
	t.Parallel()
	const partitions, each = 4, 300
	k := services.Kafka(t)
	name := services.Name(t)
	k.CreateTopic(name, partitions)
	fill(t, k.Brokers, name, partitions, each, 100)
	lim := throttletest.Open(t,
		policy.Policy{MessageRate: policy.PerSecond(100), CaughtUp: policy.CaughtUp{Throttle: new(true)}})
	cfg := groupConfig(k.Brokers, name)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var c tally
	newMember := func() *kafkathrottle.Reader {
		r := newReader(t, cfg, lim)
		consume(ctx, t, &wg, r, &c)
		return r
	}
	newMember()
	require.Eventually(t, func() bool { return c.count() > 50 }, throttletest.Patience, 10*time.Millisecond)
	a, b := newMember(), newMember()
	for i, r := range []*kafkathrottle.Reader{a, b} {
		before := c.count()
		require.Eventually(t, func() bool { return c.count() > before+100 }, throttletest.Patience, 10*time.Millisecond)
		require.NoError(t, r.Close(), i)
	}
	lim.Set(policy.Policy{MessageRate: policy.PerSecond(1000), CaughtUp: policy.CaughtUp{Throttle: new(true)}})
	throttletest.Until(t, "all messages have come", func() bool { return c.distinct() == partitions*each })
	time.Sleep(200 * time.Millisecond) // for messages that come too often
	cancel()
	wg.Wait()
	const rebalances, members = 4, 3
	c.check(t, partitions, each, rebalances*members)
}

// A message that waits for its permit goes to the owner of its partition after the rebalance, once.
func TestAWaitingMessageGoesBackToTheGroup(t *testing.T) {
	const partitions, each = 2, 20
	k := services.Kafka(t)
	name := services.Name(t)
	k.CreateTopic(name, partitions)
	fill(t, k.Brokers, name, partitions, each, 100)
	lim := throttletest.Open(t, policy.Policy{Paused: new(true)})
	cfg := groupConfig(k.Brokers, name)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var c tally
	r := newReader(t, cfg, lim)
	consume(ctx, t, &wg, r, &c)
	require.Eventually(t, func() bool { return waits(lim) }, throttletest.Patience, time.Millisecond)
	consume(ctx, t, &wg, newReader(t, cfg, lim), &c)
	require.Eventually(t, func() bool { return lim.Stats().Subscriptions[0].Waiting == 2 },
		throttletest.Patience, time.Millisecond,
		"both wait: each has a partition")
	require.Zero(t, c.count())
	lim.Set(policy.Policy{})
	throttletest.Until(t, "all messages have come", func() bool { return c.distinct() == partitions*each })
	time.Sleep(200 * time.Millisecond)
	cancel()
	wg.Wait()
	c.check(t, partitions, each, 0)
}

// A Reader of Wrap does not see rebalances: it returns the message that waited, and none is lost.
func TestWrapLosesNothingInARebalance(t *testing.T) {
	const partitions, each = 2, 100
	k := services.Kafka(t)
	name := services.Name(t)
	k.CreateTopic(name, partitions)
	fill(t, k.Brokers, name, partitions, each, 100)
	lim := throttletest.Open(t,
		policy.Policy{MessageRate: policy.PerSecond(50), CaughtUp: policy.CaughtUp{Throttle: new(true)}})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var c tally
	for range 2 {
		r, err := kafkathrottle.Wrap(kafka.NewReader(groupConfig(k.Brokers, name)), lim.Limiter)
		require.NoError(t, err)
		defer func() { require.NoError(t, r.Close()) }()
		consume(ctx, t, &wg, r, &c)
		read := int64(0)
		require.Eventually(t, func() bool { read += r.Stats().Messages; return read > 5 },
			throttletest.Patience, 10*time.Millisecond)
	}
	lim.Set(policy.Policy{})
	seen := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for p := range partitions {
			if n := len(c.offsets[p]); n == 0 || c.offsets[p][n-1] != each-1 {
				return false
			}
		}
		return true
	}
	require.Eventually(t, seen, throttletest.Patience, 10*time.Millisecond)
	cancel()
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range partitions {
		distinct := map[int64]bool{}
		for _, offset := range c.offsets[p] {
			distinct[offset] = true
		}
		require.Len(t, distinct, each, fmt.Sprint("partition ", p))
	}
}

// The largest message arrives whole with the smallest MaxBytes.
func TestALargeMessageComesWhole(t *testing.T) {
	k := services.Kafka(t)
	name := services.Name(t)
	k.CreateTopic(name, 1)
	fill(t, k.Brokers, name, 1, 3, 1_000_000)
	lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(10)})
	r := newReader(t, groupConfig(k.Brokers, name), lim)
	require.Equal(t, 16<<10, r.Reader.Config().MaxBytes)
	for i := range 3 {
		m, err := r.ReadMessage(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, i, m.Offset)
		require.Len(t, m.Value, 1_000_000)
	}
}

// Without a coordinator for the group, as on a new broker, a call fails after kafka-go's
// attempts; a later call continues.
func TestAGroupThatCannotFormIsAnError(t *testing.T) {
	c, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 5, 10)
	var asked atomic.Int32
	c.ControlKey(int16(kmsg.FindCoordinator), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if asked.Add(1) > 9 {
			return nil, nil, false
		}
		away := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
		away.ErrorCode = int16(kafka.GroupCoordinatorNotAvailable)
		return away, nil, true
	})
	cfg := groupConfig(brokers, "orders")
	cfg.JoinGroupBackoff = 10 * time.Millisecond
	r := newReader(t, cfg, throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(1000)}))
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	_, err := r.FetchMessage(ctx)
	require.ErrorIs(t, err, kafka.GroupCoordinatorNotAvailable)
	require.Eventually(t, func() bool {
		m, err := r.FetchMessage(ctx)
		return err == nil && m.Offset == 0
	}, throttletest.Patience, time.Millisecond)
	for i := range 4 {
		require.EqualValues(t, i+1, fetch(t, r).Offset)
	}
}
