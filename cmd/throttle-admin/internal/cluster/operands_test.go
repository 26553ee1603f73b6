package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
)

// TestOperands: the numbers of a subscription are what their operands give, however many replicas
// there are.
func TestOperands(t *testing.T) {
	for _, replicas := range []int{3, 50} {
		for _, topic := range []string{orders, events} {
			synctest.Test(t, func(t *testing.T) { operands(t, topic, replicas) })
		}
	}
}

func operands(t *testing.T, topic string, replicas int) {
	store := memory.New()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		for n := int64(0); ctx.Err() == nil; n++ {
			for i := range replicas {
				s := used(topic, "billing", n*int64(i+1))
				s.Waiting, s.Backlog, s.BehindSince = i, 100_000-100*n, 1
				s.WaitTimes.Count, s.WaitTimes.Buckets[3], s.WaitTimes.Buckets[5] = 10*n, 9*n, n
				s.Limits = append(s.Limits, dispatch.LimitStats{Key: "shadow", Reason: dispatch.ReasonNamespaceMessages, Rate: 5, Shadow: true})
				subs := []dispatch.SubscriptionStats{s}
				if i%24 == 1 { // it is bypassed there
					subs[0].CaughtUp, subs[0].Limits[0].Bypassed = true, true
				}
				text, err := json.Marshal(dispatch.Stats{Replica: fmt.Sprintf("r%02d", i), Time: 1000 * n, Subscriptions: subs})
				assert.NoError(t, err)
				assert.NoError(t, store.Publish(ctx, "c", fmt.Sprintf("r%02d", i), text, 3*time.Second))
			}
			time.Sleep(time.Second)
		}
	})
	time.Sleep(time.Second / 2) // no read falls between the records of one second
	r := cluster.NewReader(store, "c", time.Second)
	done.Go(func() { r.Run(ctx) })
	time.Sleep(30*time.Second + time.Second/4)
	_, _, ok := r.Topic(topic)
	require.True(t, ok)
	time.Sleep(3 * time.Second)
	row, _, ok := r.Topic(topic)
	cancel()
	done.Wait()
	require.True(t, ok)
	s := row.Subscriptions[0]
	o := s.Operands
	require.NotNil(t, o)
	assert.Len(t, o.Parts, min(replicas, 20))
	var rate, waiting, backlog, largest cluster.Number
	seen := 0
	for i, p := range o.Parts {
		seen += p.Replicas
		waiting += p.Waiting
		backlog += p.Backlog
		largest = largest.Most(p.Backlog)
		assert.Equal(t, i != 1, p.Counted)
		if p.Counted {
			rate += p.Rate
		}
		if p.Replicas == 1 {
			assert.Equal(t, fmt.Sprintf("r%02d", i), p.Replica)
		}
		if p.Replicas == 1 && p.Counted {
			assert.InDelta(t, i+1, float64(p.Rate), 1e-6)
			assert.InDelta(t, float64(i+1), float64(p.Permits/p.Seconds), 1e-6)
			assert.GreaterOrEqual(t, float64(p.Seconds), 1.0)
		}
	}
	assert.Equal(t, replicas, seen)
	assert.InDelta(t, float64(s.Rate), float64(rate), 1e-6)
	assert.Equal(t, s.Waiting, waiting)
	if topic == orders {
		assert.True(t, o.Summed)
		assert.Equal(t, s.Backlog, backlog)
	} else {
		assert.False(t, o.Summed)
		assert.Equal(t, s.Backlog, largest)
	}
	require.NotNil(t, o.Trend)
	assert.InDelta(t, float64(s.DrainedIn), o.Trend.Backlog/o.Trend.PerSecond, 1e-6)
	require.Len(t, o.Waits, 2)
	assert.EqualValues(t, 0.03, o.Waits[0].Most)
	assert.Equal(t, s.WaitP99, o.Waits[1].Most)
	assert.Equal(t, o.Waits[0].N, 9*o.Waits[1].N)
	assert.Equal(t, s.Limit, o.Limits[0].Limit)
	assert.True(t, o.Limits[1].Shadow)
}
