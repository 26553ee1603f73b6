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
	closed := f.env.keeping[f.Limit.Key]
	i := slices.IndexFunc(closed, func(c *fair) bool {
		return !c.pending && c.carry.Inc != 0 &&
			c.Limit.Weight == f.Limit.Weight && c.Limit.Reserved == f.Limit.Reserved &&
			c.batching.rev == f.Limit.Revision &&
			c.batching.top == f.batching.top && c.batching.ramp == f.batching.ramp
	})
	if i < 0 {
		return false
	}
	c := closed[i]
	c.keepNoMore()
	f.Bucket.inherit(&c.Bucket)
	f.carry, f.roundRate, f.againAt, f.lead = c.carry, c.roundRate, c.againAt, c.lead
	f.batching.inherit(&c.batching)
	f.share, f.wantedThen, f.shareAt = c.share, c.wantedThen, c.shareAt
	f.storeTime, f.clock, f.rtts = c.storeTime, c.clock, c.rtts
	c.carry = schedule.Carry{}
	return true
}

// inherit takes over when another share's next request is due.
func (b *batching) inherit(from *batching) {
	b.restUntil, b.rev, b.round = from.restUntil, from.rev, from.round
}

// inherit moves all permits of another bucket to this one, which has none.
func (b *Bucket) inherit(from *Bucket) {
	b.supply(from.withdraw(from.Available()))
	b.batches, b.end, b.rate, b.starts = from.batches, from.end, from.rate, from.starts
	b.lastDue, b.lastN = from.lastDue, from.lastN
	b.toStore, b.toStoreAt = from.toStore, from.toStoreAt
	b.strayAt, b.strayLife = from.strayAt, from.strayLife
	from.batches, from.end, from.toStore = nil, math.Inf(-1), 0
}

// Keep has the share keep what it holds for a new handle until then.
func (f *fair) Keep(until float64) bool {
	f.keepUntil = until
	f.env.keeping[f.Limit.Key] = append(f.env.keeping[f.Limit.Key], f)
	return true
}

// Reopen ends Keep for a new handle.
func (f *fair) Reopen() bool {
	f.keepUntil = 0
	f.keepNoMore()
	return true
}

// keepNoMore ends that other shares may inherit what this one keeps.
func (f *fair) keepNoMore() {
	closed, key := f.env.keeping, f.Limit.Key
	left := slices.DeleteFunc(closed[key], func(c *fair) bool { return c == f })
	closed[key] = left
	if len(left) == 0 {
		delete(closed, key)
	}
}
