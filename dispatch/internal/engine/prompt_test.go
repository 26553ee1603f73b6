package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestFirstPermit: the first permit of a limit is granted as soon as its answer is there, not a
// tick later.
func TestFirstPermit(t *testing.T) {
	run(t, 0, orders+" messageRate=1000", func(t *testing.T, e *fixture) {
		rtt := 20 * time.Microsecond
		e.store.set(func(s *store) { s.rtt = rtt }) // the engine thinks that it answers at once
		h := e.open("")
		from := time.Now()
		e.acquire(h, 1, -1)
		assert.LessOrEqual(t, time.Since(from), 2*rtt)
		time.Sleep(time.Second)
		e.store.set(func(s *store) { s.rtt = 0 })
	})
}

// longest has a caller come and work for a while, again and again, and returns its longest wait.
func (e *fixture) longest(h *handle, work, d time.Duration) (longest time.Duration) {
	e.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(work) {
		from := time.Now()
		e.acquire(h, 1, -1)
		longest = max(longest, time.Since(from))
	}
	return longest
}

// TestRequestHoldsUpNoCaller: a caller that comes while a request is on its way gets the permits
// that need no answer: split slots, and those of a replica that goes on without the store.
func TestRequestHoldsUpNoCaller(t *testing.T) {
	const gap, work = 20 * ms, 30 * ms
	for _, mode := range []string{"split", "fair"} {
		run(t, 200*ms, orders+" messageRate=50 sharing.poolTTL=5s sharing.mode="+mode,
			func(t *testing.T, e *fixture) {
				h := e.open("")
				e.longest(h, work, 5*time.Second)
				if mode == "split" {
					assert.LessOrEqual(t, e.longest(h, work, 10*time.Second), gap+2*ms, mode)
				}
				e.store.setDown(true)
				e.longest(h, work, 5*time.Second)
				assert.LessOrEqual(t, e.longest(h, work, 10*time.Second), gap+5*ms, "%s, unavailable", mode)
			})
	}
}

// TestStrictOrder: strict slots are in the order in which callers come, over the lanes of a limit.
func TestStrictOrder(t *testing.T) {
	policies := orders + " messageRate=1 sharing.mode=strict sharing.wait=queue"
	run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
		a, b := e.open("a"), e.open("b")
		e.acquire(a, 1, -1)
		var calls []*call
		for _, h := range []*handle{a, a, b, a, b} {
			calls = append(calls, e.wait(t.Context(), h, 1, -1))
			time.Sleep(30 * ms)
		}
		for _, c := range calls {
			<-c.done
		}
		for i := range calls[1:] {
			assert.Less(t, calls[i].took, calls[i+1].took+30*ms, "caller %d", i)
		}
	})
}

// TestBackWhileLeaving: a pool that a replica is just leaving when its limit comes back is joined
// again.
func TestBackWhileLeaving(t *testing.T) {
	for _, down := range []bool{false, true} {
		policies := orders + " messageRate=10 sharing.mode=split"
		run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
			h := e.open("")
			e.acquire(h, 1, -1)
			e.store.setDown(down)
			e.apply("")
			time.Sleep(ms)
			e.apply(policies)
			time.Sleep(50 * ms)
			e.store.setDown(false)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := h.Lane.Acquire(ctx, 1, -1)
			assert.NoError(t, err, "down: %v", down)
		})
	}
}

// TestTryWithASlotForLater: a caller that does not wait is refused if the slot that is held is for
// later, and is told when that is.
func TestTryWithASlotForLater(t *testing.T) {
	policies := orders + " messageRate=2 sharing.mode=strict"
	run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		ctx, cancel := context.WithCancel(t.Context())
		from := time.Now()
		first, second := e.wait(ctx, h, 1, -1), e.wait(ctx, h, 1, -1)
		time.Sleep(100 * ms)
		cancel() // the later slot goes back
		assert.True(t, first.over() && second.over())
		time.Sleep(50 * ms)
		assert.EqualValues(t, 1, only(h).Held)
		at := time.Now()
		_, next, ok := h.Lane.TryAcquire(1)
		assert.False(t, ok)
		assert.LessOrEqual(t, time.Since(at), 5*ms)
		assert.InDelta(t, 0.5, next.Sub(from).Seconds(), 0.02)
		time.Sleep(time.Until(next))
		_, _, ok = h.Lane.TryAcquire(1)
		assert.True(t, ok)
	})
}

// TestDrainAfterAFailure: what a limit that no longer applies holds goes back, also if a request
// has just failed.
func TestDrainAfterAFailure(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=100 round=1s", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquireFor(3*time.Second, h, -1)
		e.store.setDown(true)
		for before := len(e.store.asked()); len(e.store.asked()) == before; {
			e.acquire(h, 1, -1)
		}
		time.Sleep(15 * ms)
		e.store.setDown(false)
		held := only(h).Held
		assert.Greater(t, held, int64(5))
		from := len(e.store.asked())
		e.apply("")
		time.Sleep(10 * time.Second)
		back := 0.0
		for _, r := range e.store.asked()[from:] {
			back += r.Allocate.Returned
		}
		assert.InDelta(t, held, back, 1)
	})
}

// TestLeavesAfterSuccessor: a lane whose successor is open leaves its pool, also if a heartbeat was
// on its way when it ended.
func TestLeavesAfterSuccessor(t *testing.T) {
	policies := orders + " messageRate=10 sharing.mode=split\n" + billing + " messageRate=100 sharing.mode=fair"
	run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
		for range 20 {
			h := e.open("")
			ctx, cancel := context.WithTimeout(t.Context(), 3*ms)
			_, _ = h.Lane.Acquire(ctx, 1, -1)
			cancel()
			h.Close()
			h = e.open("")
			time.Sleep(100 * ms)
			h.Close()
			time.Sleep(time.Second)
		}
		joined, left := map[string]bool{}, map[string]bool{}
		for _, r := range e.store.asked() {
			if b := r.Heartbeat; b != nil && b.Leave {
				left[b.Member] = true
			} else if b != nil {
				joined[b.Member] = true
			}
		}
		assert.Equal(t, joined, left)
	})
}
