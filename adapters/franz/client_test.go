package franzthrottle_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestObeysTheLimit: a Client returns the records of each partition in order, and none before its
// permit.
func TestObeysTheLimit(t *testing.T) {
	for name, limit := range map[string]policy.Policy{
		"messages": {MessageRate: policy.PerSecond(500)}, "exact bytes": {ByteRate: policy.PerSecond(50_000)},
		"strict": {MessageRate: policy.PerSecond(500), Sharing: policy.Sharing{Mode: policy.Strict}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokers := broker(t, 3, "orders")
			fill(t, brokers, "orders", 3, 1000, 100)
			c := open(t, throttletest.Open(t, behind(limit)), brokers, kgo.ConsumeTopics("orders"))
			start, next, n := time.Now(), map[int32]int64{}, 0
			for n < 1000 {
				poll(t, c, 0).EachRecord(func(r *kgo.Record) {
					require.Equal(t, next[r.Partition], r.Offset)
					next[r.Partition]++
					n++
				})
			}
			assert.Greater(t, time.Since(start), 1750*time.Millisecond, "1000/500 s, less 250 ms")
		})
	}
}

// TestATopicThatWaitsHoldsUpNoOther: and its records are kept in order.
func TestATopicThatWaitsHoldsUpNoOther(t *testing.T) {
	brokers := broker(t, 2, "orders", "free")
	fill(t, brokers, "orders", 2, 100, 10)
	fill(t, brokers, "free", 2, 5000, 10)
	lim := throttletest.Open(t, policy.Policy{})
	lim.Add("kafka://public/default/orders", policy.Policy{Paused: new(true)})
	c := open(t, lim, brokers, kgo.ConsumeTopics("orders", "free"))
	for n := 0; n < 10_000; {
		poll(t, c, 700).EachRecord(func(r *kgo.Record) {
			require.Equal(t, "free", r.Topic)
			n++
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.PollFetches(ctx).Err(), context.DeadlineExceeded)
	lim.Add("kafka://public/default/orders", policy.Policy{Paused: new(false)})
	next := map[int32]int64{}
	for n := 0; n < 200; {
		poll(t, c, 7).EachRecord(func(r *kgo.Record) {
			require.Equal(t, next[r.Partition], r.Offset)
			next[r.Partition]++
			n++
		})
	}
}
