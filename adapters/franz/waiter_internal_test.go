package franzthrottle

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dispatchthrottle/throttle/dispatch"
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

// TestAWaiterOfAnotherTagMissesNoTurn: its permits are not those of the records that are first now.
func TestAWaiterOfAnotherTagMissesNoTurn(t *testing.T) {
	lim := throttletest.Open(t, policy.Policy{})
	sub, err := lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(t, err)
	other, err := lim.Subscription("kafka://public/default/orders", "other")
	require.NoError(t, err)
	orders := &topic{waiter: &waiter{sub: other, stop: func() {}, ended: true}}
	_, err = orders.permits(sub, 1)
	require.NoError(t, err)
	require.Nil(t, orders.waiter)
	require.Zero(t, orders.owed)
}

// TestPermitsAreKeptForAMoment: the permits of a waiter wait for a poll, and go back.
func TestPermitsAreKeptForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := policy.Policy{MessageRate: policy.PerSecond(1), CaughtUp: policy.CaughtUp{Throttle: new(true)}}
		sub, err := throttletest.Open(t, limit).Subscription("kafka://public/default/orders", "billing")
		require.NoError(t, err)
		_, err = sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		c := &Client{closing: t.Context()}
		s := &c.shelf
		s.init()
		orders := keeping(sub, 1)
		s.waitFor(c, orders, 0)
		w := orders.waiter
		until := func(is func() bool) time.Time {
			for {
				s.mu.Lock()
				done := is()
				s.mu.Unlock()
				if done {
					return time.Now()
				}
				time.Sleep(time.Millisecond)
			}
		}
		came := until(func() bool { return w.ended })
		went := until(func() bool { return orders.waiter == nil })
		require.InDelta(t, 25*time.Millisecond, went.Sub(came), float64(time.Millisecond))
		require.GreaterOrEqual(t, orders.owed, leastOwed)
		grant, err := sub.Acquire(ended, 1)
		require.NoError(t, err)
		require.Equal(t, 1, grant.N())
		s.waiters.Wait()
	})
}

// keeping is a topic of which n records are kept.
func keeping(sub *dispatch.Subscription, n int) *topic {
	records := kgo.FetchPartition{}
	for range n {
		records.Records = append(records.Records, &kgo.Record{})
	}
	return &topic{sub: sub, kept: []batch{{FetchPartition: records}}, count: n, positions: map[int32]*position{0: {}}}
}
