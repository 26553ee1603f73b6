package pulsarthrottle

import (
	"context"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle/dispatch"
)

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
