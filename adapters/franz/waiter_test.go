package franzthrottle_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// waiting returns a function that reports whether n calls wait for permits.
func waiting(lim *throttletest.Limiter, n int) func() bool {
	return func() bool {
		all := 0
		for _, s := range lim.Stats().Subscriptions {
			all += s.Waiting
		}
		return all == n
	}
}

// strictly is a strict limit of n messages a second.
func strictly(n int64) policy.Policy {
	p := perSecond(n)
	p.Sharing.Mode = policy.Strict
	return p
}

// TestAClientThatDoesNotPollHoldsNoPermit for longer than a moment.
func TestAClientThatDoesNotPollHoldsNoPermit(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 2, "orders")
	fill(t, brokers, "orders", 2, 100, 10)
	lim := throttletest.Open(t, policy.Policy{})
	limit := perSecond(1000)
	limit.MaxInFlight, limit.Paused = new(int64(1)), new(true)
	lim.Add(orders, limit)
	start := kgo.NewOffset().AtStart()
	part := func(id int32) kgo.Opt {
		return kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"orders": {id: start}})
	}
	hook, polled := counted()
	one := open(t, lim, brokers, part(0), hook)
	other := open(t, lim, brokers, part(1))
	keep(t, one, polled, 100)
	throttletest.Until(t, "a call waits", func() bool {
		nothing(t, one, soon)
		return waiting(lim, 1)()
	})
	limit.Paused = new(false)
	lim.Add(orders, limit)
	for n := 0; n < 100; {
		n += poll(t, other, 0).NumRecords()
	}
	for n := 0; n < 100; { // its records are there
		n += poll(t, one, 0).NumRecords()
	}
}

// TestAClosedLimiter: each poll tells that the Limiter is closed, also of a topic that is seen for
// the first time then.
func TestAClosedLimiter(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 100, 10)
	lim := throttletest.Open(t, perSecond(10))
	c := open(t, lim, brokers, kgo.ConsumeTopics("orders"))
	require.NoError(t, lim.Close())
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
		require.ErrorIs(t, c.PollFetches(ctx).Err(), dispatch.ErrClosed)
		cancel()
	}
}

// TestAPausedTopicHoldsNoPermit: a Client that has paused a topic leaves its permits to others.
func TestAPausedTopicHoldsNoPermit(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 2, "orders", "free")
	fill(t, brokers, "orders", 2, 100, 10)
	lim := throttletest.Open(t, policy.Policy{})
	limit := perSecond(1000)
	limit.MaxInFlight, limit.Paused = new(int64(1)), new(true)
	lim.Add(orders, limit)
	start := kgo.NewOffset().AtStart()
	of := func(id int32) map[int32]kgo.Offset { return map[int32]kgo.Offset{id: start} }
	one := open(t, lim, brokers, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"orders": of(0), "free": of(0)}))
	other := open(t, lim, brokers, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"orders": of(1)}))
	polled := make(chan struct{})
	go func() {
		defer close(polled)
		one.PollFetches(t.Context())
	}()
	throttletest.Until(t, "a call waits", waiting(lim, 1))
	one.PauseFetchTopics("orders")
	throttletest.Until(t, "none waits", waiting(lim, 0))
	limit.Paused = new(false)
	lim.Add(orders, limit)
	for n := 0; n < 100; {
		n += poll(t, other, 0).NumRecords()
	}
	one.Close()
	<-polled
}

// TestAWaiterOfAnotherTag: records do not wait behind those of another tag that the user has
// paused.
func TestAWaiterOfAnotherTag(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 2, "orders")
	fill(t, brokers, "orders", 2, 100, 10)
	lim := throttletest.Open(t, policy.Policy{})
	lim.Add("tag:0", throttletest.Quota(0))
	lim.Add("tag:1", throttletest.Quota(0))
	hook, polled := counted()
	c, err := franzthrottle.New(lim.Limiter, []kgo.Opt{
		kgo.SeedBrokers(brokers...), kgo.FetchMaxWait(soon), kgo.ConsumeTopics("orders"), hook,
	}, franzthrottle.WithTagOf(func(r *kgo.Record) string { return string(r.Value[:1]) }))
	require.NoError(t, err)
	defer c.Close()
	keep(t, c, polled, 200)
	// A waiter waits for the tag of the first record: in one of these rounds, that one is paused.
	for id, free := range map[int32]string{0: "tag:1", 1: "tag:0"} {
		paused := map[string][]int32{"orders": {id}}
		throttletest.Until(t, "records wait", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			return c.PollRecords(ctx, 1).NumRecords() == 0
		})
		c.PauseFetchPartitions(paused)
		lim.Add(free, throttletest.Quota(1000))
		poll(t, c, 1)
		lim.Add(free, throttletest.Quota(0))
		c.ResumeFetchPartitions(paused)
	}
}
