package sharing

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestOutageShare: with onOutage share, a replica goes on at its last share in an outage. The
// limit is kept afterwards too.
func TestOutageShare(t *testing.T) {
	for outage, taken := range map[policy.OnOutage]float64{
		policy.OutageShare: 250, policy.OutageStop: 0, policy.OutageOpen: 0,
	} {
		w := newWorld()
		l := limited(policy.Fair, 100)
		l.OnOutage = outage
		a, b := w.join(l), w.join(l)
		a.callers, b.callers = 1, 1
		w.run(5)
		w.down = true
		w.run(0.5)
		from := w.now
		w.run(5)
		assert.InDelta(t, taken, a.between(from, w.now), taken/20, "onOutage %s", outage)
		assert.True(t, a.storeDown())
		w.down = false
		w.run(1)
		assert.False(t, a.storeDown())
		from = w.now
		w.run(5)
		assert.InDelta(t, 500, a.between(from, w.now)+b.between(from, w.now), 20)
	}
}

// TestLastShare: the share of a replica in an outage is the last one, if that is recent.
func TestLastShare(t *testing.T) {
	for i, c := range []struct {
		share, wanted, shareAt, failedAt float64
		replicas                         int64
		want                             float64
	}{
		{40, 60, 10, 12, 0, 40},     // recent
		{40, 30, 10, 12, 20, 30},    // less was wanted than others left
		{40, 5, 10, 12, 4, 25},      // but an even part of the limit
		{20, 5, 10, 12, 4, 20},      // and not more than the share
		{40, 0.5, 10, 12, 0, 1},     // the pool size is unknown
		{40, 60, 10, 12.1, 4, 1},    // old: a hundredth of the limit
		{40, 60, 10, 12.1, 500, .2}, // less if there are more replicas
		{40, 60, 10, 12.1, 0, 1},    //
		{0.2, 9, 10, 15.9, 0, 0.2},  // a light share is updated rarely
		{0.2, 9, 10, 16.1, 4, 1},    //
		{0.01, 9, 10, 11, 0, 0.1},   // at least a thousandth of the limit
		{400, 600, 10, 11, 0, 100},  // the limit was lowered
		{0, 0, 0, 11, 4, 25},        // no share: the limit divided by the pool size
		{0, 0, 0, 11, 0, 0.1},       // which is unknown
	} {
		w := newWorld()
		b := &newFair(w.join(limited(policy.Fair, 100)).Share).batching
		b.rate, b.share, b.wantedThen, b.shareAt, b.failedAt = 100, c.share, c.wanted, c.shareAt, c.failedAt
		b.env.Replicas.Store(c.replicas)
		assert.InDelta(t, c.want, b.outage.lastShare(), 1e-9, "row %d", i)
	}
}

// TestLastShareOfTwoOutages: the store is back between two outages for a moment, and tells no
// share.
func TestLastShareOfTwoOutages(t *testing.T) {
	for failedAt, want := range map[float64]float64{22: 40, 22.1: 1} {
		w := newWorld()
		b := &newFair(w.join(limited(policy.Fair, 100)).Share).batching
		b.rate, b.share, b.wantedThen, b.shareAt, b.failedAt, b.failures = 100, 40, 60, 10, 11, 2
		b.awaySince = 11
		b.outage.goOn()
		b.outage.endOutage(20, 0)
		b.failedAt = failedAt
		assert.InDelta(t, want, b.outage.lastShare(), 1e-9, "%v", failedAt)
		b.outage.endOutage(30, 0)
		b.failedAt = 30
		assert.InDelta(t, 1, b.outage.lastShare(), 1e-9, "there was no outage that ended")
	}
}

// TestLend: permits of the own share come a share's gap apart, while callers want some and no
// allocated permit is left. A pause makes up for a round at most.
func TestLend(t *testing.T) {
	w := newWorld()
	b := &newFair(w.join(limited(policy.Fair, 100)).Share).batching
	b.rate, b.share, b.wantedThen, b.shareAt, b.failedAt = 100, 20, 20, 1, 1
	b.failures, b.awaySince, b.lastDue, b.lastN = 2, 2.1, 1.9, 5
	b.outage.goOn()
	assert.InDelta(t, 2.15, b.outage.due, 1e-9, "the last batch covers the share until then")
	waits := Demand{Waiting: 1}
	for i, c := range []struct {
		now         float64
		d           Demand
		may         bool
		ownReleased int64
		next        float64
	}{
		{2.1, waits, true, 0, 2.15},
		{2.15, waits, true, 1, 2.2},
		{2.16, waits, true, 0, 2.21}, // the last one is not taken yet
		{2.31, waits, true, 3, 2.36},
		{2.5, Demand{}, true, 0, 2.5}, // no caller
		{2.6, waits, false, 0, 2.6},   // the mode does not let it
		{9.6, waits, true, 3, 9.75},   // a pause: a round's permits
	} {
		if c.now != 2.16 {
			b.withdraw(b.Available())
		}
		before := b.outage.released
		b.outage.mayNot = !c.may
		b.outage.releaseDue(c.now, c.d)
		assert.Equal(t, c.ownReleased, b.outage.released-before, "row %d", i)
		assert.InDelta(t, c.next, b.outage.due, 1e-9, "row %d", i)
	}
	assert.EqualValues(t, 7, b.outage.released)
	b.outage.goOn()
	assert.EqualValues(t, 7, b.outage.released, "the same outage")
	b.outage.endOutage(10, 0)
	b.awaySince = 9.9
	b.outage.goOn()
	assert.Zero(t, b.outage.released, "another outage")
	assert.InDelta(t, 9.9, b.outage.due, 1e-9, "callers have waited since then")
}

// TestCoveredShare: permits of a replica's own begin when its last batch covers its share no more.
// That is no batch of which the rest went back, or is void.
func TestCoveredShare(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(f *fair)
		from float64
	}{
		"its last batch":  {func(*fair) {}, 3.25},
		"an earlier one":  {func(f *fair) { f.awaySince = 4 }, 4},
		"it went back":    {func(f *fair) { f.clear(3.1) }, 3},
		"it is void":      {func(f *fair) { f.void() }, 3},
		"an unknown part": {func(f *fair) { f.share = 0 }, 3},
	} {
		_, f := fairShare(newWorld())
		f.awaySince, f.share = 3, 20
		f.receive(5, 3, 0.01, 3, 1, 0.1)
		c.do(f)
		f.batching.outage.goOn()
		assert.InDelta(t, c.from, f.batching.outage.due, 1e-9, name)
	}
}

// TestRepay: permits released ahead of their time are owed, and those released while the store was
// available to others, up to two seconds of the share. A fifth of a second is no such time.
func TestRepay(t *testing.T) {
	for i, c := range []struct {
		outage      policy.OnOutage
		ownDue      float64
		ownReleased int64
		since       float64
		debt        int64
	}{
		{policy.OutageShare, 10.11, 50, 0, 2},
		{policy.OutageShare, 9, 50, 0, 0}, // the next permit was overdue
		{policy.OutageShare, 10.11, 10, 0.8, 12},
		{policy.OutageShare, 10.11, 10, 0.45, 7},
		{policy.OutageShare, 10.11, 10, 0.15, 2},
		{policy.OutageShare, 9.91, 10, 60, 8},
		{policy.OutageShare, 10.11, 500, 60, 40},
		{policy.OutageShare, 11, 0, 60, 0}, // its last batch covers its share until then
		{policy.OutageShare, 11, 1, 60, 21},
		{policy.OutageShare, 0, 10, 60, 0}, // there was no outage
	} {
		w := newWorld()
		l := limited(policy.Fair, 100)
		l.OnOutage = c.outage
		b := &newFair(w.join(l).Share).batching
		b.rate, b.share, b.wantedThen, b.shareAt, b.failedAt = 100, 20, 20, 1, 1
		b.outage.due, b.outage.released, b.outage.at = c.ownDue, c.ownReleased, 10
		b.outage.endOutage(10, c.since)
		assert.Equal(t, c.debt, b.Debt(), "row %d", i)
		assert.Zero(t, b.Available(), "row %d", i)
		assert.Zero(t, b.outage.due)
	}
}

// TestPartialOutage: a replica that alone was cut off owes what it released, since its slots were
// allocated to others.
func TestPartialOutage(t *testing.T) {
	for _, partial := range []bool{false, true} {
		w := newWorld()
		a, b := w.join(limited(policy.Fair, 100)), w.join(limited(policy.Fair, 100))
		a.callers, b.callers = 1, 1
		w.run(5)
		// Requests of a fail. Those of b are answered, or there are none.
		if !partial {
			b.callers = 0
			w.run(1)
		}
		for range 20 {
			w.down = true
			a.touch()
			w.until(w.now) // a moves below, and b must not
			a.move()
			w.down = false
			if partial {
				b.touch()
				b.move()
			}
			w.now += 0.05
			for _, c := range w.clients { // no loop is late
				c.due = w.now
			}
		}
		ownReleased := a.Mode.(*fair).batching.outage.released
		assert.Positive(t, ownReleased)
		a.callers = 0
		a.retryAt = 0
		r := a.Next(w.now, Demand{Waiting: 1, Callers: 1, Anybody: true})
		if !assert.NotNil(t, r) {
			continue
		}
		w.do(r, w.now)
		a.Answered(r, w.now, w.now)
		if partial {
			assert.GreaterOrEqual(t, a.Debt(), ownReleased-7, "but for a fifth of a second")
		} else {
			assert.LessOrEqual(t, a.Debt(), int64(5))
		}
	}
}

// TestReturning: while others come back to the store, a replica requests its share at most: batches
// of a round although its share seems larger, and none before the last one covers its share no
// more.
func TestReturning(t *testing.T) {
	c, f := fairShare(newWorld())
	f.share, f.wantedThen, f.shareAt, f.failedAt = 20, 20, 9.9, 9.9
	many := Demand{Waiting: 1000, Callers: 1, Anybody: true}
	for _, now := range []float64{10, 10.19, 10.21} {
		f.batching.outage.backAt, f.batching.outage.backShare, f.batching.restUntil = 10, 20, 0
		f.share = 100 // others are not back yet, and not counted
		want := 2.0   // a round
		if now > 10.2 {
			want = 1000
		}
		r := c.Next(now, many)
		assert.InDelta(t, want, r.Allocate.Want, 1e-9, "%v", now)
		c.reply(r, now, 2, 0)
		f.clear(now)
		f.toStore = 0
		if now == 10 {
			assert.Nil(t, c.Next(10.09, many))
			assert.InDelta(t, 10.1, c.WakeAt(10.09), 1e-9)
		}
	}
	f.batching.outage.due = 20
	assert.InDelta(t, 50, f.batching.outage.bound(20, 100), 1e-9, "it has not been back")
	f.failedAt = 19
	assert.InDelta(t, 100, f.batching.outage.bound(20, 100), 1e-9, "its share is old")

	f.batching.outage.due, f.end = 0, 10 // a light share, whose turn is longer
	f.batching.outage.backAt, f.batching.outage.backShare, f.batching.restUntil, f.againAt = 10, 20, 0, 0
	r := c.Next(10.05, many)
	r.Allocate.Reply = schedule.Reply{N: 1, Share: 0.5, Rate: 100, Gap: 0.01, Lead: 1, Now: 10.05}
	c.Answered(r, 10.05, 10.05)
	assert.InDelta(t, 10.05+0.99/0.5, f.batching.restUntil, 1e-9)
}

// TestNobodyWanted: what was released before others were allocated slots is not owed.
func TestNobodyWanted(t *testing.T) {
	_, f := fairShare(newWorld())
	f.share, f.wantedThen, f.shareAt, f.failedAt = 20, 20, 1, 1
	f.batching.outage.due, f.batching.outage.released, f.batching.outage.at = 10, 500, 8
	f.batching.outage.endOutage(10, 1.5)
	assert.Zero(t, f.Debt())
	f.batching.outage.due, f.batching.outage.released, f.batching.outage.at = 10, 500, 8
	f.batching.outage.endOutage(10, 3)
	assert.EqualValues(t, 16, f.Debt(), "for 0.8 s")
}

// TestStopAndOpen: only with `share` has a replica permits of its own.
func TestStopAndOpen(t *testing.T) {
	for outage, goesOn := range map[policy.OnOutage]bool{
		policy.OutageShare: true, policy.OutageStop: false, policy.OutageOpen: false,
	} {
		l := limited(policy.Fair, 100)
		l.OnOutage = outage
		b := &newFair(newWorld().join(l).Share).batching
		b.awaySince = 3
		b.outage.goOn()
		assert.Equal(t, goesOn, b.outage.due > 0, "%s", outage)

		b.Limit.OnOutage, b.share, b.shareAt, b.outage.due = outage, 50, 3, 3
		b.outage.releaseDue(3, one)
		assert.Equal(t, goesOn, b.Available() > 0, "%s, from now on", outage)
		assert.Equal(t, goesOn, b.outage.due > 0, "%s, from now on", outage)
	}
}
