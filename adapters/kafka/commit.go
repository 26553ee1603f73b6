package kafkathrottle

import (
	"context"
	"errors"
	"io"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// CommitMessages is kafka-go's. A policy's maxInFlight no longer counts the messages that were
// committed, and those before them in their partitions. A commit for which kafka-go has no answer
// when the Reader is closed returns io.ErrClosedPipe, as one after Close does.
func (r *Reader) CommitMessages(ctx context.Context, msgs ...kafka.Message) error {
	err := r.commit(ctx, msgs)
	if err != nil || r.lim == nil || r.inFlight.Empty() {
		return err
	}
	for i := range msgs {
		committed := partition{msgs[i].Topic, msgs[i].Partition}
		r.inFlight.SettleThrough(msgs[i].Offset, func(p partition) bool { return p == committed })
	}
	return nil
}

// commit is kafka-go's, which does not answer a commit that comes while it closes.
func (r *Reader) commit(ctx context.Context, msgs []kafka.Message) error {
	if r.lim == nil || r.config.CommitInterval > 0 { // which waits for no answer
		return r.Reader.CommitMessages(ctx, msgs...)
	}
	open, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.closed, cancel)()
	err := r.Reader.CommitMessages(open, msgs...)
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return io.ErrClosedPipe
	}
	return err
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

// A record names one message.
type record struct {
	partition partition
	offset    int64
}

// Skip gives back the permits and the bytes of messages that were fetched and are not used, since
// they have expired or are filtered out, for example. Call it before the commit, and commit the
// messages all the same. A permit can go back while it is not older than two batches of its limit,
// and Skip knows the last 1024 messages that had permits: others stay charged. Without a group, so
// do messages to which a maxInFlight applies. A second call for a message does nothing.
func (r *Reader) Skip(msgs ...kafka.Message) {
	if r.lim == nil {
		return
	}
	for i := range msgs {
		part := partition{msgs[i].Topic, msgs[i].Partition}
		if !r.inFlight.Withdraw(part, msgs[i].Offset) {
			r.recent.Skip(record{part, msgs[i].Offset})
		}
	}
}
