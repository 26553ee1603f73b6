package pulsarthrottle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle/adapters/internal/generation"
	"github.com/dispatchthrottle/throttle/adapters/internal/receiver"
	"github.com/dispatchthrottle/throttle/adapters/internal/recent"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// A stream is the messages of a client's consumer or reader, one after the other, when there are
// permits for them. A message is received first and then gets its permits. With a zero-queue
// consumer, to which the broker pushes nothing ahead, the permit comes first: each Receive of the
// client asks the broker for one more message.
type stream struct {
	receiver.Receiver[pulsar.Message]

	receive   func(context.Context) (pulsar.Message, error) // the client's
	only      *topic                                        // of all messages, if that is known
	zeroQueue *topic                                        // of a zero-queue consumer, or nil

	// Guarded by the receiver's lock:
	sub    *dispatch.Subscription // whose permits the message in hand has or waits for
	last   *place                 // of the last message
	places map[string]*place      // by topic, as messages have it
	swept  time.Time              // when idle places were last forgotten

	topics     topics
	recent     recent.Grants[delivery]
	seeking    sync.Mutex      // one seek at a time, so that each ends the generation in force
	closed     context.Context // ends when the client's consumer is closed
	markClosed context.CancelFunc
}

// open opens the stream of a client's consumer or reader.
func (s *stream) open(receive func(context.Context) (pulsar.Message, error)) {
	s.receive = receive
	s.places = map[string]*place{}
	s.closed, s.markClosed = context.WithCancel(context.Background())
	s.Receiver.Open()
}

// next returns the next message and its permits. If ctx ends first, a message that was received is
// kept for the next call.
func (s *stream) next(ctx context.Context) (m pulsar.Message, grant dispatch.Grant, err error) {
	for {
		if !s.TryLock() {
			if err = s.Lock(ctx); err != nil {
				return nil, grant, s.clientError(err)
			}
		}
		g := s.Current()
		m, grant, err = s.obtain(ctx, g)
		s.Unlock()
		if err == nil {
			return m, grant, nil
		}
		if !errors.Is(err, receiver.ErrMoved) {
			return nil, grant, s.clientError(err)
		}
		s.awaitNext(ctx, g)
	}
}

// clientError returns the client's error for a call that Close ended.
func (s *stream) clientError(err error) error {
	if errors.Is(err, receiver.ErrClosing) {
		return s.closedError()
	}
	return err
}

// awaitNext waits until the generation after g has started.
func (s *stream) awaitNext(ctx context.Context, g *generation.Generation) {
	select {
	case <-g.Replaced():
	case <-ctx.Done():
	case <-s.Closing().Done():
	}
}

// obtain returns the next message of g and its permits, to the holder of the lock. If it fails, a
// message that was received is kept, and permits go back.
func (s *stream) obtain(
	ctx context.Context, g *generation.Generation,
) (m pulsar.Message, grant dispatch.Grant, err error) {
	joined := s.Join(ctx, g)
	switch {
	case g.Err() != nil: // a call that begins now would not be seen by the seek that ended g
	case s.Keeps():
		m = s.Kept()
		grant, err = s.acquire(ctx, g, m, s.place(m.Topic()).topic)
	case s.zeroQueue != nil:
		m, grant, err = s.acquireFirst(joined)
	default:
		var t *topic
		if m, t, err = s.ask(joined); err == nil {
			grant, err = s.acquire(ctx, g, m, t)
		}
	}
	if err = s.Err(ctx, g, err); err != nil {
		if m != nil {
			s.Keep(m)
		}
		grant.Done(0, 0)
		return nil, dispatch.Grant{}, err
	}
	if s.Keeps() {
		s.Drop()
	}
	if s.sub.Metered() {
		s.topics.broker.Read(s.sub, size(m))
	}
	return m, grant, nil
}

// ask receives the client's next message, and notes how far the client has come.
func (s *stream) ask(ctx context.Context) (pulsar.Message, *topic, error) {
	m, err := s.receive(ctx)
	if err != nil {
		return nil, nil, err
	}
	watched := s.topics.watched.Load()
	if !watched && s.only != nil { // the message, which another core has written, is not read
		return m, s.only, nil
	}
	p := s.place(m.Topic())
	if watched {
		s.topics.received.Add(1)
		if p.topic.watched.Load() {
			p.received(m.ID())
		}
	}
	return m, p.topic, nil
}

// place returns the place of messages of a topic, without a lock: each message asks for it.
func (s *stream) place(topic string) *place {
	if s.last != nil && s.last.name == topic {
		return s.last
	}
	p := s.places[topic]
	if p == nil {
		s.forgetIdle()
		p = s.topics.place(topic)
		s.places[topic] = p
	}
	p.used = true
	s.last = p
	return p
}

// forgetAfter is how long a topic that the options do not name has no messages before it may be
// forgotten.
const forgetAfter = 10 * time.Minute

// forgetIdle forgets the places that had no message since the last time. A consumer of a pattern
// meets topics that come and go.
func (s *stream) forgetIdle() {
	now := time.Now()
	if now.Sub(s.swept) < forgetAfter {
		return
	}
	s.swept = now
	for name, p := range s.places {
		if !p.used && p != s.last {
			delete(s.places, name)
			s.topics.forget(p)
		}
		p.used = false
	}
}

// acquire waits for the permits of a message.
func (s *stream) acquire(
	ctx context.Context, g *generation.Generation, m pulsar.Message, t *topic,
) (grant dispatch.Grant, err error) {
	if t.err != nil {
		return grant, t.err
	}
	s.sub = s.topics.subscriptionOf(t, m)
	if !s.sub.Limited() { // its size need not be known
		return grant, nil
	}
	grant, err = s.Acquire(ctx, g, s.sub, size(m))
	return grant, closedLimiter(err)
}

// closedLimiter names this package in the error of a Limiter that is closed.
func closedLimiter(err error) error {
	if errors.Is(err, dispatch.ErrClosed) {
		return fmt.Errorf("pulsarthrottle: %w", dispatch.ErrClosed)
	}
	return err
}

// size returns the bytes that a message counts as: its payload, its key, and the names and values
// of its properties. A tombstone has no payload and counts as the rest; it needs a permit like
// any message.
func size(m pulsar.Message) int64 {
	n := len(m.Payload()) + len(m.Key())
	for k, v := range m.Properties() {
		n += len(k) + len(v)
	}
	return int64(n)
}

// acquireFirst is obtain for a zero-queue consumer: the permit comes before the message, since the
// client asks the broker for a message in each Receive.
func (s *stream) acquireFirst(
	ctx context.Context,
) (m pulsar.Message, grant dispatch.Grant, err error) {
	s.sub = s.zeroQueue.sub
	if grant, err = s.sub.Acquire(ctx, 1); err != nil {
		return nil, grant, closedLimiter(err)
	}
	m, _, err = s.ask(ctx)
	return m, grant, err
}

// isZeroQueue reports whether c is the client's zero-queue consumer, whose type is not exported. It
// is the only consumer of the client with a Lock method: TestClientTypes fails if that changes.
func isZeroQueue(c pulsar.Consumer) bool {
	_, ok := c.(sync.Locker)
	return ok
}
