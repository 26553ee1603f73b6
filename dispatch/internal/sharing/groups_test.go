package sharing

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// grouped is a limit of 100/s that is divided over two worker groups.
func grouped(own string) resolve.Limit {
	l := limited(policy.Groups, 100)
	l.Groups = resolve.Groups{Own: own, Terms: pool.Terms{Names: []string{"eu", "us"}, Permits: 100, Period: 1, Keep: 0.2, Ahead: 0.1, TTL: 2}}
	return l
}

func (c *client) groups() *groups { return c.Mode.(*groups) }

// TestGroupsDraw: each group has its part, and what the other leaves.
func TestGroupsDraw(t *testing.T) {
	w := newWorld()
	a, b := w.join(grouped("eu")), w.join(grouped("us"))
	a.callers, b.callers = 1, 1
	w.run(4)
	from := w.now
	w.run(10)
	assert.InDelta(t, 500, a.between(from, w.now), 30)
	assert.InDelta(t, 500, b.between(from, w.now), 30)
	assert.InDelta(t, 50, a.State(w.now).Share, 3, "its own group's, of the period before")
	assert.Equal(t, "eu", a.State(w.now).Group)
	b.callers = 0
	w.run(1)
	from = w.now
	w.run(10)
	assert.InDelta(t, 900, a.between(from, w.now), 40, "80 of 100 that the other does not want")
	assert.False(t, a.NoGroup())
}

// TestGroupsWait: a group that found nothing draws again when there may be something, unless the
// limit changes.
func TestGroupsWait(t *testing.T) {
	w := newWorld()
	l := grouped("eu")
	l.Groups.Terms.Permits, l.Rate = 2, 2
	c := w.join(l)
	c.callers = 1
	w.run(20)
	n := len(w.requests)
	w.run(20)
	assert.LessOrEqual(t, len(w.requests)-n, 340, "heartbeats are 200")
	assert.Greater(t, c.groups().drawAt, w.now-1)
	c.groups().drawAt = w.now + 9
	c.groups().again = w.now + 9
	n = len(w.requests)
	c.Apply(at(l, 200))
	c.touch()
	w.run(0.01)
	assert.Greater(t, len(w.requests), n)
}

// TestGroupsPresence: a member that wants nothing shows that it is there, and leaves once.
func TestGroupsPresence(t *testing.T) {
	w := newWorld()
	c := w.join(grouped("eu"))
	assert.True(t, c.Idle())
	assert.Nil(t, c.Drain(w.now), "the store does not know it")
	c.once = 1
	w.run(1)
	n := len(w.requests)
	w.run(10)
	assert.InDelta(t, 100, len(w.requests)-n, 5, "each twentieth of the ttl")
	assert.Zero(t, w.last().Draw.Visit.Want)
	assert.False(t, c.Idle())
	c.closing = true
	c.touch()
	w.run(0.01)
	n = len(w.requests)
	assert.True(t, w.last().Draw.Visit.Leave)
	assert.True(t, c.Idle())
	c.touch()
	w.run(1)
	assert.Len(t, w.requests, n)
}

// TestGroupsOutage: while the store is unavailable, a replica goes on with its own group's part
// once the others have noticed its silence; what it took so is told to the store, once.
func TestGroupsOutage(t *testing.T) {
	w := newWorld()
	c := w.join(grouped("eu"))
	c.callers = 1
	w.run(5)
	w.down = true
	w.run(0.2)
	from := w.now
	w.run(0.25)
	assert.LessOrEqual(t, c.between(from, w.now), 9, "the others have not noticed")
	w.run(0.4)
	from = w.now
	w.run(4)
	assert.InDelta(t, 200, c.between(from, w.now), 15, "its own part")
	unpaid := c.groups().unpaid
	assert.EqualValues(t, c.groups().before, unpaid, "that of a period, at most")
	w.run(8)
	from = w.now
	w.run(1)
	assert.Zero(t, c.between(from, w.now), "it counts as gone")
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
}

// TestGroupsAnswers, one a row: the share is what was drawn of the own group's in the period
// before.
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
		{pool.Drawn{N: 1, Own: 1, Period: 12}, 1, 0, 12, 8}, // it missed some
	} {
		now := 2 + float64(i)/100
		r := g.draw(now, 5, false)
		r.Draw.Drawn, r.Draw.Now = a.drawn, now
		c.Answered(r, now, now)
		assert.Equal(t, a.own, g.own, "row %d", i)
		assert.Equal(t, a.before, g.before, "row %d", i)
		assert.Equal(t, a.period, g.period, "row %d", i)
		assert.Equal(t, a.held, g.Held(), "row %d", i)
		assert.InDelta(t, float64(a.before), c.share, 1e-9)
		assert.Equal(t, !a.drawn.Known, c.NoGroup())
		assert.InDelta(t, now+0.1, g.again, 1e-9)
		if a.drawn.N == 0 {
			assert.InDelta(t, now+0.5, g.drawAt, 0.125+1e-9)
			assert.Greater(t, g.drawAt, now+0.3)
		}
	}
}

// TestGroupsNone: a process that is in none of the groups gets nothing, and knows it.
func TestGroupsNone(t *testing.T) {
	w := newWorld()
	c := w.join(grouped("asia"))
	c.callers = 1
	w.run(3)
	assert.True(t, c.NoGroup())
	assert.Empty(t, c.got)
	assert.Less(t, len(w.requests), 40)
}

// TestGroupsRamp goes at the pace of the line.
func TestGroupsRamp(t *testing.T) {
	w := newWorld()
	l := grouped("eu")
	l.Ramp = schedule.Ramp{From: 10, Over: 9}
	c := w.join(l)
	c.callers = 1
	w.run(3)
	assert.InDelta(t, 30, c.State(w.now).Allowed, 11)
	w.run(12)
	assert.InDelta(t, 100, c.State(w.now).Allowed, 1e-9)
}
