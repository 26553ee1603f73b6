package sharing

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/policy"
)

// TestRefusedCallersComeBack: a refusal is demand until the caller has stayed away for twice as
// long as it usually does.
func TestRefusedCallersComeBack(t *testing.T) {
	w := newWorld()
	c := w.join(limited(policy.Fair, 1))
	c.Refuse(2)
	assert.True(t, c.Refusing())
	c.touch()
	w.run(0.01)
	assert.EqualValues(t, 2, w.requests[0].Allocate.Want, "the permits that were refused")
	w.run(1.5)
	assert.True(t, c.Refusing(), "the caller may come within 2 s")
	c.touch()
	w.run(0.7)
	c.touch()
	w.run(0.01)
	assert.False(t, c.Refusing())
}

// TestRefusedDuringAStep: a refusal that a step does not know is demand of the next one.
func TestRefusedDuringAStep(t *testing.T) {
	w := newWorld()
	s := w.join(limited(policy.Fair, 100)).Share
	idle := s.wanting(Demand{})
	step := func(now float64, meanwhile int64) float64 {
		s.see(now, Demand{})
		if meanwhile > 0 {
			s.Refuse(meanwhile)
		}
		return s.wanting(Demand{})
	}
	assert.Equal(t, idle, step(2, 3))
	assert.EqualValues(t, 3, s.refused.Load())
	assert.Greater(t, step(3, 0), idle)
	assert.Zero(t, s.refused.Load())
	s.Refuse(3)
	step(4, 5)
	assert.EqualValues(t, 5, s.refused.Load(), "what came during the step, alone")
}

// TestWants: the demand of a replica follows from what its callers take, wait for and were refused.
func TestWants(t *testing.T) {
	for i, c := range []struct {
		use, sparse, quick float64
		refused            int64
		waiting            float64
		want               float64
	}{
		{use: 100, sparse: 1e9, want: 130},
		{use: 100, sparse: 10, want: 13}, // a permit was taken after a pause
		{use: 100, sparse: 1e9, waiting: 5, want: 180},
		{use: 0, sparse: 1e9, refused: 3, want: 6}, // the caller comes back in half a second
		{use: 100, sparse: 1e9, waiting: 1, quick: 50, want: 1000},
		{use: 100, sparse: 1e9, quick: 50, want: 130},
	} {
		w := newWorld()
		s := w.join(limited(policy.Fair, 100)).Share
		s.use, s.sparse, s.quick, s.patience = c.use, c.sparse, c.quick, 0.5
		s.refusals = c.refused
		assert.InDelta(t, c.want, s.wanting(Demand{Waiting: c.waiting}), 1e-9, "row %d", i)
	}
}

// TestPressure: callers that wait for slots to come raise the demand by a quarter at most.
func TestPressure(t *testing.T) {
	for _, c := range []struct{ heldUp, want float64 }{
		{0, 100}, {0.1, 100 / 0.9}, {0.2, 125}, {1, 125},
	} {
		w := newWorld()
		s := w.join(limited(policy.Fair, 100)).Share
		s.heldUp = c.heldUp
		assert.InDelta(t, c.want, s.pressure(1, 100), 1e-9, "held up %v s", c.heldUp)
		assert.InDelta(t, 100.0, s.pressure(0, 100), 1e-9, "just now")
	}
	w := newWorld()
	c := w.join(limited(policy.Fair, 100))
	c.see(1.1, Demand{Waiting: 1})
	assert.Zero(t, c.heldUp, "no slot is allocated")
	c.receive(5, 2, 0.01, 1, 1, 1)
	c.see(1.3, Demand{Waiting: 1})
	assert.InDelta(t, 0.2, c.heldUp, 1e-9)
	c.see(1.5, Demand{})
	assert.InDelta(t, 0.2, c.heldUp, 1e-9, "no caller waits")
}

// TestPatience: a refused caller is expected after the time that the last one stayed away.
func TestPatience(t *testing.T) {
	w := newWorld()
	s := w.join(limited(policy.Fair, 100)).Share
	for _, c := range []struct {
		now      float64
		refused  int64
		patience float64
		asked    int64
	}{
		{2, 3, 1, 3}, // unknown, at first
		{2.5, 2, 0.5, 2},
		{2.51, 2, 0.1, 2}, // at least a round
		{2.7, 0, 0.1, 2},
		{2.72, 0, 0.1, 0}, // twice the patience is over
		{200, 1, 60, 1},
		{319, 0, 60, 1},
		{321, 0, 60, 0},
	} {
		s.refused.Store(c.refused)
		s.see(c.now, Demand{})
		assert.InDelta(t, c.patience, s.patience, 1e-9, "at %v", c.now)
		assert.Equal(t, c.asked, s.asked, "at %v", c.now)
	}
}

// TestSparse: permits that are taken after a pause of over two rounds count by the pause.
func TestSparse(t *testing.T) {
	w := newWorld()
	s := w.join(limited(policy.Fair, 100)).Share
	take := func(now float64, n int64) float64 {
		s.supply(n)
		s.Take(n)
		s.see(now, Demand{})
		return s.sparse
	}
	take(1.1, 1)
	assert.InDelta(t, 2.0, take(2.1, 2), 1e-9)
	assert.InDelta(t, 2.0, take(2.2, 0), 1e-9, "until the next permit is taken")
	assert.Greater(t, take(2.25, 1), 1e300)
}

// TestUse: the use that is reported is what callers take.
func TestUse(t *testing.T) {
	w := newWorld()
	c := w.join(limited(policy.Fair, 100))
	c.callers = 1
	w.run(5)
	assert.InDelta(t, 100, c.Stats(w.now).Use, 10)
}
