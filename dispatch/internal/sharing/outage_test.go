package sharing

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/policy"
)

// TestOutageShare: while the store is unavailable, a replica goes on at the share that it was last
// told, if the policy says so, and none of its permits are free: what it took too early, it owes.
func TestOutageShare(t *testing.T) {
	for outage, taken := range map[policy.OnOutage]float64{policy.OutageShare: 250, policy.OutageStop: 0, policy.OutageOpen: 0} {
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
		assert.InDelta(t, taken, a.between(from, w.now), taken/20, "onOutage %s: half of the limit", outage)
		assert.True(t, a.outage())
		w.down = false
		w.run(1)
		assert.False(t, a.outage())
		from = w.now
		w.run(5)
		assert.InDelta(t, 500, a.between(from, w.now)+b.between(from, w.now), 20)
	}
}

// TestLastShare is what a replica takes for its share in an outage.
func TestLastShare(t *testing.T) {
	for i, c := range []struct {
		share, shareAt, failedAt float64
		replicas                 int64
		want                     float64
	}{
		{40, 10, 12, 0, 40},     // told lately
		{40, 10, 12.1, 0, 1},    // others may have it now: a hundredth of the limit
		{0.2, 10, 15.9, 0, 0.2}, // a light share is told rarely
		{0.2, 10, 16.1, 0, 1},   //
		{0.01, 10, 11, 0, 0.1},  // the limit's thousandth at least
		{400, 10, 11, 0, 100},   // the limit has become lower
		{0, 0, 11, 4, 25},       // never told one: the limit by the replicas
		{0, 0, 11, 0, 0.1},      // whose number is unknown
	} {
		w := newWorld()
		b := &newFair(w.join(limited(policy.Fair, 100)).Share).batches
		b.rate, b.share, b.shareAt, b.failedAt = 100, c.share, c.shareAt, c.failedAt
		b.env.Replicas.Store(c.replicas)
		assert.InDelta(t, c.want, b.lastShare(), 1e-9, "row %d", i)
	}
}

// TestLend: permits come a share's gap apart while callers want some and nothing that the store
// allocated is left; for a pause, no more than for a round.
func TestLend(t *testing.T) {
	w := newWorld()
	b := &newFair(w.join(limited(policy.Fair, 100)).Share).batches
	b.rate, b.share, b.shareAt, b.failedAt = 100, 20, 1, 1
	b.failures = 2
	b.cutOff(2, false)
	assert.InDelta(t, 2.15, b.lendAt, 1e-9, "the next request may succeed before")
	waits := Demand{Waiting: 1}
	for i, c := range []struct {
		now  float64
		d    Demand
		may  bool
		lent int64
		next float64
	}{
		{2.1, waits, true, 0, 2.15},
		{2.15, waits, true, 1, 2.2},
		{2.16, waits, true, 0, 2.21}, // that one is there still
		{2.31, waits, true, 3, 2.36},
		{2.5, Demand{}, true, 0, 2.5}, // nobody wants one
		{2.6, waits, false, 0, 2.6},   // it may not
		{9.6, waits, true, 3, 9.75},   // a pause: those of a round
	} {
		if c.now != 2.16 {
			b.withdraw(b.Available())
		}
		before := b.lent
		b.mayNot = !c.may
		b.lend(c.now, c.d)
		assert.Equal(t, c.lent, b.lent-before, "row %d", i)
		assert.InDelta(t, c.next, b.lendAt, 1e-9, "row %d", i)
	}
	assert.EqualValues(t, 7, b.lent)
	b.cutOff(10, false)
	assert.EqualValues(t, 7, b.lent)
	b.cutOff(10, true)
	assert.Zero(t, b.lent, "another outage")
}

// TestRepay: what was released ahead of its time is owed, up to two seconds of the share, and all
// of it if the store was unavailable to some replicas only.
func TestRepay(t *testing.T) {
	for i, c := range []struct {
		outage  policy.OnOutage
		lendAt  float64
		lent    int64
		partial bool
		debt    int64
	}{
		{policy.OutageShare, 10.11, 50, false, 2},
		{policy.OutageShare, 9, 50, false, 0}, // its next permit was overdue
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
		b.rate, b.share, b.shareAt, b.failedAt, b.lendAt, b.lent = 100, 20, 1, 1, c.lendAt, c.lent
		b.repay(10, c.partial)
		assert.Equal(t, c.debt, b.Debt(), "row %d", i)
		assert.Zero(t, b.lendAt)
	}
}

// TestPartialOutage: a replica that alone was cut off repays what it lent, since the others were
// allocated its slots.
func TestPartialOutage(t *testing.T) {
	for _, partial := range []bool{false, true} {
		w := newWorld()
		a, b := w.join(limited(policy.Fair, 100)), w.join(limited(policy.Fair, 100))
		a.callers, b.callers = 1, 1
		w.run(5)
		// a's requests fail; b's are answered, or there are none.
		if !partial {
			b.callers = 0
			w.run(1)
		}
		for range 20 {
			w.down = true
			a.touch()
			w.until(w.now) // a is moved below, b must not be
			a.move()
			w.down = false
			if partial {
				b.touch()
				b.move()
			}
			w.now += 0.05
			for _, c := range w.clients { // the loop that has skipped time is not late
				c.due = w.now
			}
		}
		lent := a.Mode.(*fair).lent
		assert.Positive(t, lent)
		a.callers = 0
		a.retryAt = 0
		r := a.Next(w.now, Demand{Waiting: 1, Callers: 1, Anybody: true})
		if assert.NotNil(t, r) {
			w.do(r, w.now)
			a.Answered(r, w.now, w.now)
		}
		if partial {
			assert.GreaterOrEqual(t, a.Debt(), lent-3)
		} else {
			assert.LessOrEqual(t, a.Debt(), int64(5))
		}
	}
}
