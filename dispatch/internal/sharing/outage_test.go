package sharing

import (
	"testing"

	"github.com/stretchr/testify/assert"

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
		assert.True(t, a.outage())
		w.down = false
		w.run(1)
		assert.False(t, a.outage())
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
		b := &newFair(w.join(limited(policy.Fair, 100)).Share).batches
		b.rate, b.share, b.shareFor, b.shareAt, b.failedAt = 100, c.share, c.wanted, c.shareAt, c.failedAt
		b.env.Replicas.Store(c.replicas)
		assert.InDelta(t, c.want, b.lastShare(), 1e-9, "row %d", i)
	}
}

// TestLastShareOfTwoOutages: the store is back between two outages for a moment, and tells no
// share.
func TestLastShareOfTwoOutages(t *testing.T) {
	for failedAt, want := range map[float64]float64{22: 40, 22.1: 1} {
		w := newWorld()
		b := &newFair(w.join(limited(policy.Fair, 100)).Share).batches
		b.rate, b.share, b.shareFor, b.shareAt, b.failedAt, b.failures = 100, 40, 60, 10, 11, 2
		b.cutOff(11, true)
		b.endOutage(20, false)
		b.failedAt = failedAt
		assert.InDelta(t, want, b.lastShare(), 1e-9, "%v", failedAt)
		b.endOutage(30, false)
		b.failedAt = 30
		assert.InDelta(t, 1, b.lastShare(), 1e-9, "there was no outage that ended")
	}
}

// TestLend: ownReleased permits come a share's gap apart, while callers want some and no allocated
// permit is left. A pause makes up for a round at most.
func TestLend(t *testing.T) {
	w := newWorld()
	b := &newFair(w.join(limited(policy.Fair, 100)).Share).batches
	b.rate, b.share, b.shareFor, b.shareAt, b.failedAt = 100, 20, 20, 1, 1
	b.failures = 2
	b.cutOff(2, false)
	assert.InDelta(t, 2.15, b.ownDue, 1e-9, "the next request may succeed before")
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
		before := b.ownReleased
		b.mayNot = !c.may
		b.releaseOwn(c.now, c.d)
		assert.Equal(t, c.ownReleased, b.ownReleased-before, "row %d", i)
		assert.InDelta(t, c.next, b.ownDue, 1e-9, "row %d", i)
	}
	assert.EqualValues(t, 7, b.ownReleased)
	b.cutOff(10, false)
	assert.EqualValues(t, 7, b.ownReleased)
	b.cutOff(10, true)
	assert.Zero(t, b.ownReleased, "another outage")
}

// TestRepay: permits released ahead of their time are owed, up to two seconds of the share. If the
// store was unavailable to some replicas only, all ownReleased permits are owed.
func TestRepay(t *testing.T) {
	for i, c := range []struct {
		outage      policy.OnOutage
		ownDue      float64
		ownReleased int64
		partial     bool
		debt        int64
	}{
		{policy.OutageShare, 10.11, 50, false, 2},
		{policy.OutageShare, 9, 50, false, 0}, // the next permit was overdue
		{policy.OutageShare, 10.11, 10, true, 12},
		{policy.OutageShare, 9.91, 10, true, 8},
		{policy.OutageShare, 10.11, 500, true, 40},
		{policy.OutageShare, 11, 0, true, 20},
		{policy.OutageStop, 11, 10, true, 0},
		{policy.OutageShare, 0, 10, true, 0}, // there was no outage
	} {
		w := newWorld()
		l := limited(policy.Fair, 100)
		l.OnOutage = c.outage
		b := &newFair(w.join(l).Share).batches
		b.rate, b.share, b.shareFor, b.shareAt, b.failedAt = 100, 20, 20, 1, 1
		b.ownDue, b.ownReleased = c.ownDue, c.ownReleased
		b.endOutage(10, c.partial)
		assert.Equal(t, c.debt, b.Debt(), "row %d", i)
		assert.Zero(t, b.Available(), "row %d", i)
		assert.Zero(t, b.ownDue)
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
		ownReleased := a.Mode.(*fair).ownReleased
		assert.Positive(t, ownReleased)
		a.callers = 0
		a.retryAt = 0
		r := a.Next(w.now, Demand{Waiting: 1, Callers: 1, Anybody: true})
		if assert.NotNil(t, r) {
			w.do(r, w.now)
			a.Answered(r, w.now, w.now)
		}
		if partial {
			assert.GreaterOrEqual(t, a.Debt(), ownReleased-3)
		} else {
			assert.LessOrEqual(t, a.Debt(), int64(5))
		}
	}
}
