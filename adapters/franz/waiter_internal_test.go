package franzthrottle

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestASlotExpires: a poll does not take a strict slot that a waiter has got and that has expired.
func TestASlotExpires(t *testing.T) {
	for name, expiry := range map[string]time.Duration{"it has": 2 * time.Millisecond, "it has not": time.Minute} {
		t.Run(name, func(t *testing.T) {
			limit := policy.Policy{MessageRate: policy.PerSecond(1), CaughtUp: policy.CaughtUp{Throttle: new(true)}}
			limit.Sharing.Mode, limit.Sharing.PermitExpiry = policy.Strict, policy.Duration(expiry)
			sub, err := throttletest.Open(t, limit).Subscription("kafka://public/default/orders", "billing")
			require.NoError(t, err)
			grant, err := sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
			time.Sleep(4 * time.Millisecond)
			topic := &topic{waiter: &waiter{sub: sub, stop: func() {}, ended: true, grant: grant}}
			grant, err = topic.permits(sub, 1)
			expired := expiry < time.Second
			require.Equal(t, expired, err != nil)
			require.Equal(t, expired, topic.owed > 0)
			require.Equal(t, !expired, grant.N() == 1)
		})
	}
}

// TestNoTurnComes: polls do not wait for long for the turn of a topic whose limit is paused.
func TestNoTurnComes(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "free"))
	require.NoError(t, err)
	defer cluster.Close()
	lim := throttletest.Open(t, policy.Policy{})
	lim.Add("kafka://public/default/orders", policy.Policy{Paused: new(true)})
	c, err := New(lim.Limiter, []kgo.Opt{
		kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics("orders", "free"), kgo.DefaultProduceTopic("free"),
	})
	require.NoError(t, err)
	defer c.Close()
	next := func() {
		require.NoError(t, c.ProduceSync(t.Context(), kgo.StringRecord("a")).FirstErr())
		ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
		defer cancel()
		require.NoError(t, c.PollFetches(ctx).Err())
	}
	require.NoError(t, c.ProduceSync(t.Context(), &kgo.Record{Topic: "orders"}).FirstErr())
	orders := func() *topic {
		c.shelf.mu.Lock()
		defer c.shelf.mu.Unlock()
		return c.shelf.topics["orders"]
	}
	for orders() == nil { // until its record is kept
		next()
	}
	c.shelf.mu.Lock()
	c.shelf.topics["orders"].owed = owedFor
	c.shelf.mu.Unlock()
	for c.shelf.owes() {
		time.Sleep(aheadFor) // for the work
		next()
	}
}
