package numaflowthrottle

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/numaproj/numaflow-go/pkg/sourcer"
)

// unacknowledged are the messages that the data plane has read, and neither acknowledged nor
// refused.
type unacknowledged struct {
	requeue int // how many messages are kept, to be delivered again

	mu      sync.Mutex
	entries []entry       // in the order in which they were read
	open    int           // entries that are not settled
	kept    int           // of those, with their messages
	head    int           // the entries before are settled
	index   map[place]int // the last entry of each place; nil while settled in order
	told    bool          // it was logged that there are too many
	spare   []entry       // memory for the next Read
	again   []sourcer.Message
	reading context.Context // of the data plane's stream of Reads
	acking  context.Context // of its stream of Acks; nil: there was none yet
}

// An entry is a message that was read.
type entry struct {
	offset  sourcer.Offset
	kept    *sourcer.Message // nil: not kept
	settled bool
}

// A place tells messages apart.
type place struct {
	partition int32
	offset    string
}

func placeOf(o sourcer.Offset) place { return place{o.PartitionId(), string(o.Value())} }

// maxUnacknowledged bounds the entries that are not settled: a data plane has a few batches at a
// time.
const maxUnacknowledged = 100_000

// begin begins a call for n messages. It returns the messages that are to be delivered again, in
// place of a call; memory for the entries of the call; and how many of its messages are to be
// kept.
func (u *unacknowledged) begin(n uint64) (room []entry, keep int, again []sourcer.Message) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n = min(n, uint64(len(u.again)))
	again, u.again = u.again[:n], u.again[n:]
	room, u.spare = u.spare, nil
	return room, u.requeue - u.kept - len(u.again), again
}

// add adds the messages of a Read, whose memory is used again. It returns how many were too many.
// The caller holds u.mu.
func (u *unacknowledged) add(read []entry) (tooMany int) {
	u.spare = read[:0]
	if len(u.entries) > 2*u.open+len(read) { // most are settled
		u.entries = slices.DeleteFunc(u.entries, func(e entry) bool { return e.settled })
		u.head, u.index = 0, nil
	}
	n := min(len(read), maxUnacknowledged-u.open)
	for _, e := range read[:n] {
		if u.index != nil {
			u.enter(placeOf(e.offset), len(u.entries))
		}
		u.entries = append(u.entries, e)
		u.open++
		if e.kept != nil {
			u.kept++
		}
	}
	if u.requeue > 0 {
		clear(read)
	}
	return len(read) - n
}

// enter enters a message into the index. A message that was read twice is settled by its last
// time.
func (u *unacknowledged) enter(at place, i int) {
	if before, twice := u.index[at]; twice && before < i {
		u.done(before)
	}
	u.index[at] = i
}

// done settles an entry.
func (u *unacknowledged) done(i int) {
	if e := &u.entries[i]; !e.settled {
		if e.kept != nil {
			u.kept--
		}
		e.settled, e.kept = true, nil
		u.open--
	}
	for u.head < len(u.entries) && u.entries[u.head].settled {
		u.head++
	}
}

// settle settles messages.
func (u *unacknowledged) settle(offsets []sourcer.Offset) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, o := range offsets {
		if u.head < len(u.entries) && same(u.entries[u.head].offset, o) {
			u.done(u.head)
		} else if i, ok := u.find(o); ok {
			u.done(i)
		}
		if len(u.again) > 0 { // it was settled late
			u.again = slices.DeleteFunc(u.again, func(m sourcer.Message) bool {
				return same(m.Offset(), o)
			})
		}
	}
}

func same(a, b sourcer.Offset) bool {
	return a.PartitionId() == b.PartitionId() && bytes.Equal(a.Value(), b.Value())
}

// find returns the entry of a message that is settled before an earlier one.
func (u *unacknowledged) find(o sourcer.Offset) (i int, ok bool) {
	if u.index == nil {
		u.index = map[place]int{}
		for i := u.head; i < len(u.entries); i++ {
			if !u.entries[i].settled {
				u.enter(placeOf(u.entries[i].offset), i)
			}
		}
	}
	i, ok = u.index[placeOf(o)]
	return i, ok
}

// takeAll removes all entries and returns them. The caller holds u.mu.
func (u *unacknowledged) takeAll() []entry {
	entries := u.entries[u.head:]
	u.entries, u.open, u.kept, u.head, u.index = nil, 0, 0, 0, nil
	return entries
}

// acksOn notes the data plane's stream of Acks.
func (u *unacknowledged) acksOn(ctx context.Context) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.acking = ctx
}

// toRequeue returns how many messages are to be delivered again.
func (u *unacknowledged) toRequeue() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return int64(len(u.again))
}

// abandon gives up entries that will not be settled. Kept messages go to the front of those that
// are delivered again; the rest are returned as lost. The caller holds u.mu.
func (u *unacknowledged) abandon(entries []entry) (kept int, lost []sourcer.NackOffset) {
	var again []sourcer.Message
	for _, e := range entries {
		switch {
		case e.settled:
		case e.kept != nil && len(again)+len(u.again) < u.requeue:
			again = append(again, *e.kept)
		default:
			lost = append(lost, sourcer.NackOffset{Offset: e.offset})
		}
	}
	u.again = append(again, u.again...)
	return len(again), lost
}
