package pulsarthrottle

import "github.com/apache/pulsar-client-go/pulsar"

// An end is the last message of a partition.
type end struct {
	name string // as messages have it
	at   position
}

func endOf(id pulsar.TopicMessageID) end { return end{id.Topic(), positionOf(id)} }

// A mark is what was known of a place at an earlier look: the client has been offered what the partition had then, as
// soon as it has drained it.
type mark struct {
	made  bool
	end   position
	seen  int64 // messages of this place
	total int64 // messages of all places
}

// slack is how many messages may come out of the client's channel, beyond two for each partition, without one of a
// partition that has some.
const slack = 10

// conclude reports the backlog of each topic by the ends of its partitions. idle says that the client is asked for a message,
// as it was at the look before, and had none since: then there is nothing for it.
//
// A place is as far as its last message. But others of the subscription may have had later ones, or it may have had none
// at all: so what it was offered up to its mark counts, too. It was offered everything if it was idle, or if enough
// messages of other partitions came since, and none of this one.
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
		if _, known := backlogs[t]; idle {
			backlogs[t] = 0
		} else if !known {
			backlogs[t] = -1
		}
	}
	for t, backlog := range backlogs {
		t.sub.ReportBacklog(backlog)
	}
}

func (p *place) count() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// behind returns how many messages there are up to end, -1 if that cannot be known, and moves the mark.
func (p *place) behind(end position, idle bool, total, enough int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.mark
	drained := m.made && (idle || p.seen == m.seen && total-m.total >= enough)
	if drained && m.end.compare(p.next) >= 0 {
		p.next, p.left = m.end, 0
	}
	if !m.made || drained || p.seen != m.seen {
		p.mark = mark{true, end, p.seen, total}
	}
	switch {
	case end.entry < 0: // it is empty
		return 0
	case p.next.compare(end) >= 0:
		return p.left
	case p.next.permits == end.permits:
		return (end.entry-p.next.entry)*max(1, p.topic.batch.Load()) + p.left
	}
	return -1
}
