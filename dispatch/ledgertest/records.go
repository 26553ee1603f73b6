package ledgertest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// SlowsDown checks that a ledger lowers a limit by the answers that somebody's bookings carry, for everybody, and that State shows it. It takes
// one second of the ledger's clock.
func SlowsDown(t *testing.T, l dispatch.Ledger) {
	key := fmt.Sprintf("throttle:{ledgertest}:busy:%d", rand.Int64())
	book := func(a schedule.Answers) schedule.Reply {
		booked := l.Book(t.Context(), []schedule.Booking{{Key: key, Request: schedule.Request{
			Subscription: "a", Weight: 1, Demand: 100, Want: 10, Round: 0.1, Rate: busy.Max, Identity: "ledgertest", Rev: 1, Nonce: 7,
			Rule: busy.Rule{Mode: busy.ByFraction, MinRate: 1, Tolerance: 0.01}, Answers: a,
		}}})
		require.NoError(t, booked[0].Err)
		return booked[0].Reply
	}
	assert.InEpsilon(t, busy.Max, book(schedule.Answers{}).Rate, 1e-9)
	book(schedule.Answers{OK: 100, Busy: 100})
	time.Sleep(1100 * time.Millisecond)
	lower := book(schedule.Answers{}).Rate
	assert.Less(t, lower, 95.0)
	assert.Greater(t, lower, 20.0)
	s, _, err := l.State(t.Context(), key)
	require.NoError(t, err)
	assert.InEpsilon(t, lower, s.Outcomes.Service.Limit, 1e-9)
}

// KeepsValues checks Update and Value.
func KeepsValues(t *testing.T, l dispatch.Ledger) {
	key := fmt.Sprintf("throttle:{ledgertest}:value:%d", rand.Int64())
	value, before, err := l.Value(t.Context(), key)
	require.NoError(t, err)
	assert.Empty(t, value)
	for _, text := range []string{"one", "two"} {
		require.NoError(t, l.Update(t.Context(), key, time.Minute, func(old []byte, now float64) []byte {
			assert.Equal(t, string(value), string(old))
			assert.GreaterOrEqual(t, now, before)
			return []byte(text)
		}))
		value, before, err = l.Value(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, text, string(value))
	}
	require.NoError(t, l.Update(t.Context(), key, time.Minute, func([]byte, float64) []byte { return nil }))
	value, _, err = l.Value(t.Context(), key)
	require.NoError(t, err)
	assert.Empty(t, value)
}
