package kafkathrottle

import (
	"context"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// CommitMessages is kafka-go's. A policy's maxInFlight no longer counts the messages that were
// committed, and those before them in their partitions.
func (r *Reader) CommitMessages(ctx context.Context, msgs ...kafka.Message) error {
	err := r.Reader.CommitMessages(ctx, msgs...)
	if err != nil || r.lim == nil || r.inFlight.Empty() {
		return err
	}
	for i := range msgs {
		committed := partition{msgs[i].Topic, msgs[i].Partition}
		r.inFlight.SettleThrough(msgs[i].Offset, func(p partition) bool { return p == committed })
	}
	return nil
}

// track counts a message as in flight until it is committed. Without a group nothing tells when a
// message is done, so it is not counted.
func (r *Reader) track(m *kafka.Message, bytes int64, grant dispatch.Grant) {
	if !r.group {
		grant.Done(1, bytes)
		return
	}
	r.inFlight.Add(partition{m.Topic, m.Partition}, m.Offset, bytes, grant)
}
