package dispatch

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// A grouped account decides as any other when it wants permits and how many, but draws them from what the limit's
// period has for its group of workers, in place of allocation slots.
type grouped struct {
	terms     pool.Terms
	group     string  // this process's
	member    string  // this account's name in it
	period    int64   // the one last drawn from
	own       int64   // permits of the own group's drawn in it
	before    int64   // and in the one before
	spent     int64   // without asking, since the permit store was there
	again     float64 // the next call, even if nobody wants anything
	notBefore float64 // is there anything to draw
	left      bool    // has said goodbye
}

// A visit is a call of a grouped account.
type visit struct {
	terms pool.Terms
	visit pool.Visit
	ramp  schedule.Ramp
	asked bool // somebody waits
	drawn pool.Drawn
}

// group has an account draw from its group's permits, or no more. The caller holds l.mu.
func (q *queue) group(a *account, p policy.Policy) {
	l := q.limiter
	if !p.IsGrouped() {
		if a.groups != nil {
			busy := a.busy
			c := a.goodbye(l.clock(time.Now()), l.cfg.Permits.Timeout().Seconds())
			l.done.Go(func() { l.visit(c) })
			a.groups, a.busy = nil, busy
			a.outside.Store(false)
			a.restart()
		}
		return
	}
	if a.groups == nil {
		a.restart()
		a.groups = &grouped{group: l.cfg.Group, member: fmt.Sprintf("%s/%s/%x", l.cfg.Replica, a.subscription, l.cfg.Rand.Uint32())}
	}
	a.groups.terms = pool.Terms{
		Names: p.GroupNames(), Permits: p.MessageRate.Permits, Period: p.MessageRate.Period.Seconds(), Keep: p.KeptBack(),
		Ahead: min(p.RoundDuration(), p.MessageRate.Period/10).Seconds(), TTL: p.PoolTTLDuration().Seconds(),
	}
}

// bookGrouped decides what to draw now. A member that wants nothing, or has to wait, shows from time to time that it is there.
func (a *account) allocateGrouped(step uint64, now float64, w demand, gone bool, timeout float64) *call {
	g := a.groups
	switch {
	case gone && (a.busy || now < a.retryAt || g.left):
		return nil
	case gone:
		return a.goodbye(now, timeout)
	}
	var c *call
	if now >= g.notBefore {
		c = a.allocateBatch(step, now, w, false, timeout)
	}
	if c == nil && !a.busy && now >= max(g.again, a.retryAt) {
		c = a.call(now, 0, 0, timeout)
	}
	if c != nil {
		g.left = false
	}
	return c
}

// goodbye gives everything back, and the name too.
func (a *account) goodbye(now, timeout float64) *call {
	c := a.farewell(now, timeout)
	c.visit.visit.Leave = true
	a.groups.left = true
	return c
}

// visiting is the group's part of a call.
func (a *account) visiting(r schedule.Request) *visit {
	g := a.groups
	return &visit{terms: g.terms, ramp: a.limit.ramp, asked: r.Want > 0 || a.wanted.waiting > 0, visit: pool.Visit{
		Group: g.group, Member: g.member, Want: int64(math.Ceil(r.Want)), Back: int64(r.Returned), Period: g.period, Spent: g.spent,
	}}
}

// visit makes a grouped account's call.
func (l *Limiter) visit(c *call) {
	v := c.visit
	d := &permits.Draw{Terms: v.terms, Visit: v.visit, Rate: c.allocation.Request.Rate, Ramp: v.ramp, Active: v.asked}
	r := &permits.Request{Key: c.allocation.Key, Draw: d}
	l.cfg.Permits.Do(context.Background(), []*permits.Request{r})
	l.damaged(r)
	v.drawn = d.Drawn
	c.reply = allocated{Reply: schedule.Reply{N: float64(d.Drawn.N), Now: d.Now, Rate: d.Allowed}, Err: r.Err}
	c.done = l.clock(time.Now())
}

// answeredGrouped takes in what was drawn.
func (a *account) answeredGrouped(c *call, now, jitter float64) {
	g, d := a.groups, c.visit.drawn
	if g == nil { // for another way of sharing
		a.lapsed += d.N
		return
	}
	if d.Period != g.period {
		if g.before = 0; d.Period == g.period+1 {
			g.before = g.own
		}
		g.period, g.own = d.Period, 0
	}
	g.own += d.Own
	if outside := !d.Known; outside != a.outside.Swap(outside) && outside {
		a.queue.limiter.log.Warn("a limit has no permits for this process, which is in none of its groups", "limit", a.limit.key, "groups", g.terms.Names, "group", g.group)
	}
	g.spent = max(0, g.spent-c.visit.visit.Spent)
	g.again = now + g.terms.TTL/20
	a.share, a.told, a.rev = float64(g.before)/g.terms.Period, now, c.rev
	if a.limit.ramp.Over > 0 && c.rev == a.limit.rev {
		a.rate = c.reply.Reply.Rate
	}
	if d.N == 0 {
		if c.visit.visit.Want > 0 {
			g.notBefore = now + d.Again*(0.75+jitter/2)
		}
		return
	}
	a.allocations++
	a.add(d.N, c.done, 1/a.rate, a.calledAt, max(a.limit.round, min(1.3*float64(d.N)/max(c.demand, 1e-9), g.terms.Period)), a.limit.round)
}
