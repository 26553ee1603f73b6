package recent_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/adapters/internal/recent"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestSkip: the permit of each of the last messages goes back once.
func TestSkip(t *testing.T) {
	lim := throttletest.Open(t, policy.Policy{MaxInFlight: new(int64(10_000))})
	sub, err := lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(t, err)
	var grants recent.Grants[int]
	grants.Skip(0)
	grants.Add(0, dispatch.Grant{}) // nothing limits it
	grants.Skip(0)
	for i := range recent.Kept + 100 {
		g, err := sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		grants.Add(i, g)
		if i == recent.Kept-1 {
			grants.Skip(3)
		}
	}
	inFlight := func() int { return int(sub.Stats().InFlight) }
	assert.Equal(t, recent.Kept+99, inFlight())
	for range 2 {
		grants.Skip(99) // too old
		grants.Skip(3)
		assert.Equal(t, recent.Kept+99, inFlight())
	}
	for range 2 {
		for _, i := range []int{100, 101, recent.Kept, recent.Kept + 99, 500} {
			grants.Skip(i)
		}
		assert.Equal(t, recent.Kept+94, inFlight())
	}
	again, err := sub.Acquire(t.Context(), 1) // the message is delivered again
	require.NoError(t, err)
	grants.Add(500, again)
	grants.Skip(500)
	assert.Equal(t, recent.Kept+94, inFlight())
}

// TestDeliveredAgain: of a message that is delivered twice, only the permit of the last delivery
// goes back, and nothing if that has none to give back.
func TestDeliveredAgain(t *testing.T) {
	lim := throttletest.Open(t, policy.Policy{MaxInFlight: new(int64(10_000))})
	sub, err := lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(t, err)
	var grants recent.Grants[int]
	assert.False(t, grants.Wants(dispatch.Grant{}))
	deliver := func(message int) {
		g, err := sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		grants.Add(message, g)
	}
	deliver(7)
	deliver(7)
	deliver(8)
	assert.True(t, grants.Wants(dispatch.Grant{}))
	grants.Add(8, dispatch.Grant{})
	for range 2 {
		grants.Skip(7)
		grants.Skip(8)
		assert.EqualValues(t, 2, sub.Stats().InFlight)
	}
	for i := range recent.Kept {
		grants.Add(100+i, dispatch.Grant{})
	}
	assert.False(t, grants.Wants(dispatch.Grant{}), "no limited message is kept")
}
