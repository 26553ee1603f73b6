package pulsarthrottle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle/adapters/internal/inflight"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Consumer is a pulsar.Consumer whose messages wait for their permits. Its methods behave as the
// client documents unless noted here. Any number of goroutines may use it at once; Receive serves
// them one after the other.
//
// A consumer of several topics returns messages in the client's order: while a message waits for
// permits of its topic, the messages of other topics behind it wait too.
type Consumer struct {
	pulsar.Consumer

	lim      *dispatch.Limiter // nil: the fields below are not used
	stream   stream
	polled   polled
	inFlight *inflight.Messages[partition, messageID]
	started  atomic.Bool // the fields above are set, for callbacks
	once     sync.Once   // of Close

	channel channel
}

var _ pulsar.Consumer = (*Consumer)(nil)

// Subscribe is client.Subscribe for a Consumer whose messages wait for permits of lim. With a nil
// lim they do not wait. The error is the client's, or a *policy.FieldError for the name of a
// topic or subscription that Pulsar allows and policies do not.
//
// Subscribe bounds what the broker pushes ahead of the permits, by the limits in force when it is
// called. For each partition, ReceiverQueueSize is 1 for a limit of up to 100 messages per
// second. For a higher limit it is the messages of 50 ms, divided by the partitions of the topic.
// It is at most what options say, 1000 by default. With several Topics, the smallest of their
// queues applies; with a TopicsPattern, whose topics are unknown, the queue is at most 100. Where
// only bytes are limited, a message counts as 1 KiB. A broker without
// preciseDispatcherFlowControl, which is the default, counts a batch as one message here. One
// more message waits for its permits. The client cannot change its queue later: it stays as it is
// when a limit is set or changed.
//
// With EnableZeroQueueConsumer the broker pushes nothing ahead: the permit comes first, and then
// the client asks for a message. The client's faults remain. Each Receive whose context ends
// before a message comes lets the broker push one message ahead. A Receive that waits during a
// seek or an unload may miss the messages, so give it a deadline. client.Close waits for a
// Receive to end. Chan panics.
//
// The client's callbacks (Interceptors and EventListener) get the Consumer that Subscribe
// returns. Those that run before it returns, and those of a consumer that was given to [Wrap],
// get the client's consumer.
func Subscribe(
	client pulsar.Client, options pulsar.ConsumerOptions, lim *dispatch.Limiter, opts ...Option,
) (*Consumer, error) {
	if lim == nil {
		inner, err := client.Subscribe(options)
		if err != nil {
			return nil, err
		}
		return &Consumer{Consumer: inner}, nil
	}
	given := options
	options.Topics = slices.Clone(given.Topics) // the client completes them in place
	c, err := newConsumer(options.SubscriptionName, lim, opts)
	var opened map[string]*topic
	if err == nil {
		opened, err = c.limitQueue(client, &options)
	}
	if err != nil {
		c.stream.topics.close()
		return nil, refusal(err, func() (pulsar.Consumer, error) { return client.Subscribe(given) })
	}
	c.nameInCallbacks(&options)
	inner, err := client.Subscribe(options)
	if err != nil {
		c.stream.topics.close()
		return nil, err
	}
	c.start(inner, isPattern(options))
	go reportReadAhead(client, opened, options.ReceiverQueueSize)
	if given.MessageChannel != nil && c.stream.zeroQueue == nil {
		c.channel.messages = given.MessageChannel
		c.Chan()
	}
	return c, nil
}

// refusal returns the error for options that this package refuses: the client's own error, whose
// type and result callers may ask for, if the client refuses them too.
func refusal[C interface{ Close() }](ours error, open func() (C, error)) error {
	if errors.Is(ours, dispatch.ErrClosed) {
		return ours
	}
	opened, theirs := open()
	if theirs != nil {
		return theirs
	}
	opened.Close()
	return ours
}

// Wrap applies the limits of lim to c. The new Consumer owns c and closes it. What the broker
// pushes ahead stays as c was opened: its ReceiverQueueSize for each partition, and 10 messages
// in its channel. Do not read a MessageChannel that c was given; use Chan. A zero-queue consumer
// stays one: see [Subscribe].
func Wrap(c pulsar.Consumer, lim *dispatch.Limiter, opts ...Option) (*Consumer, error) {
	if lim == nil {
		return &Consumer{Consumer: c}, nil
	}
	w, err := newConsumer(c.Subscription(), lim, opts)
	if err != nil {
		return nil, err
	}
	if isZeroQueue(c) {
		ids, err := c.GetLastMessageIDs() // the only way to the name of its topic
		if err == nil {
			w.stream.zeroQueue, err = w.stream.topics.open(ids[0].Topic())
		}
		if err != nil {
			return nil, err
		}
	}
	w.start(c, hasPattern(c))
	return w, nil
}

// newConsumer returns a Consumer that is not started, with or without an error.
func newConsumer(subscription string, lim *dispatch.Limiter, opts []Option) (*Consumer, error) {
	o := newOptions(opts)
	c := &Consumer{lim: lim, channel: newChannel()}
	c.inFlight = inflight.New[partition](messageID.compare)
	c.polled.admin = o.admin
	if err := policy.ValidateSubscription(subscription); err != nil {
		return c, fmt.Errorf("pulsarthrottle: %w", err)
	}
	return c, c.stream.topics.init(lim, subscription, o)
}

// start gives a Consumer the client's consumer.
func (c *Consumer) start(inner pulsar.Consumer, pattern bool) {
	c.Consumer = inner
	c.stream.open(inner.Receive)
	c.polled.join(&c.stream, endsOf(inner, pattern))
	c.started.Store(true)
}

// Receive returns the next message when there are permits for it. If ctx ends first, the message is
// kept, and the next call returns it. After Close, or once the client has closed, the error is the
// client's. If the Limiter has been closed, the error wraps dispatch.ErrClosed.
func (c *Consumer) Receive(ctx context.Context) (pulsar.Message, error) {
	if c.lim == nil {
		return c.Consumer.Receive(ctx)
	}
	if c.channel.opened.Load() {
		return c.receiveFromChannel(ctx)
	}
	m, grant, err := c.stream.next(ctx)
	if err != nil {
		return nil, err
	}
	c.track(m, grant)
	return m, nil
}

// track counts a message as in flight until it is settled, where a policy has a maxInFlight.
func (c *Consumer) track(m pulsar.Message, grant dispatch.Grant) {
	if grant.InFlight() {
		c.inFlight.Add(partitionOf(m), messageIDOf(m.ID()), size(m), grant)
		grant = dispatch.Grant{}
	} else if c.stream.zeroQueue != nil {
		grant.Done(1, size(m)) // its bytes were unknown when it was acquired
	}
	c.stream.handOver(m, grant)
}
