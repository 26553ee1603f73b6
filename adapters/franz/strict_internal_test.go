package franzthrottle

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestASlotThatAPollHasNotTaken goes back when the poll ends, as if its topic had missed a turn.
func TestASlotThatAPollHasNotTaken(t *testing.T) {
	sub := oneInFlight(t, policy.Strict)
	c := &Client{}
	s := &c.shelf
	s.init()
	orders := keeping(sub, 1)
	s.order = []*topic{orders}
	s.trySlots(c, 0)
	require.True(t, orders.waiter.ended)
	require.Equal(t, 1, orders.waiter.grant.N())
	s.leaveLines()
	require.Nil(t, orders.waiter)
	require.Positive(t, orders.owed)
	require.Zero(t, sub.Stats().InFlight)
}

// TestWhoLeavesTheLine when a poll ends: a topic of a strict limit that was served of late.
func TestWhoLeavesTheLine(t *testing.T) {
	lim := throttletest.Open(t, policy.Policy{})
	limit := policy.Policy{MessageRate: policy.PerSecond(1), CaughtUp: policy.CaughtUp{Throttle: new(true)}}
	lim.Add("kafka://public/default/fair", limit)
	limit.Sharing.Mode = policy.Strict
	lim.Add("kafka://public/default/strict", limit)
	for _, c := range []struct {
		topic  string
		served time.Duration // before
		stays  bool
	}{{"strict", 0, false}, {"strict", leavesFor, true}, {"fair", 0, true}} {
		sub, err := lim.Subscription("kafka://public/default/"+c.topic, "billing")
		require.NoError(t, err)
		orders := keeping(sub, 1)
		orders.servedAt = time.Now().Add(-c.served)
		orders.waiter = &waiter{sub: sub, stop: func() {}}
		s := &shelf{order: []*topic{orders}}
		s.leaveLines()
		require.Equal(t, c.stays, orders.waiter != nil, "%+v", c)
		require.Zero(t, orders.owed)
	}
}

// oneInFlight is a subscription of which a message may be in flight.
func oneInFlight(t *testing.T, mode policy.SharingMode) *dispatch.Subscription {
	limit := policy.Policy{MessageRate: policy.PerSecond(1), MaxInFlight: new(int64(1))}
	limit.Sharing.Mode, limit.CaughtUp.Throttle = mode, new(true)
	sub, err := throttletest.Open(t, limit).Subscription("kafka://public/default/orders", "billing")
	require.NoError(t, err)
	return sub
}

// TestASlotBetweenPolls goes back at once, as if its topic had missed a turn. Other permits are
// kept for a moment.
func TestASlotBetweenPolls(t *testing.T) {
	for _, c := range []struct {
		mode  policy.SharingMode
		polls bool // a poll waits
		kept  bool
	}{{policy.Strict, false, false}, {policy.Strict, true, true}, {policy.Fair, false, true}} {
		sub := oneInFlight(t, c.mode)
		grant, err := sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		orders := keeping(sub, 1)
		w := &waiter{sub: sub, stop: func() {}}
		orders.waiter = w
		s := &shelf{}
		if c.polls {
			s.waits(func() {})
		}
		require.Equal(t, c.kept, s.offer(orders, w, grant, nil), "%+v", c)
		require.Equal(t, c.kept, orders.waiter != nil)
		require.Equal(t, c.kept, orders.owed == 0)
		require.Equal(t, c.kept, sub.Stats().InFlight == 1)
	}
}

// TestSlotsOfShortPolls: a caller that works for longer than a slot can be used, and whose polls do
// not wait, gets most slots, or one in each poll.
func TestSlotsOfShortPolls(t *testing.T) {
	for rate, least := range map[int64]int{5: 17, 20: 57} { // of 30, and of 60
		synctest.Test(t, func(t *testing.T) {
			limit := policy.Policy{MessageRate: policy.PerSecond(rate), CaughtUp: policy.CaughtUp{Throttle: new(true)}}
			limit.Sharing.Mode = policy.Strict
			sub, err := throttletest.Open(t, limit).Subscription("kafka://public/default/orders", "billing")
			require.NoError(t, err)
			c := &Client{closing: t.Context()}
			s := &c.shelf
			s.init()
			orders := keeping(sub, 100)
			s.order = []*topic{orders}
			for range 60 { // polls
				s.trySlots(c, 0)
				c.admit(0, true)
				s.leaveLines()
				time.Sleep(101 * time.Millisecond) // the caller works
			}
			require.GreaterOrEqual(t, 100-orders.count, least)
			s.abandonAll()
			s.waiters.Wait()
		})
	}
}

// TestPollsWhileTheStoreIsFrozen: a poll waits for one answer of the permit store, however many
// topics have strict limits, and for none once these are in line.
func TestPollsWhileTheStoreIsFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := policy.Policy{MessageRate: policy.PerSecond(5), CaughtUp: policy.CaughtUp{Throttle: new(true)}}
		limit.Sharing.Mode = policy.Strict
		store := permitstest.NewStore(1, nil)
		lim, err := dispatch.Open(t.Context(), dispatch.Config{
			Policies: dispatch.Fixed(limit), Permits: &permitstest.Link{Store: store},
		})
		require.NoError(t, err)
		c := &Client{closing: t.Context()}
		s := &c.shelf
		s.init()
		defer func() {
			s.abandonAll()
			s.waiters.Wait()
			require.NoError(t, lim.Close())
			store.Wait()
		}()
		for i := range 10 {
			sub, err := lim.Subscription(fmt.Sprintf("kafka://public/default/orders%d", i), "billing")
			require.NoError(t, err)
			s.order = append(s.order, keeping(sub, 100))
		}
		var frozen time.Time
		for n := range 40 { // polls
			if n == 20 {
				frozen = time.Now()
				store.Locked(func() { store.Frozen = frozen.Add(5 * time.Second) })
			}
			began := time.Now()
			s.trySlots(c, 0)
			took := time.Since(began)
			c.admit(0, true)
			s.leaveLines()
			require.LessOrEqual(t, took, triesFor+permitstest.Timeout, "poll %d", n)
			if frozen.IsZero() || time.Since(frozen) > leavesFor+permitstest.Timeout {
				require.Less(t, took, triesFor, "poll %d", n)
			}
			time.Sleep(51 * time.Millisecond)
		}
	})
}
