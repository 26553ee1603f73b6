package pulsarthrottle

import (
	"github.com/apache/pulsar-client-go/pulsar"
)

// An end is the last message of a partition, as the broker tells every consumer.
type end struct {
	name string // as messages have it
	at   position
}

// endsOf returns a function that asks a consumer of the client for the ends of its partitions. A
// consumer of a pattern is not asked, and has no ends: the client iterates over a map of its
// consumers then, to which it may be adding one that it has discovered.
func endsOf(c pulsar.Consumer, pattern bool) func() ([]end, error) {
	if pattern {
		return noEnds
	}
	return func() (ends []end, err error) {
		ids, err := c.GetLastMessageIDs()
		for _, id := range ids {
			ends = append(ends, end{id.Topic(), positionOf(id)})
		}
		return ends, err
	}
}

func noEnds() ([]end, error) { return nil, nil }

// A mark is what was known of a place at an earlier poll: the client has been offered the
// messages up to the end of the partition at that time, as soon as it has drained its queue.
type mark struct {
	made  bool
	end   position
	seen  int64 // messages of this place
	total int64 // messages of all places
}

// slack is how many messages may come out of the client's channel, beyond two for each partition,
// without one of a partition that has some.
const slack = 10

// conclude reports the backlog of each topic by the ends of its partitions. idle says that the
// client has no messages: see polled.idle.
//
// A place is at least at its last message. But other consumers of the subscription may have had
// later messages, or the place may have had none at all. So a place also counts as being at its
// mark, if the client has drained its queue since: if it was idle, or returned enough messages of
// other partitions and none of this one.
func (ts *topics) conclude(ends []end, idle bool) {
	places := make([]*place, 0, len(ends))
	total := int64(0)
	for _, e := range ends {
		p := ts.place(e.name)
		places = append(places, p)
		total += p.count()
	}
	backlogs := map[*topic]int64{}
	for i, e := range ends {
		behind := places[i].behind(e.at, idle, total, int64(2*len(ends)+slack))
		t := places[i].topic
		if sum := backlogs[t]; sum < 0 || behind < 0 {
			backlogs[t] = -1
		} else {
			backlogs[t] = sum + behind
		}
	}
	for _, t := range ts.all() {
		_, known := backlogs[t]
		if idle {
			backlogs[t] = 0
		} else if !known {
			backlogs[t] = -1
		}
	}
	for t, backlog := range backlogs {
		t.sub.ReportBacklog(backlog)
	}
}

// behind returns the number of messages between the place and the end of its partition, or -1 if
// it is unknown, and moves the mark. total is the number of messages of all places, enough how
// many of them show that the client has drained its queue.
func (p *place) behind(end position, idle bool, total, enough int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.mark
	drained := m.made && (idle || p.seen == m.seen && total-m.total >= enough)
	if drained && m.end.compare(p.last) >= 0 {
		p.last, p.left = m.end, 0
	}
	if !m.made || drained || p.seen != m.seen {
		p.mark = mark{true, end, p.seen, total}
	}
	switch {
	case end.entryID < 0: // the partition is empty
		return 0
	case p.last.compare(end) >= 0:
		return p.left
	case p.last.ledgerID == end.ledgerID:
		return (end.entryID-p.last.entryID)*max(1, p.topic.batch.Load()) + p.left
	}
	return -1
}
