package pulsarthrottle

import (
	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A delivery names one message.
type delivery struct {
	partition partition
	id        messageID
}

func deliveryOf(m pulsar.Message) delivery { return delivery{partitionOf(m), messageIDOf(m.ID())} }

// Skip gives back the permits and the bytes of messages that were received and are not used, since
// they have expired or are filtered out, for example. Call it before Ack, and acknowledge the
// messages all the same. A permit can go back while it is not older than two batches of its limit,
// and Skip knows the last 1024 messages that had permits: others stay charged, as do those of a
// zero-queue consumer. A second call for a message does nothing.
func (c *Consumer) Skip(messages ...pulsar.Message) {
	if c.lim == nil {
		return
	}
	for _, m := range messages {
		if d := deliveryOf(m); !c.inFlight.Withdraw(d.partition, d.id) {
			c.stream.recent.Skip(d)
		}
	}
}

// handOver keeps the grant of a message that is handed over, so that it can be skipped; the zero
// Grant if its permits cannot go back.
func (s *stream) handOver(m pulsar.Message, grant dispatch.Grant) {
	if s.recent.Wants(grant) {
		s.recent.Add(deliveryOf(m), grant)
	}
}

// Skip gives back the permits and the bytes of messages that were read and are not used, as a
// Consumer's does. Messages to which a maxInFlight applies stay charged.
func (r *Reader) Skip(messages ...pulsar.Message) {
	if r.lim == nil {
		return
	}
	for _, m := range messages {
		r.stream.recent.Skip(deliveryOf(m))
	}
}
