package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// TestHandleForEachMessage: handles that are opened for a message each get what one handle gets,
// with no more requests, also if there is a pause between two of them.
func TestHandleForEachMessage(t *testing.T) {
	policies := orders + " messageRate=100\n" + billing + " messageRate=120"
	for _, rtt := range []time.Duration{0, 20 * ms} {
		for _, pause := range []time.Duration{0, 3 * ms} {
			run(t, rtt, policies, func(t *testing.T, e *fixture) {
				n := 0
				for ; e.since() < 10*time.Second; n++ {
					h := e.open("")
					e.acquire(h, 1, -1)
					h.Close()
					time.Sleep(pause)
				}
				assert.InDelta(t, 1000, n, 30)
				assert.LessOrEqual(t, len(e.store.asked()), 540)
				time.Sleep(2 * time.Second)
				last := map[string]float64{}
				for _, r := range e.store.asked() {
					last[r.Key] = r.Allocate.Want
				}
				for key, want := range last {
					assert.Zero(t, want, "permits go back: %s", key)
				}
			})
		}
	}
}

// TestSuccessor: an answer that arrives when a new handle has taken over the share serves the new
// handle's callers.
func TestSuccessor(t *testing.T) {
	run(t, 100*ms, orders+" messageRate=1/1h", func(t *testing.T, e *fixture) {
		h := e.open("")
		first := e.wait(t.Context(), h, 1, -1)
		time.Sleep(50 * ms) // the request is on its way
		h.Close()
		assert.True(t, first.over())
		assert.ErrorIs(t, first.err, engine.ErrClosed)
		h = e.open("")
		second := e.wait(t.Context(), h, 1, -1)
		assert.False(t, second.over())
		time.Sleep(54 * ms)
		assert.True(t, second.over())
		assert.NoError(t, second.err)
		assert.Less(t, second.took, 60*ms)
	})
}

// TestDebtsOutliveHandles: debts are kept for an hour after the last handle was closed.
func TestDebtsOutliveHandles(t *testing.T) {
	for _, sharing := range []string{"fair", "split sharing.replicas=1", "strict"} {
		policies := orders + " messageRate=1/1m byteRate=100000 sharing.mode=" + sharing
		for after, forgotten := range map[time.Duration]bool{
			time.Second: false, 30 * time.Minute: false, 61 * time.Minute: true,
		} {
			run(t, 0, policies, func(t *testing.T, e *fixture) {
				h := e.open("")
				g := e.acquire(h, 1, 1)
				g.Settle(200, 200*50)
				h.Close()
				e.forgetFor(after)
				h = e.open("")
				time.Sleep(10 * ms)
				_, _, ok := h.Lane.TryAcquire(1)
				c := e.wait(t.Context(), h, 1, -1)
				time.Sleep(3 * time.Minute)
				assert.Equal(t, forgotten, ok || c.over(), "%s after %v", sharing, after)
			})
		}
	}
}

// forgetFor waits for d, and forgets ended lanes meanwhile.
func (e *fixture) forgetFor(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
		e.ForgetEnded()
	}
}

// TestDebtOfNoLimit: a debt of a limit that does not apply outlives the handles too.
func TestDebtOfNoLimit(t *testing.T) {
	run(t, 0, orders+" messageRate=1/1m", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, -1)
		g.Settle(50, 0)
		e.apply("")
		time.Sleep(time.Second)
		for range 2 {
			h.Close()
			e.forgetFor(30 * time.Minute)
			h = e.open("")
		}
		e.apply(orders + " messageRate=1/1m")
		c := e.wait(t.Context(), h, 1, -1)
		time.Sleep(40 * time.Minute)
		assert.False(t, c.over())
		time.Sleep(20 * time.Minute)
		assert.True(t, c.over())
	})
}

// TestSizesOutliveHandles: a new handle charges unknown sizes at the average known before.
func TestSizesOutliveHandles(t *testing.T) {
	run(t, 0, orders+" byteRate=100000", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, -1)
		g.Settle(1, 5000)
		h.Close()
		h = e.open("")
		g = e.acquire(h, 1, -1)
		assert.EqualValues(t, 5000, g.Size)
	})
}

// TestEndedAreForgotten: what an ended lane keeps is forgotten after a minute.
func TestEndedAreForgotten(t *testing.T) {
	for after, forgotten := range map[time.Duration]bool{
		59 * time.Second: false, 62 * time.Second: true,
	} {
		run(t, 0, orders+" messageRate=10", func(t *testing.T, e *fixture) {
			h := e.open("")
			e.acquire(h, 1, -1)
			h.Close()
			e.forgetFor(after)
			h = e.open("")
			assert.Equal(t, forgotten, only(h).Granted == 0)
		})
	}
}

// TestClosedHandle: the last handle of a lane ends its callers' waits; others do not.
func TestClosedHandle(t *testing.T) {
	run(t, 0, orders+" messageRate=1/1h", func(t *testing.T, e *fixture) {
		a, b := e.open(""), e.open("")
		assert.Same(t, a.Lane, b.Lane)
		e.acquire(a, 1, -1)
		c := e.wait(t.Context(), a, 1, -1)
		a.Close()
		a.Close()
		assert.False(t, c.over())
		b.Close()
		assert.True(t, c.over())
		assert.ErrorIs(t, c.err, engine.ErrClosed)
		b.Close()
		e.apply(orders + " messageRate=2/1h")
		assert.True(t, isClosed(a), "no policy opens it again")
		a.ReportBacklog(0)
		assert.True(t, isClosed(a))
		assert.Empty(t, statsOf(e, false))
	})
}

// isClosed reports whether the handle's lane is closed.
func isClosed(h *handle) bool {
	_, next, ok := h.Lane.TryAcquire(1)
	return !ok && time.Until(next) == time.Minute
}

// TestCloseAnswersAtOnce: callers of a closed lane get their answers at once, however busy the
// loop is.
func TestCloseAnswersAtOnce(t *testing.T) {
	policies := orders + " messageRate=1/1h\n" + busy + " messageRate=1000"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		e.keepTicking(2 * time.Second)
		e.acquire(h, 1, -1)
		c := e.wait(t.Context(), h, 1, -1)
		for range 10 {
			time.Sleep(300 * time.Microsecond)
			other := e.open("other")
			waiting := e.wait(t.Context(), other, 1, -1)
			from := time.Now()
			other.Close()
			assert.True(t, waiting.over())
			assert.Zero(t, time.Since(from))
		}
		h.Close()
		assert.True(t, c.over())
		time.Sleep(2 * time.Second)
	})
}

// TestCloseLeaves: with the last handle, a replica leaves the pool or the worker group at once.
func TestCloseLeaves(t *testing.T) {
	for _, sharing := range []string{"split", "groups sharing.groups=eu"} {
		policies := orders + " messageRate=10 sharing.mode=" + sharing
		run(t, 0, policies, func(t *testing.T, e *fixture) {
			h := e.open("")
			e.acquire(h, 1, -1)
			time.Sleep(time.Second)
			h.Close()
			time.Sleep(5 * ms)
			asked := e.store.asked()
			last := asked[len(asked)-1]
			left := last.Heartbeat != nil && last.Heartbeat.Leave ||
				last.Draw != nil && last.Draw.Visit.Leave
			assert.True(t, left, sharing)
		})
	}
}

// TestCloseLowersMinimum: what a quota reserves counts for the busy limit while a lane of the
// quota is open.
func TestCloseLowersMinimum(t *testing.T) {
	policies := "quota tag:a total=163840000 reserved=163840\n" +
		"quota tag:b total=163840000 reserved=327680"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		a, b := e.open("a"), e.open("b")
		e.ApplyRates(quota.Rates{Time: 1}, 1)
		e.makeBusy(a)
		assert.EqualValues(t, 30, busyLimit(a).Rule.MinRate)
		b.Close()
		assert.EqualValues(t, 10, busyLimit(a).Rule.MinRate)
	})
}
