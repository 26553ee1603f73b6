package memory

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// TestForgets: expired limits, values, records and statuses of replicas take no memory for long.
func TestForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		use := func(n int) {
			for i := range n {
				name := fmt.Sprint(i)
				allocate := &permits.Allocate{Request: schedule.Request{
					Subscription: "a", Weight: 1, Want: 1, Rate: 1, Round: 0.1, Nonce: 1,
				}}
				late := &permits.Allocate{Request: allocate.Request}
				late.NotAfter = 1e-9
				heartbeat := &permits.Heartbeat{Member: "a", TTL: 1, Rate: 1}
				l.Do(t.Context(), []*permits.Request{
					{Key: name, Allocate: allocate},
					{Key: "late" + name, Allocate: late},
					{Key: name, Heartbeat: heartbeat},
				})
				set := func([]byte, float64) []byte { return []byte("x") }
				require.NoError(t, l.Update(context.Background(), name, time.Second, set))
				require.NoError(t, l.Publish(context.Background(), "c"+name, name, nil, time.Second))
			}
		}
		use(1000)
		assert.Len(t, l.limits, 1000, "late requests leave nothing")
		assert.Len(t, l.values, 2000)
		assert.Len(t, l.status, 1000)
		time.Sleep(2 * time.Hour)
		use(1)
		assert.Len(t, l.limits, 1)
		assert.Len(t, l.values, 2)
		assert.Len(t, l.status, 1)
	})
}

// TestStrictCountsNoSubscriptions: subscriptions that come and go leave nothing in a strict limit.
func TestStrictCountsNoSubscriptions(t *testing.T) {
	l := New()
	for i := range 100 {
		strict := &permits.Allocate{Request: schedule.Request{
			Subscription: fmt.Sprint(i), Weight: 1, Want: 1, Rate: 1, Nonce: 1, Strict: true,
		}}
		l.Do(t.Context(), []*permits.Request{{Key: "a", Allocate: strict}})
	}
	assert.Empty(t, l.limits["a"].subs)
}
