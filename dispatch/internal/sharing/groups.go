package sharing

import (
	"fmt"
	"math"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/pool"
)

// groups is the mode that divides each period's permits over worker groups. It decides as fair
// does when to request permits and how many, but draws them from what the period has for its
// group, and from what other groups leave. See [pool.Division].
type groups struct {
	*Share
	batching batching
	member   string     // this share's name in its group
	joined   bool       // the store knows the member
	period   int64      // the one last drawn from
	own      int64      // permits drawn in it that were the own group's
	before   int64      // and in the period before
	unpaid   int64      // permits taken without the store, since it was last available
	terms    pool.Terms // in force, from the last answer
	again    float64    // the next request, whatever is wanted: a member that is silent is forgotten
	drawAt   float64    // no draw before: nothing was left
}

func newGroups(s *Share) *groups {
	member := fmt.Sprintf("%s/%s/%x", s.env.Replica, s.Limit.Sharer, s.env.Rand.Uint32())
	return &groups{Share: s, batching: newBatching(s), member: member}
}

// Advance releases the permits that are due. While the store is unavailable, the replica goes on
// with its own group's permits once the others have noticed its silence.
func (g *groups) Advance(t Time, d Demand) {
	outage := &g.batching.outage
	outage.mayNot = g.share == 0 || !g.terms.MayGoOn(t.Now-g.failedAt)
	before := outage.released
	g.batching.advance(t, d)
	g.unpaid = min(g.unpaid+outage.released-before, g.before)
}

// Next draws permits, or shows that the member is there.
func (g *groups) Next(now float64, d Demand) *permits.Request {
	if g.batching.rev != g.Limit.Revision {
		g.drawAt = 0
	}
	var o order
	if now >= g.drawAt {
		o = g.batching.next(now, d)
	}
	switch {
	case o.drain:
		g.clear(now)
		return g.draw(now, 0, false)
	case o.want > 0:
		return g.draw(now, o.want, false)
	case !g.pending && now >= max(g.again, g.retryAt):
		g.batching.sentDemand = 0
		return g.draw(now, 0, false)
	}
	return nil
}

// Drain gives back all permits, and takes the member out.
func (g *groups) Drain(now float64) *permits.Request {
	if g.pending || now < g.retryAt || !g.joined {
		return nil
	}
	g.clear(now)
	return g.draw(now, 0, true)
}

func (g *groups) draw(now, want float64, leave bool) *permits.Request {
	if g.storeTime == 0 && g.failures > 0 { // a frozen store may answer this however late
		want = 0
	}
	l := &g.Limit
	d := &permits.Draw{
		Terms: l.Groups.Terms, Rate: l.Rate, Ramp: l.Ramp, Source: l.Source, Rev: l.Revision,
		Active: want > 0 || g.batching.demand.Waiting > 0,
		Visit: pool.Visit{
			Group: l.Groups.Own, Member: g.member, Want: int64(math.Ceil(want)), Back: g.toStore,
			Period: g.period, Spent: g.unpaid, Leave: leave,
		},
	}
	g.joined = !leave
	return g.send(now, permits.Request{Draw: d})
}

// Answered takes in what was drawn.
func (g *groups) Answered(r *permits.Request, done, now float64) {
	if !g.batching.learn(r, done, now) {
		if g.conflicts > 0 {
			g.retryAt = now + g.crowded(max(g.Limit.Round, g.batching.round), r.Draw.Terms.TTL/4)
		}
		return
	}
	g.batching.outage.endOutage(now, 0)
	visit, drawn := &r.Draw.Visit, &r.Draw.Drawn
	g.terms = r.Draw.InForce
	if drawn.Period != g.period {
		g.before = 0
		if periods := drawn.Period - g.period; periods > 0 {
			g.before = g.own / periods // members of large groups do not visit in each
		}
		g.period, g.own = drawn.Period, 0
	}
	g.own += drawn.Own
	g.noGroup.Store(!drawn.Known)
	g.unpaid = max(0, g.unpaid-visit.Spent)
	g.share, g.shareAt = float64(g.before)/g.terms.Period, now
	g.wantedThen, g.batching.rev = g.share, g.sentRev
	rated := g.noteRival(r.Draw.Rival, now)
	if rated || g.Limit.Ramp.Over > 0 && g.sentRev == g.Limit.Revision {
		g.rate = r.Draw.Allowed
	}
	jitter := 0.75 + g.env.Rand.Float64()/2
	g.batching.round, g.again = g.Limit.Round, now+g.terms.TTL/20
	if drawn.Spacing > g.Limit.Round {
		g.batching.round, g.drawAt = drawn.Spacing, now+drawn.Spacing*jitter
		g.again = max(g.again, g.drawAt) // a visit that draws shows presence, too
	}
	if drawn.N == 0 {
		if visit.Want > 0 {
			g.drawAt = max(g.drawAt, now+drawn.Again*jitter)
		}
		return
	}
	g.allocations++
	life := max(g.Limit.Round, min(1.3*float64(drawn.N)/max(g.batching.sentDemand, 1e-9), g.terms.Period))
	g.add(batch{n: drawn.N, due: g.done, gap: 1 / g.rate, requested: g.sent, life: life}, g.Limit.Round)
}

// WakeAt is when the next step is due.
func (g *groups) WakeAt(now float64) float64 {
	at := g.batching.wakeAt(now)
	if !g.pending && g.joined {
		at = min(at, max(g.again, g.retryAt))
		if g.batching.demand.Waiting > 0 || g.asked > 0 {
			at = min(at, max(g.drawAt, g.retryAt))
		}
	}
	return at
}

// Covered reports whether a request is on its way, or a batch is still to start.
func (g *groups) Covered(now float64) bool { return g.batching.covered(now) }

// NextPermit is when a refused caller may find a permit.
func (g *groups) NextPermit(now float64) float64 { return g.batching.nextPermit(now) }

// Keep is false: what is held goes back.
func (g *groups) Keep(float64) bool { return false }

// Reopen is false: nothing is kept.
func (g *groups) Reopen() bool { return false }

// Idle reports whether the member has left.
func (g *groups) Idle() bool { return !g.pending && !g.joined }

// Report fills in the worker group.
func (g *groups) Report(r *Report) {
	g.batching.report(r)
	r.Group = g.Limit.Groups.Own
}
