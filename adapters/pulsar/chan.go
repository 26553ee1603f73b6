package pulsarthrottle

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle/adapters/internal/generation"
	"github.com/dispatchthrottle/throttle/adapters/internal/receiver"
)

// A channel is what Chan returns, and the goroutine that fills it.
type channel struct {
	messages chan pulsar.ConsumerMessage
	once     sync.Once
	opened   atomic.Bool   // from now on messages come from the channel
	ended    chan struct{} // closed when the goroutine has ended
	err      error         // why it has ended
}

func newChannel() channel {
	return channel{messages: make(chan pulsar.ConsumerMessage), ended: make(chan struct{})}
}

// Chan returns a channel of messages for which there are permits, one at a time: while a message
// is not taken, the next does not get its permits. After the first call, Receive reads from the
// channel too. Like the client's, the channel is never closed, and the Consumer of its messages
// is c. Chan panics for a zero-queue consumer, as the client's does.
func (c *Consumer) Chan() <-chan pulsar.ConsumerMessage {
	if c.lim == nil || c.stream.zeroQueue != nil {
		return c.Consumer.Chan()
	}
	c.channel.once.Do(func() {
		c.channel.opened.Store(true)
		go c.fillChannel()
	})
	return c.channel.messages
}

// fillChannel moves messages to the channel. It holds the lock until a message is taken from the
// channel, so that a Seek finds a message that is not.
func (c *Consumer) fillChannel() {
	defer close(c.channel.ended)
	for {
		if err := c.stream.Lock(context.Background()); err != nil {
			c.channel.err = err
			return
		}
		g := c.stream.Current()
		err := c.offer(g)
		c.stream.Unlock()
		if errors.Is(err, receiver.ErrMoved) {
			c.stream.awaitNext(context.Background(), g)
		} else if err != nil { // the Consumer or the Limiter is closed
			c.channel.err = err
			return
		}
	}
}

// offer puts the next message into the channel. If g ends first, the message is kept.
func (c *Consumer) offer(g *generation.Generation) error {
	m, grant, err := c.stream.obtain(context.Background(), g)
	if err != nil {
		return err
	}
	c.track(m, grant)
	select {
	case c.channel.messages <- pulsar.ConsumerMessage{Consumer: c, Message: m}:
		return nil
	case <-g.Done():
		c.Skip(m)
		c.stream.Keep(m)
		return receiver.ErrMoved
	}
}

// receiveFromChannel is Receive after Chan.
func (c *Consumer) receiveFromChannel(ctx context.Context) (pulsar.Message, error) {
	select {
	case m := <-c.channel.messages:
		return m.Message, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.channel.ended:
		return nil, c.stream.clientError(c.channel.err)
	}
}
