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
	limited  limited
	sub      *dispatch.Subscription
	reported atomic.Int64 // what sub was told last; -1 = unknown

	mu        sync.Mutex  // guards the fields below; whoever has the Reader's turn writes positions, and reads them without
	positions []*position // by partition; nil: never seen
	changes   int         // of positions
}

// A position is how far a Reader is in a partition.
type position struct {
	partition int
	era       *era         // with a group: in which the partition was seen
	next      atomic.Int64 // offset behind the last message handed over, or kafka.FirstOffset, LastOffset
	forgotten atomic.Bool

	seen int64 // next as the poller saw it last
	idle int   // polls since then, see forgetAfter
}

// limited names what has limits, as dispatch.Stats does.
type limited struct{ topic, subscription string }

func newTopic(name string, l limited, sub *dispatch.Subscription) *topic {
	t := &topic{name: name, limited: l, sub: sub}
	t.reported.Store(-1)
	return t
}

// certain is how many messages a fetch must have seen behind a message, beyond the backlog last reported, to be
// reported at once.
const certain = 100

// position returns where the Reader is in the message's partition. The backlog becomes unknown with a partition
// that is new, so that nothing is let through for what the others are.
//
// The end that came with the message is as old as its fetch. So it never says that the reader has
// caught up; but that there was more behind the message than was thought, it does say.
func (t *topic) position(m *kafka.Message, now *era, group bool) *position {
	var p *position
	if m.Partition < len(t.positions) {
		p = t.positions[m.Partition]
	}
	if p == nil || group && p.era != now || p.forgotten.Load() {
		return t.own(m, now)
	}
	if reported := t.reported.Load(); reported >= 0 && m.HighWaterMark-m.Offset-1 > reported+certain {
		t.mu.Lock()
		t.report(m.HighWaterMark - m.Offset)
		t.mu.Unlock()
	}
	return p
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
	next      int64
}

// owned returns where the Reader is in the partitions that are its own now; hungry says that it waits for messages.
// changes goes back to conclude.
func (t *topic) owned(r *Reader, hungry bool) (places []place, changes int) {
	now := r.era.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.positions {
		if p == nil || r.group && (p.era != now || p.forgotten.Load()) {
			continue
		}
		next := p.next.Load()
		if next != p.seen {
			p.seen, p.idle = next, 0
		} else if hungry {
			p.idle++
		}
		if r.group && p.idle > forgetAfter {
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
