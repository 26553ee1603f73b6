package pulsarthrottle

import "github.com/apache/pulsar-client-go/pulsar"

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
