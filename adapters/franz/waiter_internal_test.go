package franzthrottle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
			grant, err, _ = topic.permits(sub, 1)
			expired := expiry < time.Second
			require.Equal(t, expired, err != nil)
			require.Equal(t, expired, topic.missed)
			require.Equal(t, !expired, grant.N() == 1)
		})
	}
}
