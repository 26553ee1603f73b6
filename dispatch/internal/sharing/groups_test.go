package sharing

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// grouped is a limit of 100/s that two worker groups share. own is this process's group.
func grouped(own string) resolve.Limit {
	l := limited(policy.Groups, 100)
	l.Groups = resolve.Groups{Own: own, Terms: pool.Terms{
		Names: []string{"eu", "us"}, Permits: 100, Period: 1, Keep: 0.2, Ahead: 0.1, TTL: 2,
	}}
	return l
}

func (c *client) groups() *groups { return c.Mode.(*groups) }

// TestGroupsDraw: each group gets its part of the limit, and what the other leaves.
func TestGroupsDraw(t *testing.T) {
	w := newWorld()
	a, b := w.join(grouped("eu")), w.join(grouped("us"))
	a.callers, b.callers = 1, 1
	w.run(4)
	from := w.now
	w.run(10)
	assert.InDelta(t, 500, a.between(from, w.now), 30)
	assert.InDelta(t, 500, b.between(from, w.now), 30)
	assert.InDelta(t, 50, a.Stats(w.now).Share, 3, "the part of its group in the period before")
	assert.Equal(t, "eu", a.Stats(w.now).Group)
	b.callers = 0
	w.run(1)
	from = w.now
	w.run(10)
	assert.InDelta(t, 900, a.between(from, w.now), 40, "and 40 of the 50 that the other leaves")
	assert.False(t, a.NoGroup())
}

// TestGroupsOldTerms: a replica that is cut off from the policy store, with a higher rate and
// another period, takes part by the terms of the others.
func TestGroupsOldTerms(t *testing.T) {
	w := newWorld()
	was := grouped("us")
	was.Rate, was.Groups.Terms.Permits, was.Groups.Terms.Period = 5000, 50_000, 10
	l := grouped("eu")
	l.Revision.Number = was.Revision.Number + 1
	a, b := w.join(l), w.join(was)
	a.callers, b.callers = 1, 1
	w.run(4)
	from := w.now
	w.run(10)
	assert.InDelta(t, 500, a.between(from, w.now), 30)
	assert.InDelta(t, 500, b.between(from, w.now), 30)
	assert.InDelta(t, 50, b.Stats(w.now).Share, 3, "of the period in force")
}

// TestGroupsWait: after a draw that found nothing, the next one is when there may be something, or
// when the limit has changed.
func TestGroupsWait(t *testing.T) {
	w := newWorld()
	l := grouped("eu")
	l.Groups.Terms.Permits, l.Rate = 2, 2
	c := w.join(l)
	c.callers = 1
	w.run(20)
	n := len(w.requests)
	w.run(20)
	assert.LessOrEqual(t, len(w.requests)-n, 340, "of them, 200 heartbeats")
	assert.Greater(t, c.groups().drawAt, w.now-1)
	c.groups().drawAt = w.now + 9
	c.groups().again = w.now + 9
	n = len(w.requests)
	c.Apply(at(l, 200))
	c.touch()
	w.run(0.01)
	assert.Greater(t, len(w.requests), n)
}

// TestGroupsPresence: an idle member sends heartbeats until it leaves, and leaves once.
func TestGroupsPresence(t *testing.T) {
	w := newWorld()
	c := w.join(grouped("eu"))
	assert.True(t, c.Idle())
	assert.Nil(t, c.Drain(w.now), "it has never been a member")
	c.once = 1
	w.run(1)
	n := len(w.requests)
	w.run(10)
	assert.InDelta(t, 100, len(w.requests)-n, 5, "twenty a TTL")
	assert.Zero(t, w.last().Draw.Visit.Want)
	assert.False(t, c.Idle())
	c.receive(7, w.now+1, 0.01, w.now, 1, 1)
	c.closing = true
	c.touch()
	w.run(0.01)
	assert.EqualValues(t, 7, w.last().Draw.Visit.Back, "what it held")
	n = len(w.requests)
	assert.True(t, w.last().Draw.Visit.Leave)
	assert.True(t, c.Idle())
	c.touch()
	w.run(1)
	assert.Len(t, w.requests, n)
}

// TestGroupsOutage: in an outage, a replica goes on with its group's part once the others have
// noticed its silence. Afterwards it tells the store what it took, once.
func TestGroupsOutage(t *testing.T) {
	w := newWorld()
	c := w.join(grouped("eu"))
	c.callers = 1
	w.run(5)
	w.down = true
	w.run(0.2)
	from := w.now
	w.run(0.25)
	assert.LessOrEqual(t, c.between(from, w.now), 9, "the others have not noticed its silence")
	w.run(0.4)
	from = w.now
	w.run(4)
	assert.InDelta(t, 200, c.between(from, w.now), 15, "the part of its group")
	unpaid := c.groups().unpaid
	assert.EqualValues(t, c.groups().before, unpaid, "at most a period's part")
	w.run(8)
	from = w.now
	w.run(1)
	assert.Zero(t, c.between(from, w.now), "it no longer counts as a member")
	w.down = false
	w.run(1)
	spent := int64(0)
	for _, r := range w.requests {
		if r.Draw.Visit.Spent > 0 {
			spent = r.Draw.Visit.Spent
		}
	}
	assert.Equal(t, unpaid, spent)
	assert.Zero(t, c.groups().unpaid)
	assert.Zero(t, w.last().Draw.Visit.Spent)
	assert.Zero(t, c.groups().batching.outage.due)
}

// TestGroupsAnswers: the share is what was drawn of the group's part in the period before. Each row
// is an answer.
func TestGroupsAnswers(t *testing.T) {
	w := newWorld()
	c := w.join(grouped("eu"))
	g := c.groups()
	for i, a := range []struct {
		drawn                     pool.Drawn
		own, before, period, held int64
	}{
		{pool.Drawn{N: 3, Own: 2, Period: 7, Known: true}, 2, 0, 7, 3},
		{pool.Drawn{N: 3, Own: 3, Period: 7, Known: true}, 5, 0, 7, 6},
		{pool.Drawn{N: 1, Own: 1, Period: 8, Known: true}, 1, 5, 8, 7},
		{pool.Drawn{Period: 9, Again: 0.5, Known: true}, 0, 1, 9, 7},
		{pool.Drawn{N: 1, Own: 1, Period: 12}, 1, 0, 12, 8}, // some periods were missed
		{pool.Drawn{N: 6, Own: 6, Period: 12, Known: true}, 7, 0, 12, 14},
		{pool.Drawn{N: 1, Own: 1, Period: 14, Known: true}, 1, 3, 14, 15}, // what was drawn was for two
	} {
		now := 2 + float64(i)/100
		r := g.draw(now, 5, false)
		r.Draw.Drawn, r.Draw.InForce, r.Draw.Now = a.drawn, r.Draw.Terms, now
		c.Answered(r, now, now)
		assert.Equal(t, a.own, g.own, "row %d", i)
		assert.Equal(t, a.before, g.before, "row %d", i)
		assert.Equal(t, a.period, g.period, "row %d", i)
		assert.Equal(t, a.held, g.Unspent(), "row %d", i)
		assert.InDelta(t, float64(a.before), c.share, 1e-9)
		assert.Equal(t, !a.drawn.Known, c.NoGroup())
		assert.InDelta(t, now+0.1, g.again, 1e-9)
		if a.drawn.N == 0 {
			assert.InDelta(t, now+0.5, g.drawAt, 0.125+1e-9)
		}
	}
}

// TestGroupsNone: a process in none of the groups gets no permits, which is reported.
func TestGroupsNone(t *testing.T) {
	w := newWorld()
	c := w.join(grouped("asia"))
	c.callers = 1
	w.run(3)
	assert.True(t, c.NoGroup())
	assert.Empty(t, c.got)
	assert.Less(t, len(w.requests), 40)
}

// TestGroupsRamp: permits are released at the pace of the line on its ramp.
func TestGroupsRamp(t *testing.T) {
	w := newWorld()
	l := grouped("eu")
	l.Ramp = schedule.Ramp{From: 10, Over: 9}
	c := w.join(l)
	c.callers = 1
	w.run(3)
	assert.InDelta(t, 30, c.Stats(w.now).Allowed, 11)
	w.run(12)
	assert.InDelta(t, 100, c.Stats(w.now).Allowed, 1e-9)
}

// TestGroupsDrawTells: a draw asks for whole permits, gives back expired ones, and tells whether
// permits are wanted. A store that has failed and whose clock is unknown may answer at any time: it
// is asked for nothing.
func TestGroupsDrawTells(t *testing.T) {
	w := newWorld()
	g := w.join(grouped("eu")).groups()
	g.giveBackLater(1, 4)
	d := g.draw(1, 1.2, false).Draw
	assert.EqualValues(t, 2, d.Visit.Want)
	assert.EqualValues(t, 4, d.Visit.Back)
	assert.True(t, d.Active)
	d = g.draw(1, 0, false).Draw
	assert.Zero(t, d.Visit.Back, "once")
	assert.False(t, d.Active)
	g.batching.demand.Waiting = 1
	assert.True(t, g.draw(1, 0, false).Draw.Active)
	g.failures = 1
	assert.Zero(t, g.draw(1, 5, false).Draw.Visit.Want)
	g.storeTime = 100
	assert.EqualValues(t, 5, g.draw(1, 5, false).Draw.Visit.Want)
}

// TestGroupsOfMany: members of large groups, whose draws are far apart, get the limit all the same,
// and do not visit the store more often to show their presence.
func TestGroupsOfMany(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	for _, n := range []struct{ eu, us int }{{40, 40}, {99, 1}, {100, 100}} {
		w := newWorld()
		for i := range n.eu + n.us {
			own := "eu"
			if i >= n.eu {
				own = "us"
			}
			l := grouped(own)
			l.Rate, l.Groups.Terms.Permits, l.Groups.Terms.TTL = 1000, 1000, 5
			w.join(l).callers = 1
		}
		w.run(3)
		from, before := w.now, len(w.requests)
		w.run(2)
		got := map[string]int{}
		for _, c := range w.clients {
			got[c.Limit.Groups.Own] += c.between(from, w.now)
		}
		assert.InDelta(t, 2000, got["eu"]+got["us"], 100, "%v", n)
		assert.InDelta(t, 1000, got["us"], 150, "%v", n)
		assert.LessOrEqual(t, float64(len(w.requests)-before), 2/0.004*1.1, "%v", n)
	}
}

// TestGroupsIdle: an idle replica gives back its permits at once.
func TestGroupsIdle(t *testing.T) {
	w := newWorld()
	c := w.join(grouped("eu"))
	for range 5 { // at some of these times, there is little to give back
		c.callers = 1
		w.run(2.99)
		c.callers = 0
		w.run(0.3)
		assert.Zero(t, c.Unspent())
	}
	back := int64(0)
	for _, r := range w.requests {
		back += r.Draw.Visit.Back
	}
	assert.Positive(t, back)
}

// TestGroupsPeriod: the share is permits a second, however long the period is.
func TestGroupsPeriod(t *testing.T) {
	w := newWorld()
	l := grouped("eu")
	l.Groups.Terms.Permits, l.Groups.Terms.Period = 200, 2
	c := w.join(l)
	r := c.groups().draw(1, 5, false)
	r.Draw.Drawn, r.Draw.InForce = pool.Drawn{N: 80, Own: 80, Period: 7, Known: true}, r.Draw.Terms
	c.Answered(r, 1, 1)
	r = c.groups().draw(2, 5, false)
	r.Draw.Drawn, r.Draw.InForce = pool.Drawn{N: 1, Own: 1, Period: 8, Known: true}, r.Draw.Terms
	c.Answered(r, 2, 2)
	assert.InDelta(t, 40, c.Stats(2).Share, 1e-9)
	assert.EqualValues(t, 2, c.Stats(2).Allocations)
}

// TestGroupsSpread: replicas that found nothing draw again at different times.
func TestGroupsSpread(t *testing.T) {
	w := newWorld()
	low, high := math.Inf(1), 0.0
	for range 300 {
		c := w.join(grouped("eu"))
		r := c.groups().draw(1, 5, false)
		r.Draw.Drawn, r.Draw.InForce = pool.Drawn{Period: 7, Again: 0.4, Known: true}, r.Draw.Terms
		c.Answered(r, 1, 1)
		low, high = min(low, c.groups().drawAt), max(high, c.groups().drawAt)
	}
	assert.InDelta(t, 1.3, low, 0.01)
	assert.InDelta(t, 1.5, high, 0.01)
}

// TestGroupsWakeAt: a waiting caller's draw is due when there may be something.
func TestGroupsWakeAt(t *testing.T) {
	w := newWorld()
	c := w.join(grouped("eu"))
	g := c.groups()
	g.joined, g.again, g.drawAt = true, 3, 2
	assert.InDelta(t, 3, c.WakeAt(1), 1e-9)
	g.batching.demand = one
	assert.InDelta(t, 2, c.WakeAt(1), 1e-9)
}

// TestGroupsLeaving: a member that leaves is not idle until that is answered.
func TestGroupsLeaving(t *testing.T) {
	w := newWorld()
	c := w.join(grouped("eu"))
	c.once = 1
	w.run(1)
	r := c.Drain(w.now)
	if assert.NotNil(t, r) {
		assert.False(t, c.Idle())
		w.do(r, w.now)
		c.Answered(r, w.now, w.now)
		assert.True(t, c.Idle())
	}
}

// TestGroupsToldOnce: what was taken in an outage is told once, also within its period.
func TestGroupsToldOnce(t *testing.T) {
	w := newWorld()
	c := w.join(grouped("eu"))
	g := c.groups()
	g.unpaid, g.before, g.period = 5, 50, 7
	r := g.draw(1, 0, false)
	assert.EqualValues(t, 5, r.Draw.Visit.Spent)
	r.Draw.Drawn, r.Draw.InForce = pool.Drawn{Period: 7, Known: true}, r.Draw.Terms
	c.Answered(r, 1, 1)
	assert.Zero(t, g.draw(1, 0, false).Draw.Visit.Spent)
}

// TestGroupsOutageWithoutPart: a replica that drew nothing of its group's part in the last period
// takes nothing in an outage.
func TestGroupsOutageWithoutPart(t *testing.T) {
	w := newWorld()
	c := w.join(grouped("eu"))
	c.once = 1
	w.run(5)
	w.down = true
	w.run(1)
	c.callers = 1
	c.touch()
	n := len(c.got)
	w.run(5)
	assert.Len(t, c.got, n)
}
