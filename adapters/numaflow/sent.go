package numaflowthrottle

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sourcer"
)

// WithRequeue has a source hand over again, before others, what a data plane that died had neither acknowledged nor refused. Up
// to so many messages are kept in memory for that, those that were read first; for the others the user's source gets a
// Nack. Default 0. Of sources only.
func WithRequeue(messages int) Option { return func(o *options) { o.requeue = messages } }

// sent are the messages that the data plane has read and neither acknowledged nor refused.
type sent struct {
	keep int // messages to hand over again

	mu      sync.Mutex
	under   []entry       // in the order in which they were read
	open    int           // of those in under that are not settled
	kept    int           // of those, in memory
	head    int           // those before are settled
	index   map[place]int // of those in under, the last of each; nil as long as they are settled in order, which needs none
	told    bool          // that there are too many
	spare   []entry       // for the next Read
	again   []sourcer.Message
	reading context.Context // of the data plane's stream of Reads
	acking  context.Context // of that of Acks; nil: there was none yet
}

type entry struct {
	offset  sourcer.Offset
	kept    *sourcer.Message // nil: it is not
	settled bool
}

// A place tells messages apart.
type place struct {
	partition int32
	offset    string
}

func placeOf(o sourcer.Offset) place { return place{o.PartitionId(), string(o.Value())} }

// mostSent bounds what is known of: a data plane has some batches at a time.
const mostSent = 100_000

// begin begins a call for n messages: it returns what is to be handed over again, else nothing, room for what is known of them, and how
// many may be kept.
func (s *sent) begin(n uint64) (room []entry, keep int, again []sourcer.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, uint64(len(s.again)))
	again, s.again = s.again[:n], s.again[n:]
	room, s.spare = s.spare, nil
	return room, s.keep - s.kept - len(s.again), again
}

// add notes the messages of a Read, of which entries is used again, and returns how many there were too many. The caller holds s.mu.
func (s *sent) add(entries []entry) (tooMany int) {
	s.spare = entries[:0]
	if len(s.under) > 2*s.open+len(entries) { // most are settled
		s.under = slices.DeleteFunc(s.under, func(e entry) bool { return e.settled })
		s.head, s.index = 0, nil
	}
	n := min(len(entries), mostSent-s.open)
	for _, e := range entries[:n] {
		if s.index != nil {
			s.enter(placeOf(e.offset), len(s.under))
		}
		s.under = append(s.under, e)
		s.open++
		if e.kept != nil {
			s.kept++
		}
	}
	if s.keep > 0 {
		clear(entries)
	}
	return len(entries) - n
}

// enter has the index know of a message. One that is outstanding twice is settled by its last time.
func (s *sent) enter(at place, i int) {
	if before, twice := s.index[at]; twice && before < i {
		s.done(before)
	}
	s.index[at] = i
}

// done settles the i-th of under.
func (s *sent) done(i int) {
	if e := &s.under[i]; !e.settled {
		if e.kept != nil {
			s.kept--
		}
		e.settled, e.kept = true, nil
		s.open--
	}
	for s.head < len(s.under) && s.under[s.head].settled {
		s.head++
	}
}

// settle forgets messages.
func (s *sent) settle(offsets []sourcer.Offset) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range offsets {
		if s.head < len(s.under) && same(s.under[s.head].offset, o) {
			s.done(s.head)
		} else if i, ok := s.find(o); ok {
			s.done(i)
		}
		if len(s.again) > 0 { // it was late
			s.again = slices.DeleteFunc(s.again, func(m sourcer.Message) bool { return same(m.Offset(), o) })
		}
	}
}

func same(a, b sourcer.Offset) bool {
	return a.PartitionId() == b.PartitionId() && bytes.Equal(a.Value(), b.Value())
}

// find is for a message that is settled before one that was read earlier.
func (s *sent) find(o sourcer.Offset) (i int, ok bool) {
	if s.index == nil {
		s.index = map[place]int{}
		for i := s.head; i < len(s.under); i++ {
			if !s.under[i].settled {
				s.enter(placeOf(s.under[i].offset), i)
			}
		}
	}
	i, ok = s.index[placeOf(o)]
	return i, ok
}

// take takes all that is outstanding. The caller holds s.mu.
func (s *sent) take() []entry {
	entries := s.under[s.head:]
	s.under, s.open, s.kept, s.head, s.index = nil, 0, 0, 0, nil
	return entries
}

// acksOn notes which stream of Acks there is.
func (s *sent) acksOn(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acking = ctx
}

func (s *sent) waiting() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(len(s.again))
}

// abandon takes entries that nobody settles any more; what is kept goes to the front of what is handed over again, and the rest
// is returned. The caller holds s.mu.
func (s *sent) abandon(entries []entry) (kept int, lost []sourcer.NackOffset) {
	var again []sourcer.Message
	for _, e := range entries {
		switch {
		case e.settled:
		case e.kept != nil && len(again)+len(s.again) < s.keep:
			again = append(again, *e.kept)
		default:
			lost = append(lost, sourcer.NackOffset{Offset: e.offset})
		}
	}
	s.again = append(again, s.again...)
	return len(again), lost
}

// acksWithin is how long the first Ack may take after the stream of Reads has ended: that of Acks is not known before. It is more
// than a sink may take for a batch, as a rule.
const acksWithin = 30 * time.Second

// follow notes which stream of Reads there is. If there is another, the data plane has been started again.
func (s *source) follow(ctx context.Context) {
	s.sent.mu.Lock()
	if s.sent.reading == ctx {
		s.sent.mu.Unlock()
		return
	}
	s.sent.reading, s.sent.acking = ctx, nil
	entries := s.sent.take()
	s.sent.mu.Unlock()
	s.abandon(entries)
	context.AfterFunc(ctx, func() { s.ended(ctx) })
}

// ended lets the last Acks come after the stream of Reads has ended.
func (s *source) ended(ctx context.Context) {
	s.sent.mu.Lock()
	acking := s.sent.acking
	s.sent.mu.Unlock()
	if acking != nil {
		context.AfterFunc(acking, func() { s.over(ctx) })
	} else {
		time.AfterFunc(acksWithin, func() { s.over(ctx) })
	}
}

// over gives up what was read on a stream, unless Acks still come.
func (s *source) over(ctx context.Context) {
	s.sent.mu.Lock()
	if s.sent.reading != ctx { // the next data plane has found them
		s.sent.mu.Unlock()
		return
	}
	if acking := s.sent.acking; acking != nil && acking.Err() == nil { // they began meanwhile
		s.sent.mu.Unlock()
		context.AfterFunc(acking, func() { s.over(ctx) })
		return
	}
	entries := s.sent.take()
	s.sent.mu.Unlock()
	s.abandon(entries)
}

// note has the messages of a Read outstanding.
func (s *source) note(ctx context.Context, entries []entry) {
	s.sent.mu.Lock()
	mine, tooMany := s.sent.reading == ctx, 0
	if mine {
		tooMany = s.sent.add(entries)
	}
	tell := tooMany > 0 && !s.sent.told
	s.sent.told = tooMany > 0
	s.sent.mu.Unlock()
	if tell {
		s.log.Warn("numaflowthrottle: too many messages are outstanding: if the data plane dies, nobody is told of the last", "topic", s.topic, "outstanding", mostSent)
	}
	switch {
	case !mine: // the next data plane is there already
		s.abandon(entries)
	case ctx.Err() != nil: // perhaps the end was dealt with before these were known
		s.ended(ctx)
	}
}

// abandon says what nobody will settle any more.
func (s *source) abandon(entries []entry) {
	s.sent.mu.Lock()
	kept, lost := s.sent.abandon(entries)
	s.sent.mu.Unlock()
	if kept+len(lost) == 0 {
		return
	}
	s.log.Warn("numaflowthrottle: the data plane has gone with messages that it neither acknowledged nor refused", "topic", s.topic, "handed over again", kept, "nacked", len(lost))
	if len(lost) > 0 {
		s.guarded(func() { s.Sourcer.Nack(context.Background(), nackRequest(lost)) })
	}
}

type nackRequest []sourcer.NackOffset

func (r nackRequest) Offsets() []sourcer.NackOffset { return r }
