package sharing

import (
	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// batching decides when a replica requests permits and how many, for modes whose permits come in
// batches: one that is running, and at most one that is still to come.
type batching struct {
	*Share
	outage       outageShare
	rev          schedule.Revision // of the limit that the batches were allocated under
	top          float64           // the limit's rate at the last step
	ramp         schedule.Ramp     // its ramp then
	demand       Demand            // at the last step
	sentDemand   float64           // permits a second that the last request was made for
	round        float64           // that the schedule told, seconds; 0 = the limit's
	requestEarly float64           // seconds before a batch begins: the next one is requested
	restUntil    float64           // no request before, so that others have their turns; 0 = at once
	gone         bool              // no callers: nothing is requested until one waits
	handBackAt   float64           // when held grants gave permits back that may be unused; 0 = none
	hoards       bool              // callers hold too much: nothing is requested
	mayReturn    bool              // callers may still give back what they took at usedAt
}

func newBatching(s *Share) batching { return batching{Share: s, outage: outageShare{Share: s}} }

// advance releases the permits that are due.
func (b *batching) advance(t Time, d Demand) {
	now := t.Now
	if b.top != b.Limit.Rate || b.ramp != b.Limit.Ramp {
		b.adjust(now)
	}
	b.demand = d
	if b.holdReturned.Load() {
		b.holdReturned.Store(false)
		b.handBackAt, b.strayAt = now, now // an idle share has no steps, so that its strayAt is old
	}
	b.observe(&b.Bucket, b.Limit.Round, now, d)
	b.outdate(t)
	b.release(t, b.grace())
	b.keep(d.Until)
	b.age(now, b.Limit.Round)
	b.hoards = b.stock.Load().full(sinceStart(now), min(b.share, b.wantedThen), sinceStart(b.shareAt))
	b.outage.releaseDue(now, d)
}

// outdate lets no grants be returned any more, once callers are gone and outdatedAt has come.
func (b *batching) outdate(t Time) {
	if b.usedAt == t.Now {
		b.mayReturn = true
	}
	if b.mayReturn && b.gone && t.Now >= b.outdatedAt() {
		b.mayReturn = false
		b.outdateBefore(t.Step)
	}
}

// outdatedAt is when the last grant is too old to be returned: a permit that comes back later would
// be one more than the share gets in that time.
func (b *batching) outdatedAt() float64 { return b.usedAt + max(b.Limit.Round, b.strayLife) }

// grace is how late permits may be released, seconds. After a pause, a bunch of them would make a
// busy system busier.
func (b *batching) grace() float64 {
	if b.Limit.Rule.Mode != busy.None {
		return b.Limit.Round / 5
	}
	return b.Limit.Round
}

// adjust goes over to the limit's new rate. It scales the permits held, and the share. The next
// reply says where on its ramp a limit is, and whether a busy one is still slowed, or another
// policy store has a lower rate.
func (b *batching) adjust(now float64) {
	rate := b.Limit.Rate
	if ramp := b.Limit.Ramp; ramp.Over > 0 {
		from := ramp.From
		if b.ramp.Over > 0 {
			from = max(from, b.rate)
		}
		rate = min(rate, from)
	}
	if (b.Limit.Rule.Mode != busy.None || b.rival != "") && b.rate > 0 && b.rate < b.top {
		rate = min(rate, b.rate)
	}
	if b.rate > 0 {
		f := rate / b.rate
		b.share, b.wantedThen = b.share*f, b.wantedThen*f
		b.outage.stretch(now, b.rate/rate)
	}
	b.changeRate(now, rate)
	b.top, b.ramp = b.Limit.Rate, b.Limit.Ramp
}

// An order is what to request now: to drain everything, to want permits, or to tell the schedule of
// a changed limit. The zero value is nothing.
type order struct {
	drain bool
	want  float64 // permits
	tell  bool
}

// keepHeld is for how long at the new share permits may last that are kept when a limit becomes
// lower, seconds.
const keepHeld = 1.0

// drain decides what to request once the limit no longer applies to the lane.
func (b *batching) drain(now float64) order { return b.drainFor(now, Demand{}) }

// drainFor is drain, with callers that still want permits.
func (b *batching) drainFor(now float64, d Demand) order {
	b.demand = d
	b.asked, b.outage.due, b.gone = 0, 0, true
	if b.pending || now < b.retryAt {
		return order{}
	}
	b.sentDemand = b.outage.bound(now, b.wants(&b.Bucket, b.Limit.Round, d))
	return order{drain: b.Unspent()+b.toStore > 0}
}

// next decides what to request.
func (b *batching) next(now float64, d Demand) order {
	if d == (Demand{}) {
		d = b.demand // callers that were served come back soon
	}
	b.demand = d
	kept := b.keepUntil > 0 // for a new handle
	if kept {
		b.asked = 0
		if now >= b.keepUntil {
			return b.drainFor(now, d)
		}
	}
	b.gone = b.gone && d.Waiting == 0 && b.asked == 0
	if b.pending || now < b.retryAt {
		return order{}
	}
	demand, held := b.outage.bound(now, b.wants(&b.Bucket, b.Limit.Round, d)), b.Unspent()
	b.sentDemand = demand
	if b.handsBack(now, d) {
		return order{drain: true}
	}
	changed, lowered := b.rev != b.Limit.Revision, b.rate < b.sentRate
	if changed {
		b.restUntil = 0
	}
	wanted := false
	switch next := b.upcoming(now); {
	case changed && held > 0 && (b.gone || kept):
		return order{drain: true}
	case changed && lowered && held > 0 && float64(held) > keepHeld*b.share:
		b.clear(now) // the running batch would come on top of the new line
		held, wanted = 0, true
	case now >= b.abandonedAt(b.Limit.Round):
		b.gone, b.unserved, b.leftAt, b.asked = true, false, 0, 0
		if held > 0 {
			return order{drain: true}
		}
	case next != nil && d.Waiting > 0 && now >= next.due-b.requestEarly:
		wanted = b.unreleased() <= 1
	case next != nil: // no third one is requested, nor a drain while the next one is still to come
	case d.Waiting > 0:
		wanted = b.unreleased() <= 1
	case b.asked > 0: // a refused caller comes back
		wanted = held < b.asked+b.Debt() && b.unreleased() <= 1
	case b.gone:
	case !d.Anybody && now-b.usedAt > max(0.015, 5/b.use): // five times their usual pause
		b.gone = true
		if held > 2 { // fewer are not worth a request
			return order{drain: true}
		}
	case kept:
	default:
		wanted = b.used && float64(held) < demand*b.Limit.Round/4
	}
	if !wanted || now < b.restUntil || b.hoards {
		if changed && len(b.batches) == 0 && b.toStore == 0 {
			b.rev = b.Limit.Revision
		}
		return order{tell: changed && held > 0 && b.sentRev != b.Limit.Revision &&
			(lowered || b.rtt() < b.Limit.Round/4)}
	}
	round := b.round
	if round == 0 {
		round = b.Limit.Round
	}
	want := max(demand*round, float64(b.asked+b.Debt()-held))
	if demand < b.share && !b.outage.othersReturn(now) { // room for a few messages at once
		want = max(want, min(8, 4*b.Limit.Round*demand))
	}
	return order{want: max(1, want)}
}

// handsBack reports, once, that no caller has used for a round what held grants gave back, so that
// it goes to the permit store.
func (b *batching) handsBack(now float64, d Demand) bool {
	idle := now - max(b.usedAt, b.handBackAt)
	if b.handBackAt == 0 || d.Anybody || idle <= b.Limit.Round {
		return false
	}
	b.handBackAt = 0
	return b.Unspent()+b.toStore > 2
}

// idle reports whether nothing is held or wanted.
func (b *batching) idle() bool {
	return !b.pending && len(b.batches) == 0 && b.toStore == 0 && !b.outage.goesOn() && b.Empty() &&
		(b.gone || b.keepUntil > 0 || !b.used)
}

// wakeAt is when the next step is due.
func (b *batching) wakeAt(now float64) float64 {
	d := b.demand
	at := b.dueAt(b.Limit.Round)
	if again := max(b.retryAt, b.restUntil); !b.pending && (d.Waiting > 0 || b.asked > 0) && again > now {
		at = min(at, again)
	}
	if !b.pending && b.gone && b.retryAt > now && b.Unspent()+b.toStore > 0 {
		at = min(at, b.retryAt)
	}
	if b.hoards && (d.Waiting > 0 || b.asked > 0) {
		at = min(at, now+stockTick.Seconds())
	}
	if next := b.upcoming(now); next != nil && !b.pending && d.Waiting > 0 && next.due-b.requestEarly > now {
		at = min(at, next.due-b.requestEarly)
	}
	if b.outage.goesOn() && d.Waiting > 0 {
		at = min(at, b.outage.due)
	}
	if !b.pending && b.Unspent() > 0 {
		at = min(at, max(b.abandonedAt(b.Limit.Round), b.retryAt))
	}
	if b.keepUntil > now {
		at = min(at, b.keepUntil)
	}
	if b.mayReturn && b.gone {
		at = min(at, b.outdatedAt())
	}
	if !d.Anybody && !b.gone && b.use > 0.3 && b.Unspent() > 0 {
		// Are there callers still, and is the bucket low? Slower ones leave permits to expire.
		at = min(at, now+0.010)
	}
	return at
}

// covered reports whether a request is on its way, or a batch is still to start. While the store
// is unavailable a caller may get a permit without either.
func (b *batching) covered(now float64) bool {
	return b.failures == 0 && !b.outage.goesOn() && (b.pending || b.upcoming(now) != nil)
}

// nextPermit is when a refused caller may find a permit.
func (b *batching) nextPermit(now float64) float64 {
	if current := b.current(); current != nil {
		return current.due
	}
	if b.share > 0 {
		return now + min(b.Limit.Round, 1/b.share)
	}
	return now + b.Limit.Round
}

// learn takes in what an answer says of the permit store, and reports whether the request was made.
func (b *batching) learn(r *permits.Request, done, now float64) bool {
	if !b.Share.noteAnswer(r, done, now) {
		if b.storeDown() {
			b.outage.goOn()
		}
		return false
	}
	return true
}

// report fills in the share, and the rate at which permits are released.
func (b *batching) report(r *Report) { r.Allowed, r.Share = b.rate, b.share }
