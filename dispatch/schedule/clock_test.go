package schedule_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// lineAt100 returns a schedule of 1000/s whose slots are allocated up to 100.1. It was last called
// at 100, on a checked clock.
func lineAt100() schedule.State {
	return schedule.State{
		Inc: 1, Seq: 5, Last: 100, Checked: 100, Resumed: 99, Rate: 1000, Top: 1000,
		Tail: 100.1, Epoch: 2, Start: 99.9,
	}
}

// asks is a request that allocates nothing, of a caller that expects the store's clock in [low,
// high] and was told shifts.
func asks(low, high, shifts float64) schedule.Request {
	return schedule.Request{
		Subscription: "a", Weight: 1, Round: 0.1, Rate: 1000, Nonce: 9, Low: low, High: high,
		Carry: schedule.Carry{Inc: 1, Seq: 5, Epoch: 2, Shifts: shifts},
	}
}

func TestClock(t *testing.T) {
	type call struct {
		r         schedule.Request
		now, tail float64
	}
	strict := func(r schedule.Request) schedule.Request { r.Strict = true; return r }
	late := func(r schedule.Request) schedule.Request { r.NotAfter = 100.2; return r }
	stateless := func(r schedule.Request) schedule.Request { r.Carry, r.Low, r.High = schedule.Carry{}, 0, 0; return r }
	for name, calls := range map[string][]call{
		"as expected":          {{asks(100.01, 100.02, 0), 100.015, 100.1}},
		"within the tolerance": {{asks(100.01, 100.02, 0), 100.035, 100.1}},
		"a step of 5 s":        {{asks(100.01, 100.02, 0), 105.015, 105.1}},
		"a step that others told of": {{asks(100.01, 100.02, 0), 105.015, 105.1},
			{asks(100.02, 100.03, 0), 105.025, 105.1}},
		"a step back of 5 s": {{asks(100.01, 100.02, 0), 95.015, 95.115}},
		"a suspended caller": {{late(asks(100.01, 100.02, 0)), 110, 100.1}},
		"a late reply":       {{asks(90, 110, 0), 100.09, 100.1}},
		"nobody knows":       {{stateless(asks(0, 0, 0)), 100.15, 100.15}},
		"a slow request, contradicted": {{asks(100.01, 100.02, 0), 100.095, 100.18},
			{asks(100.099, 100.101, 0), 100.1, 100.1}},
		"slow, and the line was empty": {{asks(100.01, 100.02, 0), 100.295, 100.38},
			{asks(100.299, 100.301, 0), 100.3, 100.3}},
		"strict lines are not put back": {{strict(asks(100.01, 100.02, 0)), 100.095, 100.18},
			{strict(asks(100.099, 100.101, 0)), 100.1, 100.18}},
		"5 s are not a slow request": {{asks(100.01, 100.02, 0), 105.015, 105.1},
			{asks(105.019, 105.021, 0), 105.02, 105.1}},
	} {
		t.Run(name, func(t *testing.T) {
			state, sub := lineAt100(), schedule.Sub{}
			for i, c := range calls {
				state, sub, _ = schedule.Allocate(state, sub, c.r, c.now)
				assert.InDelta(t, c.tail, state.Tail, 0.0011, "tail after call %d", i)
			}
		})
	}
}
