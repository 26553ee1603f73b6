package kafkathrottle

import (
	"context"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A flight is a message that was handed over and is not committed, where a policy's maxInFlight counts it.
type flight struct {
	offset int64
	bytes  int64
	grant  dispatch.Grant
}

// fly keeps the grant of a message until it is committed. Without a group nothing says when that is: then it is done
// with as it is handed over.
func (r *Reader) fly(m *kafka.Message, g dispatch.Grant) {
	if r.at == nil {
		g.Done(1, size(m))
		return
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.at.flying = append(r.at.flying, flight{m.Offset, size(m), g})
}

// CommitMessages is that of the kafka.Reader. What is committed, and what came before it in its partition, is in flight
// no more.
func (r *Reader) CommitMessages(ctx context.Context, msgs ...kafka.Message) error {
	err := r.Reader.CommitMessages(ctx, msgs...)
	if err != nil || r.lim == nil {
		return err
	}
	for i := range msgs {
		if t := r.topics[msgs[i].Topic]; t != nil {
			t.land(msgs[i].Partition, msgs[i].Offset)
		}
	}
	return nil
}

// land ends the flights of a partition up to an offset.
func (t *topic) land(partition int, offset int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if partition < len(t.positions) && t.positions[partition] != nil {
		t.positions[partition].land(offset)
	}
}

// landAll is beyond every offset.
const landAll = 1 << 62

// landOthers ends the flights of what is no longer this reader's, all of them with a nil era: nobody will commit it here.
func (r *Reader) landOthers(now *era) {
	for _, t := range r.topics {
		t.mu.Lock()
		for _, p := range t.positions {
			if p != nil && p.era != now {
				p.land(landAll)
			}
		}
		t.mu.Unlock()
	}
}

// land does so for a position; the caller holds the topic's mutex.
func (p *position) land(offset int64) {
	n := 0
	for ; n < len(p.flying) && p.flying[n].offset <= offset; n++ {
		p.flying[n].grant.Done(1, p.flying[n].bytes)
	}
	if n == len(p.flying) {
		p.flying = nil
	} else {
		p.flying = append(p.flying[:0], p.flying[n:]...)
	}
}
