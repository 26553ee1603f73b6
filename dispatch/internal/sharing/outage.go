package sharing

import "github.com/dispatchthrottle/throttle/policy"

// An outageShare is what a replica takes on its own while the permit store is unavailable, if the
// limit's policy says `onOutage: share`: its last share.
type outageShare struct {
	*Share
	due       float64 // when the next permit of its own is due; 0 = the store is available
	released  int64   // permits of its own since the store was last available
	at        float64 // when the last of them was released
	backAt    float64 // when the store was available again
	backShare float64 // the share until then, permits a second; 0 = it was not recent
	mayNot    bool    // the mode does not let the replica go on now
}

// A share counts as recent for the time of three of its permits, but for freshShare at least and
// three times that at most, in seconds.
const freshShare = 2.0

// maxRepaid is how much of a replica's share is owed after an outage at most, in seconds.
const maxRepaid = 2.0

// returning is how long replicas take to come back to a store that is available again, in seconds.
// Meanwhile each requests its share at most, and the others release theirs themselves.
const returning = 0.2

// goOn begins to release permits of the replica's own, from when those of the store no longer cover
// its share. The last batch was as much as the share is in the time up to the next one.
func (o *outageShare) goOn() {
	if o.goesOn() || o.Limit.OnOutage != policy.OutageShare {
		return
	}
	o.released, o.due = 0, o.awaySince
	if o.share > 0 {
		o.due = max(o.due, o.lastDue+float64(o.lastN)/o.share)
	}
}

// goesOn reports whether the replica goes on by itself, or will when its last batch is used up.
func (o *outageShare) goesOn() bool { return o.due > 0 }

// othersReturn reports whether other replicas may still come back to the store, after this one has.
func (o *outageShare) othersReturn(now float64) bool {
	return o.backShare > 0 && now < o.backAt+returning
}

// bound bounds a demand by the replica's share while others come back to the store.
func (o *outageShare) bound(now, demand float64) float64 {
	switch {
	case o.goesOn() && o.recent():
		return min(demand, o.lastShare())
	case o.othersReturn(now):
		return min(demand, o.backShare)
	}
	return demand
}

// stretch makes the time until the next permit f times as long.
func (o *outageShare) stretch(now, f float64) {
	if o.due > now {
		o.due = now + (o.due-now)*f
	}
}

// releaseDue releases the permits that are due without the store. Each comes a share's gap after
// the one before, so that the replica never exceeds its share of the time that passes. Permits are
// released only while callers want some and nothing allocated is left.
func (o *outageShare) releaseDue(now float64, d Demand) {
	if !o.goesOn() {
		return
	}
	if o.Limit.OnOutage != policy.OutageShare { // no longer
		o.due = 0
		return
	}
	gap := 1 / o.lastShare()
	switch {
	case o.mayNot, o.Unspent() == 0 && d.Waiting == 0 && o.asked == 0:
		o.due = max(o.due, now)
		return
	case o.Unspent() > 0:
		o.due = max(o.due, now+gap)
		return
	case o.due > now:
		return
	}
	k := int64((now-o.due)/gap) + 1
	if most := int64(o.Limit.Round/gap) + 1; k > most {
		k, o.due = most, now
	}
	o.supply(k)
	o.released += k
	o.at = now
	o.due += float64(k) * gap
}

// lastShare is the share last told. The part of the limit that others left while their demand was
// light is in that share, and in theirs. In an outage all of them may want more. So the replica
// takes no more of its share than what it wanted then or its even part of the limit, whichever is
// more, and a permit in two seconds at least, if a thousandth of the limit is that much. A replica
// that was never told a share takes the limit divided by the number of replicas when they were last
// counted, or a thousandth of it. If the share is from long before the outage, other replicas may
// have it now: the replica takes a hundredth of the limit, or less if there are more replicas, so
// that all such replicas at most double the limit.
func (o *outageShare) lastShare() float64 {
	replicas := float64(o.env.Replicas.Load())
	if o.recent() {
		even := o.rate / 100 // if they were never counted
		if replicas > 0 {
			even = o.rate / replicas
		}
		share := min(o.share, max(o.wantedThen, even))
		return max(min(share, o.Limit.Rate), min(1/freshShare, o.Limit.Rate/1000))
	}
	switch {
	case o.shareAt > 0:
		return o.rate / max(100, replicas)
	case replicas > 0:
		return o.rate / replicas
	}
	return o.rate / 1000
}

// recent reports whether the replica was told its share shortly before the outage.
func (o *outageShare) recent() bool {
	return o.shareAt > 0 && o.failedAt-o.shareAt <= max(freshShare, 3/max(o.share, 1/freshShare))
}

// endOutage notes that the store is available again, and has been for that many seconds. What was
// released ahead of its time is owed, and so is what was released while other replicas were
// allocated the slots of that time.
func (o *outageShare) endOutage(now, since float64) {
	if !o.goesOn() {
		return
	}
	share := o.lastShare()
	others := min(max(0, o.at-(now-since)-returning), float64(o.released)/share)
	if o.released > 0 { // else its last batch covers the share up to due
		o.supply(-int64(max(0, min(o.due-now+others, maxRepaid)*share)))
	}
	o.due, o.backAt, o.backShare = 0, now, 0
	if o.recent() {
		o.backShare = share
		o.shareAt = now // in use until now: the store may be gone again before it tells the next
	}
}
