package pulsarthrottle_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// fast lets everything through that tests ask for, and counts it.
func fast(inFlight int64) policy.Policy {
	p := perSecond(2000)
	if inFlight > 0 {
		p.MaxInFlight = &inFlight
	}
	return p
}

// A scenario runs with Consumers that open opens.
type scenario = func(t *testing.T, w *brokerClient, open func(pulsar.ConsumerOptions, *throttletest.Limiter) *pulsarthrottle.Consumer)

// ways runs f for each way in which a Consumer gets its messages.
func ways(t *testing.T, f scenario) {
	queued(t, f)
	way(t, "zero", pulsar.ConsumerOptions{EnableZeroQueueConsumer: true}, (*brokerClient).open, f)
	way(t, "wrapped zero", pulsar.ConsumerOptions{EnableZeroQueueConsumer: true}, (*brokerClient).wrap, f)
}

// queued runs f for those with a queue: the others have no channel.
func queued(t *testing.T, f scenario) {
	way(t, "queue", pulsar.ConsumerOptions{ReceiverQueueSize: 5}, (*brokerClient).open, f)
	way(t, "wrapped", pulsar.ConsumerOptions{}, (*brokerClient).wrap, f)
}

func way(t *testing.T, name string, queue pulsar.ConsumerOptions,
	open func(*brokerClient, pulsar.ConsumerOptions, *throttletest.Limiter, ...pulsarthrottle.Option) *pulsarthrottle.Consumer, f scenario,
) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		w := newBrokerClient(t)
		f(t, w, func(options pulsar.ConsumerOptions, lim *throttletest.Limiter) *pulsarthrottle.Consumer {
			options.ReceiverQueueSize, options.EnableZeroQueueConsumer = queue.ReceiverQueueSize, queue.EnableZeroQueueConsumer
			return open(w, options, lim)
		})
	})
}

// wrap subscribes with the client, and wraps its consumer.
func (w *brokerClient) wrap(options pulsar.ConsumerOptions, lim *throttletest.Limiter, opts ...pulsarthrottle.Option) *pulsarthrottle.Consumer {
	w.t.Helper()
	options.SubscriptionName = "billing"
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	inner, err := w.client.Subscribe(options)
	require.NoError(w.t, err)
	c, err := pulsarthrottle.Wrap(inner, lim.Limiter, opts...)
	require.NoError(w.t, err)
	w.t.Cleanup(c.Close)
	return c
}

// inFlight is what maxInFlight counts.
func inFlight(lim *throttletest.Limiter) (n int64) {
	for _, s := range lim.Stats().Subscriptions {
		n += s.InFlight
	}
	return n
}

// TestSettling: each method that settles messages does so at the broker, and ends their flights.
func TestSettling(t *testing.T) {
	ways(t, func(t *testing.T, w *brokerClient, open func(pulsar.ConsumerOptions, *throttletest.Limiter) *pulsarthrottle.Consumer) {
		lim := throttletest.Open(t, fast(20))
		var topic string
		var c *pulsarthrottle.Consumer
		begin := func(kind pulsar.SubscriptionType, messages int) {
			topic = w.topic(0)
			w.subscribe(topic, "billing")
			w.produce(topic, messages, 1)
			c = open(pulsar.ConsumerOptions{Topic: topic, Type: kind, AckWithResponse: true, NackRedeliveryDelay: 100 * time.Millisecond}, lim)
		}
		next := func() pulsar.Message {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			m, err := c.Receive(ctx)
			require.NoError(t, err)
			assert.Positive(t, inFlight(lim))
			return m
		}
		settled := func(what string, err error, backlog int64) {
			t.Helper()
			require.NoError(t, err, what)
			assert.Zero(t, inFlight(lim), what)
			assert.Eventually(t, func() bool { return w.stats(topic, "billing").MsgBacklog == backlog }, 5*time.Second, 20*time.Millisecond, what)
		}
		begin(pulsar.Exclusive, 8)
		settled("Ack", c.Ack(next()), 7)
		settled("AckID", c.AckID(next().ID()), 6)
		settled("AckIDList", c.AckIDList([]pulsar.MessageID{next().ID(), next().ID()}), 4)
		next()
		settled("AckCumulative", c.AckCumulative(next()), 2)
		next()
		settled("AckIDCumulative", c.AckIDCumulative(next().ID()), 0)
		c.Close()

		begin(pulsar.Shared, 1)
		c.Nack(next())
		settled("Nack", nil, 1)
		c.NackID(next().ID())
		settled("NackID", nil, 1)
		m := next()
		assert.EqualValues(t, 2, m.RedeliveryCount())
		txn := w.transaction()
		require.NoError(t, c.AckWithTxn(m, txn))
		require.NoError(t, txn.Commit(t.Context()))
		settled("AckWithTxn", nil, 0)

		assert.Equal(t, "billing", c.Subscription())
		assert.NotEmpty(t, c.Name())
		ids, err := c.GetLastMessageIDs()
		require.NoError(t, err)
		assert.Equal(t, topic, ids[0].Topic())
	})
}

// TestReconsumeLater: the message comes again from the retry topic, with the permits of that.
func TestReconsumeLater(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	lim := throttletest.Open(t, fast(10))
	topic := w.topic(0)
	w.subscribe(topic, "billing")
	w.produce(topic, 2, 1)
	c := w.open(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, RetryEnable: true}, lim)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for i := range 2 {
		m, err := c.Receive(ctx)
		require.NoError(t, err)
		if i == 0 {
			c.ReconsumeLater(m, 200*time.Millisecond)
		} else {
			c.ReconsumeLaterWithCustomProperties(m, map[string]string{"why": "later"}, 200*time.Millisecond)
		}
		assert.Zero(t, inFlight(lim))
	}
	why := 0
	for range 2 {
		m, err := c.Receive(ctx)
		require.NoError(t, err)
		assert.Contains(t, m.Topic(), "-RETRY")
		if m.Properties()["why"] == "later" {
			why++
		}
		require.NoError(t, c.Ack(m))
	}
	assert.Equal(t, 1, why)
	var topics []string
	for _, s := range lim.Stats().Subscriptions {
		topics = append(topics, s.Topic)
		assert.EqualValues(t, 2, s.Limits[0].Granted-s.Limits[0].Returned, s.Topic)
	}
	assert.Equal(t, []string{topic, topic + "-billing-RETRY"}, topics)
}

// TestSeek: what waits for its permit is dropped by a Seek that succeeds, and by no other.
func TestSeek(t *testing.T) {
	ways(t, func(t *testing.T, w *brokerClient, open func(pulsar.ConsumerOptions, *throttletest.Limiter) *pulsarthrottle.Consumer) {
		lim := throttletest.Open(t, fast(0))
		topic := w.topic(0)
		w.subscribe(topic, "billing")
		w.produce(topic, 10, 1)
		c := open(pulsar.ConsumerOptions{Topic: topic, StartMessageIDInclusive: true}, lim)
		first := receiveOne(t, c)
		assert.Equal(t, []string{"1", "2"}, receive(t, c, 2))
		lim.Set(policy.Policy{Paused: new(true)})
		quiet(t, c, 100*time.Millisecond)

		received := make(chan string, 1)
		go func() { // waits all along
			m, err := c.Receive(context.Background())
			if err == nil {
				received <- string(m.Payload())
			}
		}()
		require.Eventually(t, func() bool { return waiting(lim) == 1 }, 5*time.Second, time.Millisecond)
		require.NoError(t, c.Seek(first.ID()))
		lim.Set(fast(0))
		assert.Equal(t, "0", <-received)
		assert.Equal(t, []string{"1", "2"}, receive(t, c, 2))

		lim.Set(policy.Policy{Paused: new(true)})
		quiet(t, c, 100*time.Millisecond)
		require.Error(t, c.Seek(pulsar.NewMessageID(1, 1, 0, 99)), "there is no such partition")
		lim.Set(fast(0))
		assert.Equal(t, []string{"3", "4"}, receive(t, c, 2))

		require.NoError(t, c.SeekByTime(time.Now().Add(-time.Hour)))
		assert.Equal(t, []string{"0", "1"}, receive(t, c, 2))
	})
}

func waiting(lim *throttletest.Limiter) (n int) {
	for _, s := range lim.Stats().Subscriptions {
		n += s.Waiting
	}
	return n
}

// TestUnsubscribe: it does not wait for a Receive, which finds nothing more.
func TestUnsubscribe(t *testing.T) {
	ways(t, func(t *testing.T, w *brokerClient, open func(pulsar.ConsumerOptions, *throttletest.Limiter) *pulsarthrottle.Consumer) {
		for name, unsubscribe := range map[string]func(*pulsarthrottle.Consumer) error{
			"gentle": (*pulsarthrottle.Consumer).Unsubscribe,
			"force":  (*pulsarthrottle.Consumer).UnsubscribeForce,
		} {
			lim := throttletest.Open(t, fast(0))
			topic := w.topic(0)
			w.subscribe(topic, "billing")
			w.produce(topic, 3, 1)
			c := open(pulsar.ConsumerOptions{Topic: topic}, lim)
			receive(t, c, 1)
			lim.Set(policy.Policy{Paused: new(true)})
			quiet(t, c, 50*time.Millisecond)
			require.NoError(t, unsubscribe(c), name)
			lim.Set(fast(0))
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			for err := error(nil); err == nil; { // the client may have some left
				_, err = c.Receive(ctx)
			}
			cancel()
			assert.Empty(t, w.stats(topic, "billing").SubType, "%s: the subscription is gone", name)
		}
	})
}

// TestClose: in the middle of any wait, it ends at once, gives back what is allocated, and leaves what was not handed over.
func TestClose(t *testing.T) {
	ways(t, func(t *testing.T, w *brokerClient, open func(pulsar.ConsumerOptions, *throttletest.Limiter) *pulsarthrottle.Consumer) {
		for _, paused := range []bool{true, false} { // it waits for a permit, or for a message
			lim := throttletest.Open(t, fast(0))
			topic := w.topic(0)
			w.subscribe(topic, "billing")
			c := open(pulsar.ConsumerOptions{Topic: topic}, lim)
			if paused {
				lim.Set(policy.Policy{Paused: new(true)})
				w.produce(topic, 3, 1)
			}
			ended := make(chan error, 3)
			for range 2 {
				go func() {
					_, err := c.Receive(context.Background())
					ended <- err
				}()
			}
			time.Sleep(200 * time.Millisecond)
			begin := time.Now()
			c.Close()
			c.Close()
			assert.Less(t, time.Since(begin), 5*time.Second, "a second for a look that is under way; what it waits for does not come")
			for range 2 {
				require.Error(t, <-ended)
			}
			_, err := c.Receive(context.Background())
			require.Error(t, err)
			require.NotErrorIs(t, err, context.Canceled)
			assert.Empty(t, lim.Stats().Subscriptions)

			lim.Set(fast(0))
			again := open(pulsar.ConsumerOptions{Topic: topic}, lim)
			if paused {
				assert.Equal(t, []string{"0", "1", "2"}, receive(t, again, 3))
			}
			again.Close()
		}
	})
}

// TestChan: the channel has what Receive would have had, a permit before each message, and settles through the Consumer.
func TestChan(t *testing.T) {
	queued(t, func(t *testing.T, w *brokerClient, open func(pulsar.ConsumerOptions, *throttletest.Limiter) *pulsarthrottle.Consumer) {
		lim := throttletest.Open(t, fast(0))
		topic := w.topic(0)
		w.subscribe(topic, "billing")
		w.produce(topic, 50, 5)
		c := open(pulsar.ConsumerOptions{Topic: topic, StartMessageIDInclusive: true}, lim)
		first := receiveOne(t, c)
		receive(t, c, 4)
		messages := c.Chan()
		for i := 5; i < 20; i++ {
			m := <-messages
			assert.Equal(t, fmt.Sprint(i), string(m.Payload()))
			require.NoError(t, m.Ack(m.Message))
			assert.Equal(t, c, m.Consumer)
		}
		assert.Equal(t, []string{"20", "21"}, receive(t, c, 2))
		time.Sleep(50 * time.Millisecond) // one waits in the channel
		require.NoError(t, c.Seek(first.ID()))
		assert.Equal(t, "0", string((<-messages).Payload()))
		used := lim.Stats().Subscriptions[0].Limits[0]
		assert.InDelta(t, 23, used.Granted-used.Returned, 1, "each message was charged, and one may wait in the channel")

		lim.Set(policy.Policy{Paused: new(true)})
		drained := time.After(300 * time.Millisecond)
		for n := 0; n < 2; {
			select {
			case <-messages:
				n++
			case <-drained:
				n = 2
			}
		}
		c.Close()
		_, err := c.Receive(context.Background())
		requireClosed(t, err)

		lim = throttletest.Open(t, fast(0))
		c = open(pulsar.ConsumerOptions{Topic: topic}, lim)
		require.NoError(t, lim.Close())
		c.Chan()
		_, err = c.Receive(context.Background())
		require.ErrorIs(t, err, dispatch.ErrClosed)
	})
}

// TestMessageChannel: a channel of the user's own gets what has permits.
func TestMessageChannel(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	lim := throttletest.Open(t, perSecond(50))
	topic := w.topic(2)
	w.subscribe(topic, "billing")
	w.produce(topic, 100, 1)
	own := make(chan pulsar.ConsumerMessage, 100)
	begin := time.Now()
	w.open(pulsar.ConsumerOptions{Topic: topic, MessageChannel: own}, lim)
	require.Eventually(t, func() bool { return len(own) >= 30 }, 10*time.Second, time.Millisecond)
	assert.LessOrEqual(t, float64(len(own)), 50*(time.Since(begin).Seconds()+0.25))
	require.NoError(t, (<-own).Consumer.Ack((<-own).Message))
}

// TestLimiterClosedFirst: who waits, and who comes, is told; nothing is lost.
func TestLimiterClosedFirst(t *testing.T) {
	ways(t, func(t *testing.T, w *brokerClient, open func(pulsar.ConsumerOptions, *throttletest.Limiter) *pulsarthrottle.Consumer) {
		topic := w.topic(0)
		w.subscribe(topic, "billing")
		w.produce(topic, 3, 1)
		lim := throttletest.Open(t, policy.Policy{Paused: new(true)})
		c := open(pulsar.ConsumerOptions{Topic: topic}, lim)
		ended := make(chan error, 1)
		go func() {
			_, err := c.Receive(context.Background())
			ended <- err
		}()
		require.Eventually(t, func() bool { return waiting(lim) == 1 }, 5*time.Second, time.Millisecond)
		require.NoError(t, lim.Close())
		require.ErrorIs(t, <-ended, dispatch.ErrClosed)
		_, err := c.Receive(context.Background())
		require.ErrorIs(t, err, dispatch.ErrClosed)
		c.Close()
		again := w.open(pulsar.ConsumerOptions{Topic: topic}, nil)
		assert.Len(t, receive(t, again, 3), 3)
	})
}

// TestNoLimiter: without a Limiter, every call is the client's.
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
