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
