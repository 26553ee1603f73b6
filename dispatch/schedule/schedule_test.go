package schedule_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

func request() schedule.Request {
	return schedule.Request{
		Subscription: "group", Weight: 1, Demand: 1e9, Want: 1e9, Round: 0.1, Rate: 1000, Identity: "test", Rev: 1,
		Nonce: 7,
	}
}

// TestAllocate follows one replica, step by step, at 1000/s.
func TestAllocate(t *testing.T) {
	s, sub, r := schedule.Allocate(schedule.State{}, schedule.Sub{}, request(), 100)
	assert.Equal(t, 25.0, r.N, "a quarter of a round: half for being alone, half for being new")
	assert.Equal(t, 0.0, r.Start)
	assert.Equal(t, 1000.0, r.Share)
	assert.InDelta(t, 100.025, s.Tail, 1e-9)

	next := request()
	next.Carry = r.Carry
	s, sub, r = schedule.Allocate(s, sub, next, 100)
	assert.Equal(t, 50.0, r.N, "half a round")
	assert.InDelta(t, 0.025, r.Start, 1e-9, "goes to the tail")

	other := request() // a second replica of the same subscription
	s, sub, r2 := schedule.Allocate(s, sub, other, 100)
	assert.Equal(t, 500.0, r2.Share)
	assert.Equal(t, 25.0, r2.N)
	assert.Equal(t, 0.0, r2.Start, "a newcomer has credit")

	changed := request()
	changed.Carry, changed.Rate, changed.Rev, changed.Want, changed.Returned = r.Carry, 500, 2, 0, 50
	s, sub, r = schedule.Allocate(s, sub, changed, 100)
	assert.InDelta(t, 100.1, s.Tail, 1e-9, "100 permits were allocated, 50 go back, 50 last twice as long")
	assert.Zero(t, r.N, "no permits are wanted")

	late := request()
	late.NotAfter = 99
	same, _, r := schedule.Allocate(s, sub, late, 100)
	assert.True(t, r.Late)
	assert.Equal(t, s, same)
}

// TestAllocateLaws: for any requests and any clock, an allocation moves the tail by its permits,
// never lies in the past, gives at least one permit and at most a quantum, and keeps the state
// finite.
func TestAllocateLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s schedule.State
		subs := map[string]schedule.Sub{}
		carries := map[int]schedule.Carry{}
		now := 1e9
		for i := range rapid.IntRange(1, 60).Draw(t, "calls") {
			now += rapid.SampledFrom([]float64{0, 0.001, 0.05, 0.5, 100, -5}).Draw(t, "dt")
			replica := rapid.IntRange(0, 5).Draw(t, "replica")
			r := schedule.Request{
				Subscription: fmt.Sprint(replica % 3),
				Weight:       rapid.SampledFrom([]float64{1, 2, 0.001}).Draw(t, "weight"),
				Reserved:     rapid.SampledFrom([]float64{0, 100, 5000}).Draw(t, "reserved"),
				Demand:       rapid.Float64Range(0, 1e7).Draw(t, "demand"),
				Want:         rapid.Float64Range(0, 1e7).Draw(t, "want"),
				Returned:     float64(rapid.IntRange(0, 20).Draw(t, "returned")),
				Held:         float64(rapid.IntRange(0, 20).Draw(t, "held")),
				RTT:          rapid.Float64Range(0, 1).Draw(t, "rtt"),
				Round:        rapid.SampledFrom([]float64{0.1, 0.02}).Draw(t, "round"),
				Burst:        rapid.SampledFrom([]float64{0, 50}).Draw(t, "burst"),
				Rate:         rapid.SampledFrom([]float64{1.0 / 3600, 10, 1e6}).Draw(t, "rate"),
				Identity:     "test", Rev: int64(rapid.IntRange(1, 3).Draw(t, "rev")), Nonce: int64(i + 1),
				Carry: carries[replica],
			}
			after, sub, reply := schedule.Allocate(s, subs[r.Subscription], r, now)
			if r.Want > 0 {
				if reply.N < 1 || reply.N != math.Floor(reply.N) || reply.N > math.Max(1, math.Floor(r.Want+0.5)) {
					t.Fatalf("%v permits for %v wanted", reply.N, r.Want)
				}
				if reply.Start < -r.Burst/after.Rate-1e-6 {
					t.Fatalf("start %v lies in the past", reply.Start)
				}
				if after.Tail < now-r.Burst/after.Rate+reply.N/after.Rate-1e-3 {
					t.Fatalf("tail %v for %v permits at %v", after.Tail, reply.N, now)
				}
			}
			for _, x := range []float64{
				after.Tail, after.This.Weight, after.Prev.Weight, reply.Share, reply.Carry.Fraction,
			} {
				if math.IsNaN(x) || math.IsInf(x, 0) {
					t.Fatalf("%+v", after)
				}
			}
			s, subs[r.Subscription], carries[replica] = after, sub, reply.Carry
		}
	})
}
