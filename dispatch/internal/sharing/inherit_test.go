package sharing

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// closedShare returns a share that was closed with two permits, one of them released, and that is
// known to the schedule; and a new share of the same limit.
func closedShare() (closed, f *fair) {
	env := &Env{Rand: rand.New(rand.NewPCG(1, 1)), Timeout: constant(0)}
	limit := limited(policy.Fair, 10)
	closed = New(env, limit, 1).Mode.(*fair)
	closed.Advance(Time{Now: 1}, Demand{})
	closed.supply(1)
	closed.Bucket.batches = []batch{{n: 1, left: 1, due: 1.1, gap: 0.1, minGap: 0.1, expires: 1.5}}
	closed.end, closed.toStore, closed.toStoreAt, closed.strayAt = 1.2, 3, 0.95, 1
	closed.carry = schedule.Carry{Inc: 7, Seq: 3}
	closed.share, closed.wantedThen, closed.shareAt, closed.batching.rev, closed.batching.round = 5, 6, 1, limit.Revision, 0.2
	closed.roundRate, closed.againAt, closed.batching.restUntil, closed.lead = 10, 3, 4, 0.3
	closed.lastDue, closed.lastN = 1.1, 1
	closed.storeTime, closed.clock, closed.rtts = 100, clock{101, 0.9, 1}, [2]float64{0.01, 0.02}
	closed.starts, closed.strayLife = [2]uint64{1, 2}, 0.2
	closed.Keep(2)
	f = New(env, limit, 1).Mode.(*fair)
	f.Advance(Time{Now: 1}, Demand{})
	return closed, f
}

var refusedOne = Demand{Waiting: 1, Callers: 1, Anybody: true}

// TestInherit: a new share has the permits and the place of a closed one, instead of a request.
func TestInherit(t *testing.T) {
	closed, f := closedShare()
	assert.Nil(t, f.Next(1, refusedOne))
	assert.EqualValues(t, 2, f.Unspent())
	assert.EqualValues(t, 1, f.Available())
	assert.Equal(t, schedule.Carry{Inc: 7, Seq: 3}, f.carry)
	assert.Equal(t, []float64{5, 6, 1, 0.2, 10, 3, 4, 100, 1.2, 1, 0.2, 0.3, 1.1, 1}, []float64{
		f.share, f.wantedThen, f.shareAt, f.batching.round, f.roundRate, f.againAt, f.batching.restUntil, f.storeTime, f.end, f.strayAt,
		f.strayLife, f.lead, f.lastDue, float64(f.lastN),
	})
	assert.Equal(t, closed.clock, f.clock)
	assert.Equal(t, closed.rtts, f.rtts)
	assert.Equal(t, [2]uint64{1, 2}, f.starts)
	assert.Zero(t, closed.Unspent())
	assert.Zero(t, closed.carry)
	assert.Nil(t, closed.Drain(1), "it has nothing to give back")
	assert.Empty(t, f.env.keeping[f.Limit.Key])
	assert.InDelta(t, 1, f.WakeAt(1), 1e-9, "a caller is to be served")

	// What has expired goes back with the request that follows.
	closed, f = closedShare()
	closed.withdraw(1)
	closed.Bucket.batches = nil
	closed.againAt, closed.batching.restUntil = 0, 0
	r := f.Next(1, refusedOne)
	if assert.NotNil(t, r) {
		assert.EqualValues(t, 3, r.Allocate.Returned)
		assert.EqualValues(t, 7, r.Allocate.Carry.Inc)
	}
}

// TestInheritNot says when there is nothing to inherit.
func TestInheritNot(t *testing.T) {
	for name, set := range map[string]func(closed, f *fair){
		"opened again":       func(closed, _ *fair) { closed.Reopen() },
		"kept no longer":     func(closed, _ *fair) { closed.Next(2, Demand{}) },
		"an answer comes":    func(closed, _ *fair) { closed.pending = true },
		"never answered":     func(closed, _ *fair) { closed.carry = schedule.Carry{} },
		"under other terms":  func(closed, _ *fair) { closed.batching.rev.Number-- },
		"at another rate":    func(closed, _ *fair) { closed.batching.top = 20 },
		"on another ramp":    func(closed, _ *fair) { closed.batching.ramp.Over = 1 },
		"of another weight":  func(closed, _ *fair) { closed.Limit.Weight = 0.1 },
		"of another minimum": func(closed, _ *fair) { closed.Limit.Reserved = 1 },
		"of another limit":   func(_, f *fair) { f.Limit.Key = "other" },
		"it has a place":     func(_, f *fair) { f.carry.Inc = 7 },
		"store unavailable":  func(_, f *fair) { f.failures = 1 },
		"nothing is wanted":  func(_, f *fair) { f.batching.gone = true },
	} {
		closed, f := closedShare()
		set(closed, f)
		d := refusedOne
		if name == "nothing is wanted" {
			d = Demand{}
		}
		f.Next(1, d)
		assert.Zero(t, f.Available(), name)
	}
	closed, _ := closedShare()
	closed.clear(1)
	assert.Nil(t, closed.Next(1.9, Demand{}))
	assert.LessOrEqual(t, closed.WakeAt(1.9), 2.0)
	assert.Len(t, closed.env.keeping, 1)
	closed.Next(2, Demand{})
	assert.Empty(t, closed.env.keeping, "nothing is left behind")
}
