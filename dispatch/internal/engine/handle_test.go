package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

// TestAHandleForEachMessage gets what one handle gets, with no more requests.
func TestAHandleForEachMessage(t *testing.T) {
	for _, rtt := range []time.Duration{0, 20 * ms} {
		policies := orders + " messageRate=100\n" + orders + "?subscription=billing messageRate=120"
		run(t, rtt, policies, func(t *testing.T, e *fixture) {
			n := 0
			for ; e.since() < 10*time.Second; n++ {
				h := e.open("")
				e.acquire(h, 1, -1)
				h.Close()
			}
			assert.InDelta(t, 1000, n, 30)
			assert.LessOrEqual(t, len(e.store.asked()), 520)
			time.Sleep(2 * time.Second)
			last := map[string]float64{}
			for _, r := range e.store.asked() {
				last[r.Key] = r.Allocate.Want
			}
			for key, want := range last {
				assert.Zero(t, want, "what is left goes back: %s", key)
			}
		})
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

// TestDebtsOutliveHandles, for an hour. So does the average size.
func TestDebtsOutliveHandles(t *testing.T) {
	for _, sharing := range []string{"fair", "split sharing.replicas=1", "strict"} {
		for after, forgotten := range map[time.Duration]bool{time.Second: false, 30 * time.Minute: false, 61 * time.Minute: true} {
			run(t, 0, orders+" messageRate=1/1m byteRate=100000 sharing.mode="+sharing, func(t *testing.T, e *fixture) {
				h := e.open("")
				g := e.acquire(h, 1, 1)
				g.Settle(200, 200*50)
				h.Close()
				for end := time.Now().Add(after); time.Now().Before(end); time.Sleep(time.Second) {
					e.ForgetEnded()
				}
				h = e.open("")
				time.Sleep(10 * ms)
				g, _, ok := h.Lane.TryAcquire(1)
				c := e.wait(t.Context(), h, 1, -1)
				time.Sleep(3 * time.Minute)
				assert.Equal(t, forgotten, ok || c.over(), "%s after %v", sharing, after)
				_ = g
			})
		}
	}
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

// TestEndedAreForgotten after a minute, and the place among the replicas with them.
func TestEndedAreForgotten(t *testing.T) {
	for after, forgotten := range map[time.Duration]bool{59 * time.Second: false, 62 * time.Second: true} {
		run(t, 0, orders+" messageRate=10", func(t *testing.T, e *fixture) {
			h := e.open("")
			e.acquire(h, 1, -1)
			h.Close()
			for end := time.Now().Add(after); time.Now().Before(end); time.Sleep(time.Second) {
				e.ForgetEnded()
			}
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
		assert.False(t, a.Lane.Admission() == nil || !isClosed(a), "no policy opens it again")
		a.ReportBacklog(0)
		assert.True(t, isClosed(a))
		assert.Empty(t, e.States(false, 9))
	})
}

func isClosed(h *engine.Handle) bool {
	_, next, ok := h.Lane.TryAcquire(1)
	return !ok && time.Until(next) == time.Minute
}

// TestCaughtUp: a lane is exempt while all its handles have reported small backlogs, for 5 s.
func TestCaughtUp(t *testing.T) {
	run(t, 0, orders+" messageRate=10", func(t *testing.T, e *fixture) {
		a := e.open("")
		exempt := func() bool { return a.Lane.Admission() == nil }
		for i, c := range []struct {
			backlog int64
			exempt  bool
		}{
			{101, false}, {100, true}, {200, true}, {201, false}, {200, false}, {0, true}, {-1, false}, {200, false},
		} {
			a.ReportBacklog(c.backlog)
			assert.Equal(t, c.exempt, exempt(), "row %d", i)
			assert.Equal(t, c.exempt, a.State().CaughtUp)
			assert.Equal(t, c.exempt, a.State().Exempt)
			assert.Equal(t, max(-1, c.backlog), a.State().Backlog)
			assert.Len(t, e.States(true, 9), map[bool]int{true: 1, false: 0}[c.exempt], "row %d", i)
		}
		a.ReportBacklog(0)
		time.Sleep(4900 * ms)
		assert.True(t, exempt())
		time.Sleep(110 * ms)
		assert.False(t, exempt(), "the report is old")
		assert.EqualValues(t, -1, a.State().Backlog)
		a.ReportBacklog(150)
		assert.False(t, exempt(), "and counts for nothing")

		a.ReportBacklog(5)
		b := e.open("")
		assert.False(t, exempt(), "of the new one nothing is known")
		assert.EqualValues(t, -1, a.State().Backlog)
		time.Sleep(time.Second)
		b.ReportBacklog(6)
		assert.True(t, exempt())
		assert.EqualValues(t, 11, a.State().Backlog)
		b.ReportBacklog(500)
		assert.False(t, exempt())
		a.ReportBacklog(5)
		assert.False(t, exempt())
		c := e.wait(t.Context(), a, 1, -1)
		time.Sleep(ms)
		_ = c
		b.Close()
		assert.True(t, exempt(), "the one that was behind is gone")
		b.ReportBacklog(500)
		assert.True(t, exempt())
		time.Sleep(4 * time.Second)
		d := e.open("")
		d.ReportBacklog(0)
		time.Sleep(1100 * ms)
		assert.False(t, exempt(), "the older report ends it")
	})
}

// TestCaughtUpWaiters go on once their subscription has caught up.
func TestCaughtUpWaiters(t *testing.T) {
	run(t, 0, orders+" messageRate=1/1h", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		c := e.wait(t.Context(), h, 9, -1)
		h.ReportBacklog(3)
		assert.True(t, c.over())
		assert.Nil(t, c.grant.Admission)
		e.acquire(h, 1000, -1)
		time.Sleep(5010 * ms)
		c = e.wait(t.Context(), h, 9, -1)
		assert.False(t, c.over())
	})
}

// TestWhomCaughtUpExempts: plain limits only, and not if the policy says so.
func TestWhomCaughtUpExempts(t *testing.T) {
	for policies, limited := range map[string]bool{
		orders + " messageRate=10":                                                  false,
		orders + " messageRate=10 byteRate=500":                                     false,
		orders + " messageRate=10 caughtUp.throttle=true":                           true,
		orders + " messageRate=10 sharing.mode=strict":                              true,
		orders + " messageRate=10 maxInFlight=5":                                    true,
		orders + " messageRate=10\nacme/shop messageRate=99 aggregate=true":         true,
		orders + " messageRate=10\nquota tenant:acme total=1638400":                 true,
		orders + " messageRate=10\n" + orders + "?subscription=billing paused=true": true,
	} {
		run(t, 0, policies, func(t *testing.T, e *fixture) {
			h := e.open("")
			h.ReportBacklog(0)
			assert.Equal(t, limited, h.Lane.Admission() != nil, policies)
		})
	}
}
