package pulsarthrottle

import "github.com/apache/pulsar-client-go/pulsar"

// What happens when a connection is lost, or the broker unloads a topic:
//
//  1. The client reconnects by itself, and drops its queue. Calls of Receive wait on.
//  2. A message that waits for its permits is kept, and returned when they come.
//  3. The broker delivers again every message that was not acknowledged, that one too. Each needs
//     permits again; in flight it takes the place of its first delivery.
//  4. While the broker cannot be reached, the backlog is unknown, so the limit applies.

// received moves the place to a message. A message that is delivered again does not move it back.
func (p *place) received(id pulsar.MessageID) {
	p.topic.batch.Store(int64(max(1, id.BatchSize())))
	at, left := positionOf(id), int64(max(0, id.BatchSize()-1-max(0, id.BatchIdx())))
	p.mu.Lock()
	defer p.mu.Unlock()
	if order := at.compare(p.last); order > 0 || order == 0 && left < p.left {
		p.last, p.left = at, left
	}
	p.seen++
}
