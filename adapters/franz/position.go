package franzthrottle

import "github.com/twmb/franz-go/pkg/kgo"

// A position is how far the Client has come in a partition.
type position struct {
	from  int64 // the offset of the first record that was polled
	next  int64 // the offset after the last record that was returned; -1: none was
	epoch int32 // of that record

	// At the last poll for the backlog:
	end   int64
	quiet int   // polls since end or next changed
	was   int64 // next then
}

// polled notes that records of a partition were polled.
func (t *topic) polled(p *kgo.FetchPartition) {
	if len(p.Records) > 0 && t.positions[p.Partition] == nil {
		t.positions[p.Partition] = &position{from: p.Records[0].Offset, next: -1, epoch: -1}
		t.changes++
	}
}

// returned notes that records of a partition are returned.
func (t *topic) returned(id int32, records []*kgo.Record) {
	if len(records) > 0 {
		last, at := records[len(records)-1], t.positions[id]
		at.next, at.epoch = last.Offset+1, last.LeaderEpoch
	}
}

// at is the offset of the next record to return.
func (p *position) at() int64 {
	if p.next >= 0 {
		return p.next
	}
	return p.from
}

// quietPolls is after how many polls for the backlog that brought nothing the position is taken for
// the partition's end: the markers of transactions, and records of those that were aborted, are
// offsets without a record.
const quietPolls = 3

// behind returns how many records are between the position and an end. With idle, the Client waits
// for records and keeps none of the topic.
func (p *position) behind(end int64, idle bool) int64 {
	if end != p.end || p.at() != p.was || !idle {
		p.end, p.was, p.quiet = end, p.at(), 0
	} else if p.quiet < quietPolls {
		p.quiet++
	}
	if p.quiet == quietPolls {
		return 0
	}
	return max(0, end-p.at())
}
