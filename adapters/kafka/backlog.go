package kafkathrottle

import (
	"sync"
	"sync/atomic"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle/adapters/internal/generation"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// A topic is the state of a Reader for one of its topics.
type topic struct {
	name     string // Kafka's
	sub      *dispatch.Subscription
	reported atomic.Int64 // the last backlog that sub was told; -1 = unknown
	leaders  leaders

	// mu guards the fields below, and the fields of positions that are not atomic. Positions are
	// written only under the receiver's lock, where they are also read without mu.
	mu        sync.Mutex
	positions []*position // by partition; nil: never seen. Empty without a group
	changes   int         // of positions
}

// A position is how far a Reader of a group has come in a partition.
type position struct {
	partition  int
	generation *generation.Generation // in which the partition was seen
	next       atomic.Int64           // the offset after the last message that was returned
	forgotten  atomic.Bool            // the partition may belong to another consumer

	polled int64 // next at the last poll
	idle   int   // polls since next changed; see forgetAfter
}

// forgetAfter is the number of polls after which a Reader forgets a partition that brings no
// messages. Polls count while the Reader waits for messages of any partition, and not while it
// waits for permits or is not called. At a poll a second, it takes 30 s.
const forgetAfter = 30

func newTopic(name string, sub *dispatch.Subscription) *topic {
	t := &topic{name: name, sub: sub}
	t.reported.Store(-1)
	return t
}

// handOver moves the position past m. An atomic store for each message would cost more than the
// rest, so far from the end of the partition, as the fetch knew it, only each 64th message moves
// the position: a backlog of that size may count up to 63 messages more.
func (p *position) handOver(m *kafka.Message) {
	if p != nil && (m.HighWaterMark-m.Offset <= 64 || m.Offset&63 == 0) {
		p.next.Store(m.Offset + 1)
	}
}

// noticeMargin is how many messages more than the reported backlog a fetch must have seen behind a
// message, for the backlog to be reported at once.
const noticeMargin = 100

// noticeBacklog reports what a message tells of the backlog. Its high-water mark is as old as its
// fetch: it never shows that a Reader has caught up, but it shows that the backlog has grown.
func (t *topic) noticeBacklog(m *kafka.Message) {
	reported := t.reported.Load()
	if reported >= 0 && m.HighWaterMark-m.Offset-1 > reported+noticeMargin {
		t.mu.Lock()
		t.report(m.HighWaterMark - m.Offset)
		t.mu.Unlock()
	}
}

// position returns the position in the message's partition.
func (t *topic) position(m *kafka.Message, now *generation.Generation) *position {
	if m.Partition < len(t.positions) {
		if p := t.positions[m.Partition]; p != nil && p.generation == now && !p.forgotten.Load() {
			return p
		}
	}
	return t.addPosition(m, now)
}

// addPosition adds the position in a partition that is new in this generation. That makes the
// backlog unknown: what is known of other partitions does not show that the Reader has caught up.
func (t *topic) addPosition(m *kafka.Message, now *generation.Generation) *position {
	p := &position{partition: m.Partition, generation: now}
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

// report tells the subscription a backlog; -1 = unknown. The caller holds t.mu.
func (t *topic) report(backlog int64) {
	t.reported.Store(backlog)
	t.sub.ReportBacklog(backlog)
}

// A place is where a consumer is in a partition.
type place struct {
	partition int
	next      int64 // or kafka.FirstOffset, kafka.LastOffset
}

// places returns where the Reader is in the partitions that it owns now. receiving says that it
// waits for messages. changes goes back to conclude.
func (t *topic) places(r *Reader, receiving bool) (places []place, changes int) {
	if !r.group {
		return []place{{r.config.Partition, r.Offset()}}, 0
	}
	now := r.receiver.Current()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.positions {
		if p == nil || p.generation != now || p.forgotten.Load() {
			continue
		}
		next := p.next.Load()
		if next != p.polled {
			p.polled, p.idle = next, 0
		} else if receiving {
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

// conclude reports the backlog of a poll, unless a partition was added since places.
func (t *topic) conclude(backlog int64, changes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changes == changes {
		t.report(backlog)
	}
}
