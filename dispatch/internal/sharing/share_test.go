package sharing

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestRevisions: a limit has a new revision when its pace changes or it comes from another policy
// store, and at no other time.
func TestRevisions(t *testing.T) {
	was := limited(policy.Fair, 10)
	for what, c := range map[string]struct {
		change func(l *resolve.Limit)
		moved  bool
	}{
		"nothing":         {func(*resolve.Limit) {}, false},
		"the rate":        {func(l *resolve.Limit) { l.Rate = 20 }, true},
		"the burst":       {func(l *resolve.Limit) { l.Burst = 20 }, true},
		"the ramp":        {func(l *resolve.Limit) { l.Ramp.Over = 20 }, true},
		"the round":       {func(l *resolve.Limit) { l.Round = 20 }, true},
		"groups' terms":   {func(l *resolve.Limit) { l.Groups.Terms.Keep = 0.5 }, true},
		"the busy rule":   {func(l *resolve.Limit) { l.Rule.MinRate = 20 }, true},
		"the weight":      {func(l *resolve.Limit) { l.Weight = 20 }, false},
		"the reservation": {func(l *resolve.Limit) { l.Reserved = 20 }, false},
		"onOutage":        {func(l *resolve.Limit) { l.OnOutage = policy.OutageOpen }, false},
		"the epoch":       {func(l *resolve.Limit) { l.Revision.Epoch = 1 }, true},
	} {
		s := newWorld().join(was).Share
		s.retryAt = 9
		l := was
		l.Revision.Number = 5
		c.change(&l)
		assert.Equal(t, c.moved, s.Apply(l), what)
		if c.moved {
			assert.Equal(t, l.Revision, s.Limit.Revision, what)
			assert.Zero(t, s.retryAt, what)
		} else {
			assert.Equal(t, was.Revision, s.Limit.Revision, what)
			assert.EqualValues(t, 9, s.retryAt, what)
		}
		l.Revision = s.Limit.Revision
		assert.Equal(t, l, s.Limit, "in force: "+what)
	}
}

// TestQuotaRevisions: revisions of quotas are the store's clock, and only increase. One that was
// made up is replaced once the clock is known.
func TestQuotaRevisions(t *testing.T) {
	l := limited(policy.Fair, 10)
	l.Reason, l.Revision = resolve.ReasonQuota, schedule.Revision{}
	s := newWorld().join(l).Share
	for i, c := range []struct {
		rate         float64
		number, want int64
	}{
		{10, 0, 0},
		{20, 0, 1},     // the clock is not known
		{20, 0, 1},     //
		{20, 500, 500}, // now it is
		{20, 600, 500}, // nothing changed
		{30, 700, 700},
		{40, 600, 701}, // never less
		{40, 0, 701},
	} {
		l.Rate, l.Revision.Number = c.rate, c.number
		s.Apply(l)
		assert.Equal(t, c.want, s.Limit.Revision.Number, "row %d", i)
		assert.Equal(t, c.rate, s.Limit.Rate, "row %d", i)
	}
}

func TestFits(t *testing.T) {
	l := limited(policy.Fair, 10)
	s := newWorld().join(l).Share
	assert.True(t, s.Fits(at(l, 20)))
	l.Key += "x"
	assert.False(t, s.Fits(l))
	assert.False(t, s.Fits(limited(policy.Strict, 10)))
}

// TestModes: a share has the type of its mode.
func TestModes(t *testing.T) {
	for mode, want := range map[policy.SharingMode]any{
		policy.Fair: &fair{}, policy.Strict: &strict{}, policy.Split: &split{}, policy.Groups: &groups{},
	} {
		s := newWorld().join(limited(mode, 10)).Share
		assert.IsType(t, want, s.Mode)
		assert.Equal(t, mode == policy.Strict, s.Paced)
		assert.Equal(t, mode == policy.Strict, s.Waiter != "")
		assert.Equal(t, mode == policy.Fair, s.Holds)
		assert.Equal(t, mode == policy.Fair, s.Mode.Keep(1))
	}
}

// TestDebtMoves: a debt moves from one share to another, once.
func TestDebtMoves(t *testing.T) {
	w := newWorld()
	a, b := w.join(limited(policy.Fair, 10)), w.join(limited(policy.Split, 10))
	a.Owe(5)
	assert.EqualValues(t, 5, a.Debt())
	b.Owe(a.TakeDebt())
	assert.EqualValues(t, 5, b.Debt())
	assert.Zero(t, a.TakeDebt())
	assert.Zero(t, a.Stats(1).Granted, "a debt that is moved is no grant")
	assert.Zero(t, b.Stats(1).Granted)
	assert.Zero(t, b.Stats(1).Owed)
}

// TestFollowOutage: a limit with onOutage open opens when the store is unavailable and no permit is
// left. It closes when the store answers.
func TestFollowOutage(t *testing.T) {
	for _, outage := range []policy.OnOutage{
		policy.OutageOpen, policy.OutageShare, policy.OutageStop,
	} {
		l := limited(policy.Fair, 10)
		l.OnOutage = outage
		s := newWorld().join(l).Share
		opens := outage == policy.OutageOpen
		s.supply(1)
		s.failed(1)
		assert.False(t, s.FollowOutage())
		s.failed(1)
		assert.False(t, s.FollowOutage(), "a permit is left")
		s.Take(1)
		assert.Equal(t, opens, s.FollowOutage())
		assert.Equal(t, opens, s.Lifted())
		s.Return(1)
		assert.False(t, s.FollowOutage(), "it stays open")
		s.succeeded(1)
		assert.Equal(t, opens, s.FollowOutage())
		assert.False(t, s.Lifted())
	}
}

// TestCounts: a share counts the permits granted, returned, owed, lost and used.
func TestCounts(t *testing.T) {
	s := newWorld().join(limited(policy.Fair, 10)).Share
	s.supply(10)
	s.Take(8)
	s.Return(3)
	s.Return(-4)
	s.lack(1, 2)
	s.Waste(1)
	s.lost = 5
	state := s.Stats(1)
	assert.EqualValues(t, 8, state.Granted)
	assert.EqualValues(t, 3, state.Returned)
	assert.EqualValues(t, 4, state.Owed)
	assert.EqualValues(t, 6, state.Lost)
	assert.EqualValues(t, 1, state.Shadowed)
	assert.EqualValues(t, 1, state.Held)
	assert.EqualValues(t, 8-3+4+2, s.TakeUsed())
	assert.Zero(t, s.TakeUsed())
	s.Take(1)
	assert.EqualValues(t, 1, s.TakeUsed())
}

// TestNew: the averages of a new share start when it is made.
func TestNew(t *testing.T) {
	w := newWorld()
	w.now = 50
	s := w.join(limited(policy.Fair, 10)).Share
	s.supply(3)
	s.Take(3)
	s.see(50.3, Demand{})
	assert.InDelta(t, 10*(1-math.Exp(-1)), s.use, 1e-9, "three permits in 300 ms")
	assert.Zero(t, s.wanting(Demand{})-1.3*min(s.use, s.sparse))
}
