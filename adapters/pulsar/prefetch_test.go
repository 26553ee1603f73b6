package pulsarthrottle_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// The broker pushes as many messages ahead as Subscribe documents.
func TestPushedAhead(t *testing.T) {
	t.Parallel()
	bytes := policy.Policy{ByteRate: policy.PerSecond(200 * 1024), CaughtUp: policy.CaughtUp{Throttle: new(true)}}
	dlq := &pulsar.DLQPolicy{MaxDeliveries: 3, DeadLetterTopic: "dlq"}
	for name, c := range map[string]struct {
		limit      policy.Policy
		partitions int
		options    pulsar.ConsumerOptions
		ahead      int64 // at most, without the message that waits
		atLeast    int64
	}{
		"slow":                   {throttletest.PerSecond(20), 0, pulsar.ConsumerOptions{}, 1, 1},
		"slow, but with a queue": {throttletest.PerSecond(20), 0, pulsar.ConsumerOptions{ReceiverQueueSize: 5}, 1, 1},
		"slow, zero-queue":       {throttletest.PerSecond(20), 0, pulsar.ConsumerOptions{EnableZeroQueueConsumer: true}, 0, 0},
		"100 a second":           {throttletest.PerSecond(100), 0, pulsar.ConsumerOptions{}, 1, 1},
		"101 a second":           {throttletest.PerSecond(101), 0, pulsar.ConsumerOptions{}, 6, 1},
		"slow, with a DLQ":       {throttletest.PerSecond(20), 0, pulsar.ConsumerOptions{DLQ: dlq}, 1, 1},
		"slow, partitions":       {throttletest.PerSecond(20), 4, pulsar.ConsumerOptions{}, 4, 3},
		"fast":                   {throttletest.PerSecond(400), 0, pulsar.ConsumerOptions{}, 20, 10},
		"fast, zero-queue":       {throttletest.PerSecond(400), 0, pulsar.ConsumerOptions{EnableZeroQueueConsumer: true}, 0, 0},
		"fast, partitions":       {throttletest.PerSecond(400), 4, pulsar.ConsumerOptions{}, 20, 10},
		"bytes":                  {bytes, 0, pulsar.ConsumerOptions{}, 10, 5},
		"a pattern":              {throttletest.PerSecond(20), 2, pulsar.ConsumerOptions{}, 200, 100},
		"auto-scaled":            {throttletest.PerSecond(400), 0, pulsar.ConsumerOptions{EnableAutoScaledReceiverQueueSize: true}, 20, 1},
		"no limit":               {policy.Policy{}, 0, pulsar.ConsumerOptions{}, 1000, 150},
		"no limit, zero-queue":   {policy.Policy{}, 0, pulsar.ConsumerOptions{EnableZeroQueueConsumer: true}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBrokerClient(t)
			lim := throttletest.Open(t, c.limit)
			topic := w.topic(c.partitions)
			w.subscribe(topic, "billing")
			w.produce(topic, 300, 1)
			c.options.Topic = topic
			if name == "a pattern" {
				c.options.Topic, c.options.TopicsPattern = "", topic+".*"
			}
			consumer := w.open(c.options, lim)
			if c.ahead > 0 && name != "a pattern" {
				throttletest.Until(t, "it is reported", func() bool {
					return lim.Stats().Subscriptions[0].ReadAhead == c.ahead+1
				})
			}
			got := int64(len(drainUntil(t, consumer, 300*time.Millisecond, 100)))
			throttletest.Until(t, fmt.Sprintf("%d and %d more are pushed", got, c.atLeast), func() bool {
				return w.stats(topic, "billing").MsgOutCounter >= got+c.atLeast
			})
			time.Sleep(100 * time.Millisecond)
			assert.LessOrEqual(t, w.stats(topic, "billing").MsgOutCounter, got+c.ahead+1)
		})
	}
}

// drainUntil reads messages for d, or until it has as many as most.
func drainUntil(t *testing.T, c pulsar.Consumer, d time.Duration, limit int) (texts []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	for len(texts) < limit {
		m, err := c.Receive(ctx)
		if err != nil {
			break
		}
		texts = append(texts, string(m.Payload()))
	}
	return texts
}

// A Receive of a zero-queue consumer that times out gives its permit back, and lets the broker
// push one message ahead, as the client's does. No message is lost.
func TestZeroQueueTimesOut(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	lim := throttletest.Open(t, throttletest.PerSecond(100))
	topic := w.topic(0)
	w.subscribe(topic, "billing")
	c := w.open(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, EnableZeroQueueConsumer: true}, lim)
	const timeouts = 5
	for range timeouts {
		quiet(t, c, 500*time.Millisecond)
	}
	for _, l := range lim.Stats().Subscriptions[0].Limits {
		assert.Equal(t, l.Granted, l.Returned)
	}
	w.produce(topic, 100, 1)
	pushed := func() int64 { return w.stats(topic, "billing").MsgOutCounter }
	throttletest.Until(t, "the broker has pushed a message for each", func() bool { return pushed() >= timeouts })
	time.Sleep(300 * time.Millisecond)
	assert.EqualValues(t, timeouts, pushed(), "and no more")
	assert.Equal(t, []string{"0"}, receive(t, c, 1))
	assert.Panics(t, func() { c.Chan() }, "as the client's")
	other := w.open(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared}, lim)
	assert.Len(t, receive(t, other, 90), 90, "the rest is there for others")
	c.Close()
	receive(t, other, 9)
}
