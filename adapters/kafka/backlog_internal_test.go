package kafkathrottle

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestForget: a partition that brings no message for forgetAfter polls does not count any more, and
// no poll counts while the Reader does not wait for messages.
func TestForget(t *testing.T) {
	r := &Reader{group: true}
	r.receiver.Open()
	defer r.receiver.Close()
	idle, busy := &position{partition: 0}, &position{partition: 2}
	idle.generation, busy.generation = r.receiver.Current(), r.receiver.Current()
	topic := &topic{positions: []*position{idle, nil, busy}}
	seen := func(receiving bool) (partitions []int) {
		busy.next.Add(1)
		places, _ := topic.places(r, receiving)
		for _, p := range places {
			partitions = append(partitions, p.partition)
		}
		return partitions
	}
	for range 2 * forgetAfter {
		assert.Equal(t, []int{0, 2}, seen(false))
	}
	for range forgetAfter - 1 {
		assert.Equal(t, []int{0, 2}, seen(true))
	}
	idle.next.Add(1)
	for range forgetAfter + 1 {
		assert.Equal(t, []int{0, 2}, seen(true))
	}
	assert.Equal(t, []int{2}, seen(true))
	assert.Equal(t, []int{2}, seen(true))
	r.receiver.Next()
	assert.Empty(t, seen(true), "a new generation")
}
