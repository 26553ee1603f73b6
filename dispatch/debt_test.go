package dispatch_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestDebtsArePaidMeanwhile: what a message was larger than the permits that were there is paid
// while its consumer works on it, not from when it comes again.
func TestDebtsArePaidMeanwhile(t *testing.T) {
	p := policy.Policy{ByteRate: policy.PerSecond(1000)}
	limited(t, p, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		for work := range 7 {
			var waited time.Duration
			for i := range 6 {
				start := time.Now()
				_, err := sub.AcquireSized(t.Context(), 5000)
				require.NoError(t, err)
				if i > 0 {
					waited += time.Since(start)
				}
				debt := lim.Stats().Subscriptions[0].Limits[0].Debt
				assert.InDelta(t, 5000, debt, 300)
				time.Sleep(time.Duration(work) * time.Second)
			}
			assert.InDelta(t, max(0, 5-work), (waited / 5).Seconds(), 0.3, "%d s of work", work)
		}
	})
}
