package kafkathrottle

import "github.com/segmentio/kafka-go"

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
		of := partition{msgs[i].Topic, msgs[i].Partition}
		if !r.inFlight.Withdraw(of, msgs[i].Offset) {
			r.recent.Skip(record{of, msgs[i].Offset})
		}
	}
}
