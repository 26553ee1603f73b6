package permitstest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// Allocate makes one allocation of the limit with that key.
func Allocate(ctx context.Context, l dispatch.PermitStore, key string, r schedule.Request) (schedule.Reply, error) {
	q := &permits.Request{Key: key, Allocate: &permits.Allocate{Request: r}}
	l.Do(ctx, []*permits.Request{q})
	return q.Allocate.Reply, q.Err
}

// SlowsDown checks that a permit store lowers a limit by the answers that somebody's allocations carry, for everybody, and that State shows it. It takes
// one second of the permit store's clock.
func SlowsDown(t *testing.T, l dispatch.PermitStore) {
	key := fmt.Sprintf("throttle:limit:{permitstest}:busy:%d", rand.Int64())
	allocate := func(a schedule.Answers) schedule.Reply {
		reply, err := Allocate(t.Context(), l, key, schedule.Request{
			Subscription: "a", Weight: 1, Demand: 100, Want: 10, Round: 0.1, Rate: busy.Max, Identity: "permitstest", Rev: 1, Nonce: 7,
			Rule: busy.Rule{Mode: busy.ByFraction, MinRate: 1, Tolerance: 0.01}, Answers: a,
		})
		require.NoError(t, err)
		return reply
	}
	assert.InEpsilon(t, busy.Max, allocate(schedule.Answers{}).Rate, 1e-9)
	allocate(schedule.Answers{OK: 100, Busy: 100})
	time.Sleep(1100 * time.Millisecond)
	lower := allocate(schedule.Answers{}).Rate
	assert.Less(t, lower, 95.0)
	assert.Greater(t, lower, 20.0)
	s, _, err := l.State(t.Context(), key)
	require.NoError(t, err)
	assert.InEpsilon(t, lower, s.Outcomes.Service.Limit, 1e-9)
}

// KeepsValues checks Update and Value.
func KeepsValues(t *testing.T, l dispatch.PermitStore) {
	key := fmt.Sprintf("throttle:rates:{permitstest}:%d", rand.Int64())
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
