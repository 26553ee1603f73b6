// Package pulsarthrottle puts the limits of a dispatch.Limiter in front of consumers and readers of pulsar-client-go.
//
//	c, err := pulsarthrottle.Subscribe(client, pulsar.ConsumerOptions{Topic: "orders", SubscriptionName: "billing"}, lim)
//	m, err := c.Receive(ctx) // comes back when there is a permit for m
//	err = c.Ack(m)
//
// All partitions of a topic have one limit, which all subscriptions, consumers and processes share. Each message is
// charged to its own topic, a batch by its messages, with its exact size: payload, key, and the names and values of its
// properties. A message that is sent again is charged again. What waits for permits is bounded: see [Subscribe].
//
// While a consumer waits, its client goes on as ever: connection, acknowledgements, pings. What waits is unacknowledged
// until it is handed over and acknowledged, so nothing is lost if the process dies; no broker time-out applies to it.
package pulsarthrottle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Consumer is a pulsar.Consumer whose messages wait for their permits. What is not said here is as there. Any number
// of goroutines may use it at once; Receive serves them one after the other.
//
// A consumer of several topics hands over in the order in which the client does: while a message waits for the permits of
// its topic, those of the other topics behind it wait, too.
type Consumer struct {
	pulsar.Consumer

	gate    gate
	lim     *dispatch.Limiter // nil: nothing here is used
	polled  polled
	flights flights
	started atomic.Bool // the fields above are set, for callbacks

	once    sync.Once
	pumping sync.Once
	out     chan pulsar.ConsumerMessage // what Chan returns
	pumped  atomic.Bool                 // the pump has begun: from then on messages come from out
	drained chan struct{}               // closed when the pump has ended, for the reason in failed
	failed  error
}

var _ pulsar.Consumer = (*Consumer)(nil)

// Subscribe is client.Subscribe for a consumer whose messages wait for the permits of lim; with a nil lim they do not wait.
// The error is the client's; for a topic or a subscription that Pulsar allows and policies cannot name, it is a *policy.FieldError.
//
// Subscribe bounds what the broker may push ahead of the permits, by the limits in force when it is called: for each
// partition, ReceiverQueueSize is 1 up to 100 messages a second, else what the limit allows in 50 ms over all partitions of
// the topic, and at most what options say (default 1000). Of several Topics the smallest queue counts; a TopicsPattern,
// whose topics are not known, has at most 100. A message counts as 1 KiB where only bytes are limited. A broker without
// preciseDispatcherFlowControl, which is the default, counts a batch as one message here. One message more waits for its
// permit. The client cannot change its queue later, so a limit that is set or changed later does not either.
//
// With EnableZeroQueueConsumer nothing is pushed ahead: the permit comes first, then the client is asked for the message. The
// client's faults remain: a Receive whose context ends before a message comes lets the broker push one message ahead, each
// time; a Receive that waits during a seek or an unload may miss the messages, so give it a deadline; and client.Close
// waits for a Receive to end. Chan panics, as the client's does.
//
// The client's callbacks (Interceptors and EventListener) name the Consumer that Subscribe returns; those that run
// before it returns, and those of a consumer that was given to [Wrap], name the client's.
func Subscribe(client pulsar.Client, options pulsar.ConsumerOptions, lim *dispatch.Limiter, opts ...Option) (*Consumer, error) {
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
	if err == nil {
		err = c.limitQueue(client, &options)
	}
	if err != nil {
		c.gate.topics.close()
		return nil, refusal(err, func() (pulsar.Consumer, error) { return client.Subscribe(given) })
	}
	c.nameIn(&options)
	inner, err := client.Subscribe(options)
	if err != nil {
		c.gate.topics.close()
		return nil, err
	}
	c.start(inner)
	if given.MessageChannel != nil && c.gate.zeroQueue == nil {
		c.out = given.MessageChannel
		c.Chan()
	}
	return c, nil
}

// refusal is the error for options that ours refuses: the client's own, which callers may ask for its type and result, if it
// refuses them, too.
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

// Wrap puts lim in front of c, which the new Consumer owns from now on and closes. What the broker pushes ahead is what c was
// opened with: its ReceiverQueueSize for each partition, and 10 more in its channel. A MessageChannel that c was given must
// not be read any more: use Chan. A zero-queue consumer stays one: see [Subscribe].
func Wrap(c pulsar.Consumer, lim *dispatch.Limiter, opts ...Option) (*Consumer, error) {
	if lim == nil {
		return &Consumer{Consumer: c}, nil
	}
	w, err := newConsumer(c.Subscription(), lim, opts)
	if err != nil {
		return nil, err
	}
	if isZeroQueue(c) {
		ids, err := c.GetLastMessageIDs() // the only way to its topic
		if err == nil {
			w.gate.zeroQueue, err = w.gate.topics.open(ids[0].Topic())
		}
		if err != nil {
			return nil, err
		}
	}
	w.start(c)
	return w, nil
}

// isZeroQueue finds out by what such a consumer cannot do.
func isZeroQueue(c pulsar.Consumer) (zero bool) {
	defer func() { zero = recover() != nil }()
	c.Chan()
	return false
}

// newConsumer returns a Consumer that is not started, with or without an error.
func newConsumer(subscription string, lim *dispatch.Limiter, opts []Option) (*Consumer, error) {
	o := newOptions(opts)
	c := &Consumer{lim: lim, out: make(chan pulsar.ConsumerMessage), drained: make(chan struct{})}
	c.polled = polled{gate: &c.gate, admin: o.admin}
	if err := policy.ValidateSubscription(subscription); err != nil {
		return c, fmt.Errorf("pulsarthrottle: %w", err)
	}
	return c, c.gate.topics.begin(lim, subscription, o)
}

func (c *Consumer) start(inner pulsar.Consumer) {
	c.Consumer = inner
	c.gate.open(inner.Receive)
	c.polled.ends = endsOf(inner)
	c.polled.join()
	c.started.Store(true)
}

// Receive returns the next message when there is a permit for it. If ctx ends first, the message is kept for the next
// call, whoever makes it. After Close, or once the client has closed, the error is the client's; if the Limiter has been
// closed first, it wraps dispatch.ErrClosed.
func (c *Consumer) Receive(ctx context.Context) (pulsar.Message, error) {
	if c.lim == nil {
		return c.Consumer.Receive(ctx)
	}
	if c.pumped.Load() {
		return c.receivePumped(ctx)
	}
	m, grant, err := c.gate.next(ctx)
	if err != nil {
		return nil, err
	}
	if grant.InFlight() {
		c.flights.add(m, grant)
	} else if c.gate.zeroQueue != nil {
		grant.Done(1, size(m)) // its bytes were not known
	}
	return m, nil
}

// Chan returns the channel in which messages come when there are permits for them, one at a time: the next waits for its
// permit while that is not taken. After the first call, Receive reads from it, too. Like the client's it is never closed,
// and the Consumer of its messages is c. It panics for a zero-queue consumer, as the client's does.
func (c *Consumer) Chan() <-chan pulsar.ConsumerMessage {
	if c.lim == nil || c.gate.zeroQueue != nil {
		return c.Consumer.Chan()
	}
	c.pumping.Do(func() {
		c.pumped.Store(true)
		go c.pump()
	})
	return c.out
}

// pump moves messages to the channel. It keeps the turn while one is in there, so that a Seek finds it.
func (c *Consumer) pump() {
	defer close(c.drained)
	for {
		if c.gate.turn.Take(context.Background(), c.gate.closing) != nil {
			c.failed = errClosing
			return
		}
		now := c.gate.era.Load()
		err := c.offer(now)
		c.gate.turn.Pass()
		if errors.Is(err, errMoved) {
			c.gate.rest(context.Background(), now)
		} else if err != nil { // closed, or the Limiter is
			c.failed = err
			return
		}
	}
}

// offer puts the next message into the channel.
func (c *Consumer) offer(now *era) error {
	var grant dispatch.Grant
	m, err := c.gate.obtain(context.Background(), now, &grant)
	if err != nil {
		return err
	}
	if grant.InFlight() {
		c.flights.add(m, grant)
	}
	select {
	case c.out <- pulsar.ConsumerMessage{Consumer: c, Message: m}:
		return nil
	case <-now.Done():
		if grant.InFlight() {
			c.flights.cancel(m.ID())
		} else {
			grant.Done(0, 0)
		}
		c.gate.keep(m)
		return errMoved
	}
}

func (c *Consumer) receivePumped(ctx context.Context) (pulsar.Message, error) {
	select {
	case m := <-c.out:
		return m.Message, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.drained:
		if errors.Is(c.failed, errClosing) {
			return nil, c.gate.ended()
		}
		return nil, c.failed
	}
}

// Seek drops the message that waits for its permit, if there is one, and goes on at id. After Close the error is that of
// Receive, where the client's would not return.
func (c *Consumer) Seek(id pulsar.MessageID) error {
	return c.move(func() error { return c.Consumer.Seek(id) })
}

// SeekByTime is Seek to what was published at t or later.
func (c *Consumer) SeekByTime(t time.Time) error {
	return c.move(func() error { return c.Consumer.SeekByTime(t) })
}

// Unsubscribe drops the message that waits for its permit, if there is one; it is with the subscription that it goes.
func (c *Consumer) Unsubscribe() error { return c.move(c.Consumer.Unsubscribe) }

// UnsubscribeForce is Unsubscribe though others are connected.
func (c *Consumer) UnsubscribeForce() error { return c.move(c.Consumer.UnsubscribeForce) }

func (c *Consumer) move(elsewhere func() error) error {
	if c.lim == nil {
		return elsewhere()
	}
	return c.gate.move(func() error {
		err := elsewhere()
		if err == nil {
			c.flights.landAll()
		}
		return err
	})
}

// Close ends what waits, returns the permits allocated for this Consumer alone, and closes the client's. What was received and
// not handed over is not acknowledged, so it comes again. Close the Consumer before its Limiter.
func (c *Consumer) Close() {
	if c.lim == nil {
		c.Consumer.Close()
		return
	}
	c.once.Do(func() {
		c.gate.close()
		c.polled.leave()
		c.gate.shut(c.Consumer.Close)
		if c.pumped.Load() {
			<-c.drained
		}
		c.flights.landAll()
		c.gate.topics.close()
	})
}
