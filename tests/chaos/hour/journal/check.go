package journal

import (
	"cmp"
	"slices"
)

// A Rewind moved a subscription back, so that it is given messages again: a seek, or the restart of
// a broker that had not stored the last acknowledgements.
type Rewind struct {
	At int64            // Unix nanoseconds
	To map[int]Position // of a seek, by partition; nil: a restart
}

// A Verdict is what became of the messages of a subscription.
type Verdict struct {
	Produced, Deliveries   int
	Lost                   []string // IDs that were produced and never delivered
	Reordered              []Delivery
	Filled                 int // moves back that a handover of Pulsar accounts for
	Again, AgainBySeek     int // deliveries of what had been delivered before
	Silence, SilenceBefore int64
}

// A Subscription is a consumer group of Kafka or a subscription of Pulsar, and what its consumers
// were given.
type Subscription struct {
	Produced []string // IDs
	Sessions []Session
	Rewinds  []Rewind
	Failover bool    // of Pulsar: see handover
	Left     []int64 // when consumers were stopped or killed, Unix nanoseconds
}

// Check checks a subscription.
func (sub Subscription) Check() Verdict {
	v := Verdict{Produced: len(sub.Produced)}
	var all []Delivery
	for i, s := range sub.Sessions {
		all = append(all, s.Deliveries...)
		var from *handover
		if sub.Failover {
			from = &handover{slices.Concat(sub.Sessions[:i], sub.Sessions[i+1:]), sub.Left}
		}
		faults, filled := reordered(s, sub.Rewinds, from)
		v.Reordered = append(v.Reordered, faults...)
		v.Filled += filled
	}
	slices.SortFunc(all, func(a, b Delivery) int { return cmp.Compare(a.At, b.At) })
	v.Deliveries = len(all)
	v.Again, v.AgainBySeek = again(all, sub.Rewinds)
	v.Silence, v.SilenceBefore = silence(all)
	seen := make(map[string]bool, len(sub.Produced))
	for _, d := range all {
		seen[d.ID] = true
	}
	for _, id := range sub.Produced {
		if !seen[id] {
			v.Lost = append(v.Lost, id)
		}
	}
	return v
}

// A handover is what others do while a session takes over a partition of a failover subscription.
// Pulsar 4.0 does not always keep the order then. It should wait for a second
// (activeConsumerFailoverDelayTimeMillis), and then begin with the first message that is not
// acknowledged. But if it is writing messages to the old owner at that moment, it writes the next
// ones to the new owner at once, as many as the queue of that one takes. After the second it begins
// again. So the new owner is given a few later messages first, and then those that the old owner
// had been sent and had not acknowledged: they fill a hole. (The session's own end, which is among
// those in left, may be taken for a handover, too.)
type handover struct {
	sessions []Session // of others
	left     []int64
}

// ahead is how many later messages a session may have before a hole is filled. The broker pushes
// them to queues of 2.
const ahead = 8

// between reports whether a handover of the partition is possible between two times: another
// consumer was given messages of it, or began or left.
func (h *handover) between(partition int, from, to int64) bool {
	within := func(at int64) bool { return from < at && at < to }
	return slices.ContainsFunc(h.left, within) || slices.ContainsFunc(h.sessions, func(s Session) bool {
		return within(s.Start) || slices.ContainsFunc(s.Deliveries, func(d Delivery) bool {
			return d.Partition == partition && within(d.At)
		})
	})
}

// A run is messages of a partition that are new to a session, in order.
type run struct {
	given  map[Position]bool // in all runs
	first  bool              // the session began with it: that was a handover
	before int64             // when the session was given a message of the partition before
	order  []Delivery
	moved  int // rewinds that were used
}

// fills reports whether d fills a hole of r that opened at a handover.
func (r *run) fills(d Delivery, h *handover) bool {
	if h == nil {
		return false
	}
	n := slices.IndexFunc(r.order, func(e Delivery) bool { return e.Position.Compare(d.Position) > 0 })
	from := r.before
	if n == 0 && r.first {
		return len(r.order) <= ahead
	} else if n > 0 {
		from = r.order[n-1].At
	}
	return len(r.order)-n <= ahead && h.between(d.Partition, from, r.order[n].At)
}

// reordered returns the deliveries of a session that are new to it and that come after later
// messages of their partition. Messages that the session is given again are no fault of order. Each
// rewind during the session may move each partition back once: what other owners had acknowledged
// may then be new to this one. So may each handover; filled is how many did.
func reordered(s Session, rewinds []Rewind, h *handover) (faults []Delivery, filled int) {
	partitions := map[int]*run{}
	for _, d := range s.Deliveries {
		r := partitions[d.Partition]
		if r == nil {
			r = &run{given: map[Position]bool{}, first: true, before: s.Start}
			partitions[d.Partition] = r
		}
		if r.given[d.Position] {
			continue
		}
		r.given[d.Position] = true
		if n := len(r.order); n > 0 && d.Position.Compare(r.order[n-1].Position) < 0 {
			if r.fills(d, h) {
				filled++
			} else if r.moved < countBetween(rewinds, s.Start, d.At) {
				r.moved++
			} else {
				faults = append(faults, d)
				continue
			}
			r.first, r.before, r.order = false, r.order[n-1].At, r.order[:0]
		}
		r.order = append(r.order, d)
	}
	return faults, filled
}

func countBetween(rewinds []Rewind, from, to int64) (n int) {
	for _, r := range rewinds {
		if from < r.At && r.At <= to {
			n++
		}
	}
	return n
}

// again counts deliveries of messages that had been delivered before. A seek accounts for one more
// delivery of each message behind it.
func again(all []Delivery, rewinds []Rewind) (others, bySeek int) {
	type place struct {
		partition int
		position  Position
	}
	last := make(map[place]int64, len(all))
	for _, d := range all {
		where := place{d.Partition, d.Position}
		before, given := last[where]
		last[where] = d.At
		if !given {
			continue
		}
		sought := slices.ContainsFunc(rewinds, func(r Rewind) bool {
			to, ok := r.To[d.Partition]
			return ok && before < r.At && r.At <= d.At && d.Position.Compare(to) >= 0
		})
		if sought {
			bySeek++
		} else {
			others++
		}
	}
	return others, bySeek
}

// silence returns the longest time between two deliveries, and when it ended.
func silence(all []Delivery) (longest, end int64) {
	for i := 1; i < len(all); i++ {
		if d := all[i].At - all[i-1].At; d > longest {
			longest, end = d, all[i].At
		}
	}
	return longest, end
}
