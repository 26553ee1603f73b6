package franzthrottle

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// Skip gives back the permits and the bytes of records that were returned and are not used, since
// they have expired or are filtered out, for example. Mark or commit them all the same. A permit
// can go back while it is not older than two batches of its limit, and Skip knows the last 1024
// records that had permits, or those of the last batch if it has more: others stay charged. A
// second call for a record does nothing.
func (c *Client) Skip(records ...*kgo.Record) {
	if c.lim == nil {
		return
	}
	s := &c.shelf
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range records {
		p := partition{r.Topic, r.Partition}
		if !s.inFlight.Withdraw(p, r.Offset) {
			s.recent.skip(p, r)
		}
	}
}

// recent are the grants of the records that were returned last.
type recent struct {
	batches []granted
	count   int // records in batches
}

// granted are records of a partition that one grant has permits for.
type granted struct {
	partition partition
	from, to  int64 // offsets
	count     int
	grant     dispatch.Grant
	skipped   []int64 // offsets
}

const recentRecords = 1024

// add keeps the grant of records that are returned now.
func (r *recent) add(p partition, records []*kgo.Record, grant dispatch.Grant) {
	r.batches = append(r.batches, granted{p, records[0].Offset, records[len(records)-1].Offset, len(records), grant, nil})
	r.count += len(records)
	for len(r.batches) > 1 && r.count-r.batches[0].count >= recentRecords {
		r.count -= r.batches[0].count
		r.batches = r.batches[1:]
	}
}

// skip gives back the permits of the last delivery of a record.
func (r *recent) skip(p partition, record *kgo.Record) {
	for i := range slices.Backward(r.batches) {
		b := &r.batches[i]
		if b.partition != p || record.Offset < b.from || record.Offset > b.to {
			continue
		}
		if !slices.Contains(b.skipped, record.Offset) {
			b.skipped = append(b.skipped, record.Offset)
			one := b.grant.Split(1, size(record))
			one.Done(0, 0)
		}
		return
	}
}

// settle keeps the grant of records that are returned now until they are committed, if they count
// as in flight, or for Skip. The caller holds s.mu.
func (s *shelf) settle(
	c *Client, t *topic, sub *dispatch.Subscription, records []*kgo.Record, bytes int64, grant dispatch.Grant,
) {
	p := partition{t.name, records[0].Partition}
	if b := t.leaders.backend(p.id); b != nil {
		for _, r := range records {
			b.Read(sub, size(r))
		}
	}
	switch {
	case !grant.Limited():
	case !grant.InFlight():
		s.recent.add(p, records, grant)
	case c.settings.group == "": // nothing tells when they are done
		grant.Done(len(records), bytes)
	default:
		for _, r := range records {
			bytes := size(r)
			s.inFlight.Add(p, r.Offset, bytes, grant.Split(1, bytes))
		}
	}
}

// size is the exact number of bytes of a record.
func size(r *kgo.Record) int64 {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return int64(n)
}
