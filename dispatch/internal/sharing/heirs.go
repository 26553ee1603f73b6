package sharing

import (
	"math"
	"slices"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// inherit takes over what a closed share of the same limit in this process holds and has not used,
// and reports whether there was one. Its place among the replicas goes over, too: a storm of
// subscriptions that are opened, refused once and closed is one replica, which requests permits
// when those of the last request have expired.
func (f *fair) inherit() bool {
	if f.carry.Inc != 0 || f.failures > 0 {
		return false
	}
	closed := f.env.closed[f.Limit.Key]
	i := slices.IndexFunc(closed, func(c *fair) bool {
		return !c.pending && c.carry.Inc != 0 &&
			c.Limit.Weight == f.Limit.Weight && c.Limit.Reserved == f.Limit.Reserved &&
			c.rev == f.Limit.Revision && c.top == f.top && c.ramp == f.ramp
	})
	if i < 0 {
		return false
	}
	c := closed[i]
	c.keepNoMore()
	f.Bucket.inherit(&c.Bucket)
	f.carry, f.paced, f.againAt, f.turnAt, f.lead = c.carry, c.paced, c.againAt, c.turnAt, c.lead
	f.share, f.shareFor, f.shareAt, f.rev, f.round = c.share, c.shareFor, c.shareAt, c.rev, c.round
	f.storeTime, f.clock, f.rtts = c.storeTime, c.clock, c.rtts
	c.carry = schedule.Carry{}
	return true
}

// inherit moves all permits of another bucket to this one, which has none.
func (b *Bucket) inherit(from *Bucket) {
	b.supply(from.withdraw(from.Available()))
	b.batches, b.end, b.rate, b.starts = from.batches, from.end, from.rate, from.starts
	b.lastDue, b.lastN = from.lastDue, from.lastN
	b.expired, b.expiredAt = from.expired, from.expiredAt
	b.strayAt, b.strayLife = from.strayAt, from.strayLife
	from.batches, from.end, from.expired = nil, math.Inf(-1), 0
}

// Keep has a share in fair mode keep what it holds for a new handle until then, and reports
// whether it does. 0 ends that.
func (s *Share) Keep(until float64) bool {
	f, ok := s.Mode.(*fair)
	if !ok {
		return false
	}
	f.keepUntil = until
	if until > 0 {
		f.env.closed[s.Limit.Key] = append(f.env.closed[s.Limit.Key], f)
	} else {
		f.keepNoMore()
	}
	return true
}

// keepNoMore ends that other shares may inherit what this one keeps.
func (f *fair) keepNoMore() {
	closed, key := f.env.closed, f.Limit.Key
	left := slices.DeleteFunc(closed[key], func(c *fair) bool { return c == f })
	if closed[key] = left; len(left) == 0 {
		delete(closed, key)
	}
}
