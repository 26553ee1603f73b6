package kafkathrottle

import (
	"sync"
	"sync/atomic"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// forgetAfter is how many polls in a row a group's reader waits for messages of any partition, without one of a
// partition that it had, until that is no longer its own. As there is a poll each second, that takes 30 s; the time
// in which it waits for permits, or in which nobody asks it, does not count.
const forgetAfter = 30

// A topic is what a Reader knows of one of its topics.
type topic struct {
	name     string // Kafka's
	sub      *dispatch.Subscription
	reported atomic.Int64 // what sub was told last; -1 = unknown
	brokers  brokers      // that lead its partitions

	mu        sync.Mutex  // guards the fields below, and those of positions that are not atomic; whoever has the Reader's turn writes positions, and reads them without
	positions []*position // by partition; nil: never seen. Empty without a group
	changes   int         // of positions
}

// A position is how far a Reader of a group is in a partition.
type position struct {
	partition int
	era       *era // in which the partition was seen
	next      atomic.Int64
	forgotten atomic.Bool

	flying []flight // in the order of their offsets

	seen int64 // next as the poller saw it last
	idle int   // polls since then, see forgetAfter
}

// handOver moves the position behind m. To spare an atomic store for each message, it does so for every 64th only
// while it is not near the end that its fetch knew: a backlog that is as large counts up to 63 more.
func (p *position) handOver(m *kafka.Message) {
	if p != nil && (m.HighWaterMark-m.Offset <= 64 || m.Offset&63 == 0) {
		p.next.Store(m.Offset + 1)
	}
}

func newTopic(name string, sub *dispatch.Subscription) *topic {
	t := &topic{name: name, sub: sub}
	t.reported.Store(-1)
	return t
}

// certain is how many messages a fetch must have seen behind a message, beyond the backlog last reported, to be
// reported at once.
const certain = 100

// notice reports what a message says of the backlog. The end that came with it is as old as its fetch, so it never
// says that the reader has caught up; but that there is more behind it than was thought, it does say.
func (t *topic) notice(m *kafka.Message) {
	if reported := t.reported.Load(); reported >= 0 && m.HighWaterMark-m.Offset-1 > reported+certain {
		t.mu.Lock()
		t.report(m.HighWaterMark - m.Offset)
		t.mu.Unlock()
	}
}

// position returns where the Reader is in the message's partition. The backlog becomes unknown with a partition
// that is new, so that nothing is let through for what the others are.
func (t *topic) position(m *kafka.Message, now *era) *position {
	if m.Partition < len(t.positions) {
		if p := t.positions[m.Partition]; p != nil && p.era == now && !p.forgotten.Load() {
			return p
		}
	}
	return t.own(m, now)
}

// own adds a partition.
func (t *topic) own(m *kafka.Message, now *era) *position {
	p := &position{partition: m.Partition, era: now}
	p.next.Store(m.Offset)
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.positions) <= m.Partition {
		t.positions = append(t.positions, nil)
	}
	if old := t.positions[m.Partition]; old != nil {
		if old.era == now { // it was only forgotten
			p.flying = old.flying
		} else {
			old.land(landAll)
		}
	}
	t.positions[m.Partition] = p
	t.changes++
	t.report(-1)
	return p
}

// report tells the subscription. The caller holds t.mu.
func (t *topic) report(backlog int64) {
	t.reported.Store(backlog)
	t.sub.ReportBacklog(backlog)
}

// A place is where a reader was in a partition.
type place struct {
	partition int
	next      int64 // or kafka.FirstOffset, LastOffset
}

// owned returns where the Reader is in the partitions that are its own now; hungry says that it waits for messages.
// changes goes back to conclude.
func (t *topic) owned(r *Reader, hungry bool) (places []place, changes int) {
	if !r.group {
		return []place{{r.config.Partition, r.Offset()}}, 0
	}
	now := r.era.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.positions {
		if p == nil || p.era != now || p.forgotten.Load() {
			continue
		}
		next := p.next.Load()
		if next != p.seen {
			p.seen, p.idle = next, 0
		} else if hungry {
			p.idle++
		}
		if p.idle > forgetAfter {
			p.forgotten.Store(true)
			continue
		}
		places = append(places, place{p.partition, next})
	}
	return places, t.changes
}

// conclude reports a backlog, unless a partition has come in since owned.
func (t *topic) conclude(backlog int64, changes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changes == changes {
		t.report(backlog)
	}
}
