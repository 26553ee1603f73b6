package kafkathrottle

import (
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
)

func TestSize(t *testing.T) {
	m := kafka.Message{Key: []byte("key"), Topic: "orders"}
	assert.EqualValues(t, 3, size(&m), "a tombstone")
	m.Value = []byte("value")
	assert.EqualValues(t, 8, size(&m))
	m.Headers = []kafka.Header{{Key: "a", Value: []byte("1234")}, {Key: "bc"}}
	assert.EqualValues(t, 15, size(&m))
}
