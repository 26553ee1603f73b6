package inflight_test

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/adapters/internal/inflight"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

type messages = inflight.Messages[string, int]

// open returns an empty set, a source of grants, and how many messages are in flight by the
// Limiter.
func open(t *testing.T) (*messages, func() dispatch.Grant, func() int64) {
	lim := throttletest.Open(t, policy.Policy{MaxInFlight: new(int64(1000))})
	sub, err := lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	acquire := func() dispatch.Grant {
		grant, err := sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		require.True(t, grant.InFlight())
		return grant
	}
	return inflight.New[string](cmp.Compare[int]), acquire, func() int64 { return sub.Stats().InFlight }
}

func TestMessagesLeaveWhenTheyAreSettled(t *testing.T) {
	m, acquire, inFlight := open(t)
	for i := range 10 {
		m.Add("orders-0", i, 1, acquire())
		m.Add("orders-1", 100+i, 1, acquire())
	}
	require.EqualValues(t, 20, inFlight())
	only := func(name string) func(string) bool { return func(p string) bool { return p == name } }

	m.Settle(3, 3)
	m.Settle(3, 3) // again
	require.EqualValues(t, 19, inFlight())
	m.SettleThrough(5, only("orders-0"))
	require.EqualValues(t, 14, inFlight())
	m.SettleThrough(5, only("orders-1")) // it has none up to there
	require.EqualValues(t, 14, inFlight())
	m.Settle(104, 106) // as a batch is
	require.EqualValues(t, 11, inFlight())
	m.Withdraw("orders-1", 107)
	require.EqualValues(t, 10, inFlight())

	p, found := m.Find(108)
	require.True(t, found)
	require.Equal(t, "orders-1", p)
	_, found = m.Find(105)
	require.False(t, found)

	m.Add("orders-1", 108, 1, acquire()) // delivered again: it is in flight once
	require.EqualValues(t, 10, inFlight())
	m.Add("orders-1", 99, 1, acquire()) // delivered again, before others
	m.SettleThrough(99, only("orders-1"))
	require.EqualValues(t, 10, inFlight())

	m.SettleAll()
	require.Zero(t, inFlight())
	m.SettleAll()
	m.Settle(0, 1000)
	m.Withdraw("orders-0", 1)
}

// Messages in any order agree with a map.
func TestMessagesAgreeWithAMap(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	m, acquire, inFlight := open(t)
	model := map[int]bool{}
	for range 3000 {
		id := random.IntN(60)
		switch random.IntN(6) {
		case 0, 1, 2:
			m.Add("orders", id, 1, acquire())
			model[id] = true
		case 3:
			m.Settle(id, id)
			delete(model, id)
		case 4:
			m.Withdraw("orders", id)
			delete(model, id)
		case 5:
			if random.IntN(10) == 0 {
				m.SettleThrough(id, func(string) bool { return true })
				maps.DeleteFunc(model, func(other int, _ bool) bool { return other <= id })
			}
		}
		require.EqualValues(t, len(model), inFlight())
		_, found := m.Find(id)
		require.Equal(t, model[id], found)
	}
}
