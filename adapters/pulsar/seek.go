package pulsarthrottle

import (
	"context"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Seek drops the message that waits for its permits, if there is one, and continues at id. After
// Close the error is that of Receive, where the client's Seek would not return.
func (c *Consumer) Seek(id pulsar.MessageID) error {
	return c.seek(func() error { return c.reconnected(c.Consumer.Seek(id)) })
}

// SeekByTime is Seek to the messages published at t or later.
func (c *Consumer) SeekByTime(t time.Time) error {
	return c.seek(func() error { return c.reconnected(c.Consumer.SeekByTime(t)) })
}

// reconnected gives the client's zero-queue consumer time to reconnect after a seek that succeeded.
// A Receive that comes before that may wait forever: the client can lose its request for a message,
// in 5 of 5,340 seeks on a busy machine. The client does not tell when it has reconnected.
func (c *Consumer) reconnected(err error) error {
	if err == nil && c.stream.zeroQueue != nil {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-c.stream.Closing().Done():
		}
	}
	return err
}

// Unsubscribe drops the message that waits for its permits, if there is one: it goes with the
// subscription.
func (c *Consumer) Unsubscribe() error { return c.seek(c.Consumer.Unsubscribe) }

// UnsubscribeForce is Unsubscribe even if other consumers are connected.
func (c *Consumer) UnsubscribeForce() error { return c.seek(c.Consumer.UnsubscribeForce) }

func (c *Consumer) seek(run func() error) error {
	if c.lim == nil {
		return run()
	}
	return c.stream.seek(func() error {
		err := run()
		if err == nil {
			c.inFlight.SettleAll()
		}
		return err
	})
}

// Seek drops the message that waits for its permits, if there is one, and continues at id.
func (r *Reader) Seek(id pulsar.MessageID) error {
	return r.seek(func() error { return r.Reader.Seek(id) })
}

// SeekByTime is Seek to the messages published at t or later.
func (r *Reader) SeekByTime(t time.Time) error {
	return r.seek(func() error { return r.Reader.SeekByTime(t) })
}

func (r *Reader) seek(run func() error) error {
	if r.lim == nil {
		return run()
	}
	return r.stream.seek(run)
}

// seek ends the generation, and runs the client's seek while no call receives. The message that was
// received and not returned is dropped, as the client drops its queue, unless the seek fails.
func (s *stream) seek(run func() error) error {
	s.seeking.Lock()
	defer s.seeking.Unlock()
	s.Current().End()
	if err := s.Lock(context.Background()); err != nil || s.Closing().Err() != nil {
		if err == nil {
			s.Unlock()
		}
		return s.closedError() // the client's Seek may not return once its consumer is closed
	}
	defer s.Unlock()
	defer s.Next()
	err := run()
	if err == nil {
		s.Drop()
		s.topics.forgetPlaces()
	}
	return err
}
