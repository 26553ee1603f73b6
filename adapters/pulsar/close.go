package pulsarthrottle

import (
	"context"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// leaveTimeout is how long Close waits for calls of the client that may not return.
const leaveTimeout = time.Second

// Close ends the calls that wait: they return the client's error. A message that was received and
// not returned is not acknowledged, so the broker delivers it again. Close returns the permits
// allocated for this Consumer alone, and closes the client's. Close the Consumer before its
// Limiter.
func (c *Consumer) Close() {
	if c.lim == nil {
		c.Consumer.Close()
		return
	}
	c.once.Do(func() {
		c.stream.Close()
		c.polled.leave()
		c.stream.closeClient(c.Consumer.Close)
		if c.channel.opened.Load() {
			<-c.channel.ended
		}
		c.inFlight.SettleAll()
		c.stream.topics.close()
	})
}

// Close ends the calls that wait, returns the permits allocated for this Reader alone, and closes
// the client's. Close the Reader before its Limiter.
func (r *Reader) Close() {
	if r.lim == nil {
		r.Reader.Close()
		return
	}
	r.once.Do(func() {
		r.stream.Close()
		r.polled.leave()
		r.stream.closeClient(r.Reader.Close)
		r.stream.topics.close()
	})
}

// closeClient ends what waits, and runs the client's Close. A seek that does not return, as when
// the client was closed under it, is left alone after leaveTimeout.
func (s *stream) closeClient(run func()) {
	s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	s.Drain(ctx)
	run()
	s.markClosed()
}

// closedError returns the error with which the client says that it is closed.
func (s *stream) closedError() error {
	<-s.closed.Done()
	for {
		if _, err := s.receive(context.Background()); err != nil {
			return err
		}
	}
}

// A closeObserver ends the waits of a Consumer that the client closes: by Client.Close, or because
// it gives up connecting.
type closeObserver struct{ c *Consumer }

// OnConsumerClose is called by the client.
func (o closeObserver) OnConsumerClose(pulsar.Consumer, error) {
	if o.c.started.Load() {
		o.c.stream.Close()
		o.c.stream.markClosed()
	}
}

func (closeObserver) BeforeConsume(pulsar.ConsumerMessage)                   {}
func (closeObserver) OnAcknowledge(pulsar.Consumer, pulsar.MessageID)        {}
func (closeObserver) OnNegativeAcksSend(pulsar.Consumer, []pulsar.MessageID) {}
