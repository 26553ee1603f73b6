package sharing

import "github.com/dispatchthrottle/throttle/policy"

// An outageShare is what a replica takes on its own while the permit store is unavailable, if the
// limit's policy says `onOutage: share`: its last share.
type outageShare struct {
	ownDue      float64 // when the next permit of its own is due; 0 = the store is available
	ownReleased int64   // permits of its own since the store was last available
	ownAt       float64 // when the last of them was released
	backAt      float64 // when the store was available again
	backShare   float64 // the share until then, permits a second; 0 = it was not recent
	mayNot      bool    // the mode does not let the replica go on now
}

// freshShare is how old a share of a permit in that time or less may be to be used, in seconds.
const freshShare = 2.0

// maxRepaid is how much of a replica's share is owed after an outage at most, in seconds.
const maxRepaid = 2.0

// returning is how long replicas take to come back to a store that is available again, in seconds.
// Meanwhile each requests its share at most, and the others release theirs themselves.
const returning = 0.2

// goOn begins to release permits of the replica's own, from when those of the store cover its share
// no more. The last batch was as much as the share is in the time up to the next one.
func (b *batches) goOn() {
	if b.ownDue > 0 || b.Limit.OnOutage != policy.OutageShare {
		return
	}
	b.ownReleased, b.ownDue = 0, b.cutAt
	if b.share > 0 {
		b.ownDue = max(b.ownDue, b.lastDue+float64(b.lastN)/b.share)
	}
}

// returns reports whether other replicas may still come back to the store, after this one has.
func (b *batches) returns(now float64) bool { return b.backShare > 0 && now < b.backAt+returning }

// ownPart bounds a demand by the replica's share while others come back to the store.
func (b *batches) ownPart(now, demand float64) float64 {
	switch {
	case b.ownDue > 0 && b.recent():
		return min(demand, b.lastShare())
	case b.returns(now):
		return min(demand, b.backShare)
	}
	return demand
}

// releaseOwn releases the permits that are due without the store. Each comes a share's gap after
// the one before, so that the replica never exceeds its share of the time that passes. Permits are
// released only while callers want some and nothing allocated is left.
func (b *batches) releaseOwn(now float64, d Demand) {
	if b.Limit.OnOutage != policy.OutageShare { // no longer
		b.ownDue = 0
		return
	}
	gap := 1 / b.lastShare()
	switch {
	case b.mayNot, b.held() == 0 && d.Waiting == 0 && b.asked == 0:
		b.ownDue = max(b.ownDue, now)
		return
	case b.held() > 0:
		b.ownDue = max(b.ownDue, now+gap)
		return
	case b.ownDue > now:
		return
	}
	k := int64((now-b.ownDue)/gap) + 1
	if round := int64(b.Limit.Round/gap) + 1; k > round {
		k, b.ownDue = round, now
	}
	b.supply(k)
	b.ownReleased += k
	b.ownAt = now
	b.ownDue += float64(k) * gap
}

// lastShare is the share last told. The part of the limit that others left while their demand was
// light is in that share, and in theirs. In an outage all of them may want more, so that the
// replica takes what it wanted then or its even part of the limit, whichever is more. A replica
// that was never told a share takes the limit divided by the number of replicas when they were last
// counted, or a thousandth of it. If the share is from long before the outage, other replicas may
// have it now: the replica takes a hundredth of the limit, or less if there are more replicas, so
// that all such replicas at most double the limit.
func (b *batches) lastShare() float64 {
	replicas := float64(b.env.Replicas.Load())
	if b.recent() {
		even := b.rate / 100 // if they were never counted
		if replicas > 0 {
			even = b.rate / replicas
		}
		share := min(b.share, max(b.shareFor, even))
		return max(min(share, b.Limit.Rate), min(1/freshShare, b.Limit.Rate/1000))
	}
	switch {
	case b.shareAt > 0:
		return b.rate / max(100, replicas)
	case replicas > 0:
		return b.rate / replicas
	}
	return b.rate / 1000
}

// recent reports whether the replica was told its share shortly before the outage.
func (b *batches) recent() bool {
	return b.shareAt > 0 && b.failedAt-b.shareAt <= max(freshShare, 3/max(b.share, 1/freshShare))
}

// endOutage notes that the store is available again, and has been for that many seconds. What was
// released ahead of its time is owed, and so is what was released while other replicas were
// allocated the slots of that time.
func (b *batches) endOutage(now, since float64) {
	if b.ownDue == 0 {
		return
	}
	share := b.lastShare()
	others := min(max(0, b.ownAt-(now-since)-returning), float64(b.ownReleased)/share)
	if b.ownReleased > 0 { // else its last batch covers the share up to ownDue
		b.supply(-int64(max(0, min(b.ownDue-now+others, maxRepaid)*share)))
	}
	b.ownDue, b.backAt, b.backShare = 0, now, 0
	if b.recent() {
		b.backShare = share
		b.shareAt = now // in use until now: the store may be gone again before it tells the next
	}
}
