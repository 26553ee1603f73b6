package sharing

import (
	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// fair is the default mode: replicas request batches of slots in one line, and get shares by
// weighted max-min fairness. See docs/sharing.md and package schedule.
type fair struct {
	*Share
	batching  batching
	late      lateAnswers
	carry     schedule.Carry // from the last reply
	roundRate float64        // the line's rate that the carried round is for; 0 = none
	againAt   float64        // when a replica that was refused is to ask again
	lead      float64        // how far ahead the line was before the last allocation, seconds

	inherited bool // in this step
}

func newFair(s *Share) *fair {
	s.Holds = true
	return &fair{Share: s, batching: newBatching(s), late: lateAnswers{Share: s}}
}

// Advance releases the permits that are due.
func (f *fair) Advance(t Time, d Demand) { f.batching.advance(t, d) }

// Next requests as many permits as this replica may have use for.
func (f *fair) Next(now float64, d Demand) *permits.Request {
	if f.keepUntil > 0 && now >= f.keepUntil {
		f.keepNoMore()
	}
	if f.late.checkLate(now) {
		f.batching.outage.goOn()
	}
	o := f.batching.next(now, d)
	if f.inherited = o.want > 0 && f.inherit(); f.inherited {
		o = f.batching.next(now, d)
	}
	return f.request(now, o)
}

// WakeAt is when the next step is due: at once for callers that wait for what was inherited.
func (f *fair) WakeAt(now float64) float64 {
	if f.inherited && f.batching.demand.Waiting > 0 && !f.Empty() {
		return now
	}
	at := f.batching.wakeAt(now)
	if f.pending && f.late.at > now {
		at = min(at, f.late.at)
	}
	return at
}

// Drain gives back all permits.
func (f *fair) Drain(now float64) *permits.Request {
	return f.request(now, f.batching.drain(now))
}

func (f *fair) request(now float64, o order) *permits.Request {
	switch {
	case o.drain:
		f.clear(now)
		// The line has room for what goes back.
		f.batching.sentDemand, f.batching.restUntil, f.againAt = 0, 0, 0
	case o.want == 0 && !o.tell:
		return nil
	}
	if f.batching.rev != f.Limit.Revision {
		f.followRate(f.rate)
		f.againAt = 0
	}
	used := f.used && o.tell
	r := f.allocate(now, schedule.Request{
		Demand: f.pressure(now-f.sent, f.batching.sentDemand), Want: o.want, Carry: f.carry, Lead: f.leadIfLost(now),
		MaxReserved: f.Limit.MaxReserved,
	})
	f.late.expect(now, &r.Allocate.Request)
	f.used = used // a request for none says nothing of what callers want
	return r
}

// leadIfLost is how far ahead of now replicas may still hold slots of a line that the store has
// lost, in seconds: as far as the line reached before our last allocation. If that was long ago, it
// is a round, since others may have used the line, or 0 if nobody can have.
func (f *fair) leadIfLost(now float64) float64 {
	switch age := now - f.done; {
	case age <= max(f.lead, f.batching.round)+f.batching.round:
		return max(0, f.lead)
	case f.failures > 0, age > schedule.LeastLifetime: // nobody has used it
		return 0
	}
	return f.batching.round
}

// Answered takes in the permits of a reply.
func (f *fair) Answered(r *permits.Request, done, now float64) {
	if g := f.late.takeGivenUp(r); g != nil {
		f.answeredLate(g, r, done)
		return
	}
	usual := f.rtt()
	if !f.learn(r, done, now) {
		return
	}
	request, reply := &r.Allocate.Request, &r.Allocate.Reply
	f.carry, f.batching.round = reply.Carry, reply.Carry.Round
	f.followRate(reply.Rate)
	f.over = max(minOver, f.batching.round)
	if told := reply.Carry.Shifts - request.Carry.Shifts; told > 0 && f.slow(r.Allocate, usual) {
		// The store's clock has not stepped: the next request says so.
		f.carry.Shifts -= told
		reply.Start = max(min(reply.Start, 0), reply.Start-reply.Ahead)
		reply.Lead -= reply.Ahead
	}
	f.batching.outage.endOutage(now, reply.Since)
	if f.noteRival(reply.Rival, now) {
		f.rate = reply.Rate
	}
	if request.Want == 0 {
		return
	}
	f.share, f.wantedThen, f.shareAt, f.batching.rev = reply.Share, request.Demand, now, f.sentRev
	if f.sentRev != f.Limit.Revision {
		f.share *= f.rate / reply.Rate
	}
	f.strayLife = f.perPermit()
	if (f.Limit.Ramp.Over > 0 || f.Limit.Rule.Mode != busy.None) && f.sentRev == f.Limit.Revision {
		f.rate = reply.Rate
	}
	if reply.N == 0 { // the line is full: come back before it is empty, but not all replicas at once
		if f.sent >= f.againAt {
			f.againAt = now + max(minLater, reply.Start+(0.75+0.25*f.env.Rand.Float64())*reply.Gap)
		} else { // it has asked too early, which does not put it before others
			f.carry.Refused = request.Carry.Refused
		}
		f.batching.restUntil = min(f.againAt, now+maxLater)
		return
	}
	restUntil := f.sent + f.rest(reply)
	if outage := &f.batching.outage; outage.othersReturn(now) {
		restUntil = max(restUntil, min(outage.backAt+returning, f.sent+reply.N/outage.backShare))
	}
	f.batching.restUntil, f.againAt = restUntil, 0
	f.batching.requestEarly = 0
	if reply.Share < light*reply.Rate {
		f.batching.requestEarly = lightEarly
	}
	f.lead = reply.Lead
	f.addBatch(reply, f.sent, f.done)
}

// learn takes in what an answer says of the permit store, and reports whether the request was made.
// If the store found a request too late although its answer came in time, the store's clock has
// stepped: the next request goes at once.
func (f *fair) learn(r *permits.Request, done, now float64) bool {
	far := f.late.second && f.failures == 0 // else the store was away
	if !f.batching.learn(r, done, now) {
		if r.Err == nil && f.failures == 1 && done < f.late.at {
			f.retryAt = now
		}
		return false
	}
	if far { // the first one took that long, too
		f.rtts[0] = f.rtts[1]
	}
	f.late.at, f.late.second = 0, false
	return true
}

// answeredLate takes in the answer to a request that was given up. If the request was made all the
// same, its permits are as good as others.
func (f *fair) answeredLate(g *givenUp, r *permits.Request, done float64) {
	switch {
	case r.Err != nil, r.Late():
		f.keepOutcomes(g.outcomes)
		return
	case done-g.sent > f.timeout+still: // this process has paused, and all is over
		return
	}
	f.rtts[0], f.rtts[1] = f.rtts[1], done-g.sent
	reply := &r.Allocate.Reply
	if reply.N == 0 || reply.Carry.Inc != f.carry.Inc || g.rev != f.Limit.Revision {
		return
	}
	if reply.Carry.Seq > f.carry.Seq {
		f.carry = reply.Carry
	}
	f.addBatch(reply, g.sent, done)
}

// addBatch adds the batch of a reply to a request. If the limit has changed since the request was
// sent, the time until its slots begin, and their gap, are scaled as those of other batches were.
func (f *fair) addBatch(reply *schedule.Reply, sent, done float64) {
	f.allocations++
	start, scale := reply.Start, reply.Rate/f.rate
	if f.sentRev != f.Limit.Revision && (start > 0 || scale < 1) {
		start *= scale
	}
	f.add(batch{
		n: int64(reply.N), due: done + start, gap: reply.Gap * scale, requested: sent, life: f.life(reply.N),
	}, f.Limit.Round)
	// The store is far. A replica that hears of its next batch late would release this one faster than
	// others theirs: when round trips change, some would still be slow while others are fast already.
	if f.batching.round > f.Limit.Round && reply.Share*f.Limit.Round >= scale && reply.N > 1 {
		f.spread(scale / reply.Share)
	}
}

// A replica asks a full line again after minLater at the earliest, and after maxLater at the
// latest, in seconds: others may have given back their slots.
const (
	minLater = 0.01
	maxLater = 10.0
)

// followRate notes the line's rate. If it has risen, the round and the lead become shorter by as
// much: the lower rate had stretched them, and the schedule changes the round by a quarter in each
// request. The round stays no shorter than the limit's, and than three round trips.
func (f *fair) followRate(rate float64) {
	if least := max(f.Limit.Round, 3*f.rtt()); 0 < f.roundRate && f.roundRate < rate && f.batching.round > least {
		f.batching.round = max(least, f.batching.round*f.roundRate/rate)
		f.carry.Round = f.batching.round
	}
	if f.roundRate > 0 {
		f.lead *= min(1, f.roundRate/rate)
	}
	f.roundRate = rate
}

// slow reports whether a request took so much longer than usual that the store's clock need not
// have stepped forward.
func (f *fair) slow(a *permits.Allocate, usual float64) bool {
	return a.High > 0 && a.Reply.Carry.Inc == a.Carry.Inc &&
		a.Reply.Now-a.High <= f.done-f.sent-usual+0.02
}

// light is the part of a limit that is a light share, which has few of the line's slots. Those of a
// heavy replica come next. If both requested their next batches when these slots begin, the light
// one would often come second, and have its next slots after two batches of the heavy one. It
// requests lightEarly before, in seconds: two ticks of the loop.
const (
	light      = 1.0 / 20
	lightEarly = 0.004
)

// soon is the part of a permit's time for which a replica rests whose share is under one permit a
// round. If each came late by little, the line would run empty.
const soon = 0.99

// rest is how long after a request a replica sends no other, in seconds. An allocation is one
// permit at least. So a replica whose share is under one permit a round leaves out rounds, or it
// would get more than its share. It does not if the line has room: if, before this allocation,
// slots were allocated to less than two periods beyond the end of its own, or to less than a
// quarter of a round if that is longer, and half a round at most. One without others is that far
// ahead. A round is half a second at most: the line holds a second's slots.
func (f *fair) rest(reply *schedule.Reply) float64 {
	end := max(f.done, f.end)
	if current := f.current(); current != nil {
		end = max(end, current.end())
	}
	round := max(f.Limit.Round, min(0.5, schedule.Stretch(reply.Rate)))
	room := max(f.Limit.Round/4, min(f.Limit.Round/2, 2/reply.Rate))
	if reply.Share*round >= 1 || f.done+reply.Lead < end+room {
		return 0
	}
	return min(schedule.MaxRest, soon/reply.Share)
}

// life is how long n permits of the last request may lie unspent: a round, the time in which the
// replica gets one permit, or as long as its callers take for them.
func (f *fair) life(n float64) float64 {
	life := max(f.batching.round, f.Limit.Round, f.perPermit())
	if f.batching.sentDemand > 0 {
		life = max(life, 1.3*n/f.batching.sentDemand)
	}
	if f.asked > 0 {
		life = max(life, 1.3*f.patience)
	}
	return life
}

// perPermit is the time in which the replica gets one permit, in seconds.
func (f *fair) perPermit() float64 {
	if f.share > 1e-6 { // else guaranteed minimums take all
		return 1 / f.share
	}
	return schedule.MaxRest
}

// Covered reports whether a request is on its way, or a batch is still to start.
func (f *fair) Covered(now float64) bool { return f.batching.covered(now) }

// Idle reports whether nothing is held or wanted, and no answer is to come.
func (f *fair) Idle() bool { return f.late.idle() && f.batching.idle() }

// NextPermit is when a refused caller may find a permit.
func (f *fair) NextPermit(now float64) float64 { return f.batching.nextPermit(now) }

// Report fills in the share, and the rate at which permits are released.
func (f *fair) Report(r *Report) { f.batching.report(r) }
