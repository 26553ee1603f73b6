package franzthrottle_test

import (
	"context"
	"strings"
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

// TestExactBytes: a record has the bytes of its key, its value, and the keys and values of its
// headers, and Skip gives them back.
func TestExactBytes(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 1, "orders")
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic("orders"))
	require.NoError(t, err)
	defer cl.Close()
	var records []*kgo.Record
	bytes := int64(0)
	for i := range 100 {
		text := func(n int) string { return strings.Repeat("x", n) }
		records = append(records, &kgo.Record{Key: []byte(text(i)), Value: []byte(text(1000)), Headers: []kgo.RecordHeader{
			{Key: text(10), Value: []byte(text(2 * i))}, {Key: text(3)},
		}})
		bytes += int64(i + 1000 + 10 + 2*i + 3)
	}
	require.NoError(t, cl.ProduceSync(t.Context(), records...).FirstErr())
	lim := throttletest.Open(t, behind(policy.Policy{ByteRate: policy.PerSecond(1_000_000)}))
	c := open(t, lim, brokers, kgo.ConsumeTopics("orders"))
	charged := func() int64 {
		l := lim.Stats().Subscriptions[0].Limits[0]
		return l.Granted - l.Returned + l.Owed
	}
	for n := 0; n < 100; {
		fetches := poll(t, c, 7)
		n += fetches.NumRecords()
		if n == 100 {
			require.Equal(t, bytes, charged())
			skipped := fetches.Records()[0]
			c.Skip(skipped)
			i := int64(100 - fetches.NumRecords())
			require.Equal(t, bytes-(3*i+1013), charged())
		}
	}
}
