package kafkathrottle_test

import (
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestNames(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	lim := throttletest.Open(t, policy.Policy{})
	cfg := kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}
	newReader(t, cfg, lim)
	newReader(t, cfg, lim, kafkathrottle.WithSubscription("billing"),
		kafkathrottle.WithTopic(func(topic string) string {
			return "persistent://public/default/" + topic + "-partition-3"
		}))
	var names []string
	for _, s := range lim.Stats().Subscriptions {
		names = append(names, s.Topic+" "+s.Subscription)
	}
	require.Equal(t, []string{"kafka://public/default/orders " + kafkathrottle.DefaultSubscription,
		"persistent://public/default/orders billing"}, names)

	var field *policy.FieldError
	_, err := kafkathrottle.NewReader(cfg, lim.Limiter, kafkathrottle.WithNamespace("public"))
	require.ErrorAs(t, err, &field)
	_, err = kafkathrottle.NewReader(kafka.ReaderConfig{Brokers: brokers}, lim.Limiter)
	require.ErrorContains(t, err, "empty topic")
	require.Len(t, lim.Stats().Subscriptions, 2, "a Reader that does not open leaves nothing behind")
}

// Each of a group's topics has limits of its own.
func TestGroupTopicsHaveTheirOwnLimits(t *testing.T) {
	_, brokers := broker(t, 1, "orders", "audit")
	lim := throttletest.Open(t, policy.Policy{})
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, GroupID: "billing",
		GroupTopics: []string{"orders", "audit", "orders"}}, lim,
		kafkathrottle.WithNamespace("bank/prod"))
	var names []string
	for _, s := range lim.Stats().Subscriptions {
		names = append(names, s.Topic+" "+s.Subscription)
	}
	require.Equal(t, []string{"kafka://bank/prod/audit billing", "kafka://bank/prod/orders billing"}, names)
	fill(t, brokers, "orders", 1, 10, 10)
	fill(t, brokers, "audit", 1, 10, 10)
	count := map[string]int{}
	for range 20 {
		m, err := r.ReadMessage(t.Context())
		require.NoError(t, err)
		count[m.Topic]++
	}
	require.Equal(t, map[string]int{"orders": 10, "audit": 10}, count)
}
