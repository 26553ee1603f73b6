package pulsarthrottle_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// open subscribes; the Consumer is closed when the test ends.
func (w *brokerClient) open(
	options pulsar.ConsumerOptions, lim *throttletest.Limiter, opts ...pulsarthrottle.Option,
) *pulsarthrottle.Consumer {
	w.t.Helper()
	if options.SubscriptionName == "" {
		options.SubscriptionName = "billing"
	}
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	var l *dispatch.Limiter
	if lim != nil {
		l = lim.Limiter
	}
	c, err := pulsarthrottle.Subscribe(w.client, options, l, opts...)
	require.NoError(w.t, err)
	w.t.Cleanup(c.Close)
	return c
}

// drain reads n messages with all consumers together, and returns when each message came, since
// begin.
func drain(t testing.TB, n int, begin time.Time, consumers ...*pulsarthrottle.Consumer) (all []window.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	var mu sync.Mutex
	var readers sync.WaitGroup
	for _, c := range consumers {
		readers.Go(func() {
			for {
				m, err := c.Receive(ctx)
				if err != nil {
					assert.ErrorIs(t, err, context.Canceled)
					return
				}
				mu.Lock()
				if all = append(all, window.Event{At: time.Since(begin), N: 1}); len(all) == n {
					cancel()
				}
				mu.Unlock()
				assert.NoError(t, c.Ack(m))
			}
		})
	}
	readers.Wait()
	return all
}

// three opens three consumers of two subscriptions of a topic with four partitions.
func (w *brokerClient) three(lim *throttletest.Limiter) []*pulsarthrottle.Consumer {
	topic := w.topic(4)
	w.subscribe(topic, "a", "b")
	w.produce(topic, 2000, 10)
	return []*pulsarthrottle.Consumer{
		w.open(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "a"}, lim),
		w.open(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "b", Type: pulsar.Shared}, lim),
		w.open(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "b", Type: pulsar.Shared}, lim),
	}
}

// Partitions, consumers and subscriptions have one limit together, from the first message on.
func TestOneLimit(t *testing.T) {
	t.Parallel()
	consumers := newBrokerClient(t).three(throttletest.Open(t, throttletest.PerSecond(200)))
	assert.NoError(t, window.WithinRate(200, 250*time.Millisecond, 0, drain(t, 400, time.Now(), consumers...)))
}

// Every type of subscription gets all messages, in order where Pulsar keeps it.
func TestTypes(t *testing.T) {
	t.Parallel()
	for _, kind := range []pulsar.SubscriptionType{pulsar.Exclusive, pulsar.Failover, pulsar.Shared, pulsar.KeyShared} {
		for _, partitions := range []int{0, 3} {
			t.Run(fmt.Sprintf("%d-%d", kind, partitions), func(t *testing.T) {
				t.Parallel()
				w := newBrokerClient(t)
				lim := throttletest.Open(t, throttletest.PerSecond(400))
				topic := w.topic(partitions)
				w.subscribe(topic, "billing")
				p, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: topic,
					BatcherBuilderType: pulsar.KeyBasedBatchBuilder})
				require.NoError(t, err)
				defer p.Close()
				const keys, each = 5, 40
				for i := range keys * each {
					p.SendAsync(t.Context(),
						&pulsar.ProducerMessage{Key: fmt.Sprint(i % keys),
							Payload: fmt.Append(nil,
								i/keys)}, func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
				}
				require.NoError(t, p.FlushWithCtx(t.Context()))
				n := 2
				if kind == pulsar.Exclusive {
					n = 1
				}
				ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
				defer cancel()
				var mu sync.Mutex
				next, left := map[string]int{}, keys*each
				var readers sync.WaitGroup
				for i := range n {
					c := w.open(pulsar.ConsumerOptions{Topic: topic, Type: kind, Name: fmt.Sprint(i)}, lim)
					readers.Go(func() {
						for {
							m, err := c.Receive(ctx)
							if err != nil {
								return
							}
							mu.Lock()
							if kind != pulsar.Shared {
								assert.Equal(t, fmt.Sprint(next[m.Key()]), string(m.Payload()), "of key %s", m.Key())
							}
							next[m.Key()]++
							left--
							if left == 0 {
								cancel()
							}
							mu.Unlock()
							assert.NoError(t, c.Ack(m))
						}
					})
				}
				readers.Wait()
				assert.Zero(t, left)
				assert.NotErrorIs(t, ctx.Err(), context.DeadlineExceeded)
			})
		}
	}
}

// Each message is charged to its own topic.
func TestManyTopics(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	lim := throttletest.Open(t, policy.Policy{})
	a, b := w.topic(0), w.topic(2)
	w.subscribe(a, "billing")
	w.subscribe(b, "billing")
	w.produce(a, 30, 1)
	w.produce(b, 30, 1)
	limit := throttletest.PerSecond(20)
	limit.CaughtUp.Throttle = new(true) // the last messages, too, whenever the backlog is asked for
	lim.Add(b, limit)
	total := int64(0)
	for name, options := range map[string]pulsar.ConsumerOptions{
		"topics":  {Topics: []string{a, b}},
		"pattern": {TopicsPattern: "persistent://public/default/TestManyTopics-.*"},
	} {
		begin := time.Now()
		c := w.open(options, lim)
		receive(t, c, 60)
		assert.Greater(t, time.Since(begin), 1300*time.Millisecond, name)
		granted := map[string]int64{}
		for _, s := range lim.Stats().Subscriptions {
			for _, l := range s.Limits {
				granted[s.Topic] += l.Granted - l.Returned
			}
		}
		total += 30 // the second consumer continues where the first ended
		assert.Equal(t, map[string]int64{b: total}, granted, name)
		c.Close()
		w.produce(a, 30, 1)
		w.produce(b, 30, 1)
	}
}

// Without a Limiter, every call is the client's.
func TestNoLimiter(t *testing.T) {
	w := newBrokerClient(t)
	topic := w.topic(0)
	w.subscribe(topic, "billing")
	w.produce(topic, 5, 1)
	c := w.open(pulsar.ConsumerOptions{Topic: topic}, nil)
	assert.Equal(t, []string{"0", "1"}, receive(t, c, 2))
	assert.Equal(t, "2", string((<-c.Chan()).Payload()))
	require.NoError(t, c.SeekByTime(time.Now().Add(-time.Hour)))
	assert.Equal(t, []string{"0"}, receive(t, c, 1))
	require.NoError(t, c.Unsubscribe())
}
