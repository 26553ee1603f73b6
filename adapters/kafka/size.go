package kafkathrottle

import "github.com/segmentio/kafka-go"

// size returns the bytes that a message counts as: its key, its value, and the keys and values of
// its headers. A tombstone has no value and counts as the rest; it needs a permit like any message.
func size(m *kafka.Message) int64 {
	n := len(m.Key) + len(m.Value)
	for i := range m.Headers {
		n += len(m.Headers[i].Key) + len(m.Headers[i].Value)
	}
	return int64(n)
}
