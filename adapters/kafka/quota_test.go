package kafkathrottle_test

import (
	"context"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// tagOf gives a third of the messages a tag with a quota, and a third a tag without one.
func tagOf(m *kafka.Message) string { return []string{"", "bulk", "nobody"}[m.Offset%3] }

// A message is charged to the quota of its tag, or of the Reader if the tag has none.
func TestQuotaOfTheOwnerAndOfTags(t *testing.T) {
	for _, c := range []struct {
		name  string
		owner dispatch.SubscriptionOption
		tagOf func(*kafka.Message) string
		want  map[quota.ID]int64 // messages
	}{
		{"the topic's tenant", nil, nil, map[quota.ID]int64{"tenant:public": 30}},
		{"a tag", dispatch.WithTag("own"), nil, map[quota.ID]int64{"tag:own": 30}},
		{"a tag without a quota", dispatch.WithTag("nobody"), nil, map[quota.ID]int64{"tenant:public": 30}},
		{"messages' tags", dispatch.WithTag("own"), tagOf, map[quota.ID]int64{"tag:own": 20, "tag:bulk": 10}},
		{"messages' tags, no owner", nil, tagOf, map[quota.ID]int64{"tenant:public": 20, "tag:bulk": 10}},
		{"a tenant group, whatever the tags", dispatch.WithTenantGroup("big"), tagOf,
			map[quota.ID]int64{"tenant:big": 30}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, brokers := broker(t, 1, "orders")
			fill(t, brokers, "orders", 1, 31, 5000) // two pages
			lim := throttletest.Open(t, policy.Policy{})
			ids := []string{"tenant:public", "tenant:big", "tag:own", "tag:bulk"}
			for _, id := range ids {
				lim.Add(id, throttletest.Quota(1000))
			}
			var opts []kafkathrottle.Option
			if c.owner != nil {
				opts = append(opts, kafkathrottle.WithOwner(c.owner))
			}
			if c.tagOf != nil {
				opts = append(opts, kafkathrottle.WithTagOf(c.tagOf))
			}
			r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim, opts...)
			for range 30 {
				fetch(t, r)
			}
			for _, id := range ids {
				assert.Equal(t, c.want[quota.ID(id)], lim.Granted(id), id)
			}
		})
	}
}

// Reading a message costs the broker that leads its partition.
func TestReadingCostsTheBroker(t *testing.T) {
	t.Parallel()
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 31, 5000) // two pages
	lim := throttletest.Open(t, policy.Policy{})
	for _, id := range []string{"tag:own", "tag:bulk"} {
		lim.Add(id, throttletest.Quota(1000))
	}
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim,
		kafkathrottle.WithOwner(dispatch.WithTag("own")), kafkathrottle.WithTagOf(tagOf))
	name := "kafka/" + brokers[0]
	var first map[quota.ID]float64 // since the leader is known: until then, reading costs nothing
	passes := 0.0                  // since then
	throttletest.Until(t, "each pass costs 20 messages of one tag and 10 of the other", func() bool {
		require.NoError(t, r.SetOffset(0))
		for range 30 {
			fetch(t, r)
		}
		costs := lim.Costs(name)
		if len(costs) < 2 {
			return false
		}
		if first == nil {
			first = costs
			return false
		}
		passes++
		within := func(id quota.ID, pages float64) bool {
			part := (costs[id] - first[id]) / (passes * pages * quota.Page)
			return part > 0.9 && part < 1.1
		}
		return passes >= 100 && within("tag:own", 40) && within("tag:bulk", 20)
	})
}

// The messages of a tag wait for its quota, and so do the messages behind them.
func TestTheQuotaOfATagHolds(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 250, 10)
	lim := throttletest.Open(t, policy.Policy{})
	lim.Add("tag:bulk", throttletest.Quota(20))
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim, kafkathrottle.WithTagOf(tagOf))
	fetch(t, r)
	begin := time.Now()
	for range 60 { // 20 of them have the tag
		fetch(t, r)
	}
	assert.Greater(t, time.Since(begin), 700*time.Millisecond, "20/20 s, less 250 ms")

	lim.Add("tag:bulk", throttletest.Quota(0))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := r.FetchMessage(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded, "a quota of 0 pauses")
	lim.Add("tag:bulk", throttletest.Quota(1000))
	assert.Equal(t, "bulk", tagOf(new(fetch(t, r))))
}
