package pulsarthrottle

import (
	"cmp"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"
)

// A place is how far a consumer has come in a partition, or in a topic without partitions.
type place struct {
	name  string // as messages have it: with -partition-N
	topic *topic
	used  bool // by a message since idle places were last forgotten; guarded by the receiver's lock

	mu   sync.Mutex
	last position // of the last message received
	left int64    // messages behind it in its batch
	seen int64    // messages received
	mark mark     // see behind
}

// A position is where an entry lies in a partition: the IDs of BookKeeper's ledger, which is unique
// in a cluster, and of the entry in that.
type position struct{ ledgerID, entryID int64 }

// beforeAll is before every position.
var beforeAll = position{-1, -1}

func positionOf(id pulsar.MessageID) position { return position{id.LedgerID(), id.EntryID()} }

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.ledgerID, q.ledgerID), cmp.Compare(p.entryID, q.entryID))
}

// forget makes the place unknown.
func (p *place) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.left, p.mark = beforeAll, 0, mark{}
}

// count returns the number of messages received.
func (p *place) count() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// When a connection is lost, or the broker unloads a topic:
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
