package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestCaughtUp: a lane is exempt while all its handles have reported small backlogs of late.
func TestCaughtUp(t *testing.T) {
	run(t, 0, orders+" messageRate=10", func(t *testing.T, e *fixture) {
		a := e.open("")
		exempt := func() bool { return a.Lane.Admission() == nil }
		for i, c := range []struct {
			backlog int64
			exempt  bool
		}{
			{101, false}, {100, true}, {200, true}, {201, false}, {200, false}, // hysteresis
			{0, true}, {-1, false}, {200, false},
		} {
			a.ReportBacklog(c.backlog)
			assert.Equal(t, c.exempt, exempt(), "row %d", i)
			assert.Equal(t, c.exempt, a.Stats().CaughtUp)
			assert.Equal(t, c.exempt, a.Stats().Exempt)
			assert.Equal(t, max(-1, c.backlog), a.Stats().Backlog)
			assert.Equal(t, c.backlog >= 0, len(statsOf(e, true)) == 1, "row %d", i)
		}
		a.ReportBacklog(0)
		time.Sleep(4900 * ms)
		assert.True(t, exempt())
		time.Sleep(110 * ms)
		assert.False(t, exempt(), "the report is older than 5 s")
		assert.EqualValues(t, -1, a.Stats().Backlog)
		a.ReportBacklog(150)
		assert.False(t, exempt(), "the old report does not count for the hysteresis")
	})
}

// TestCaughtUpHandles: each handle of a lane must have reported a small backlog.
func TestCaughtUpHandles(t *testing.T) {
	run(t, 0, orders+" messageRate=10", func(t *testing.T, e *fixture) {
		a := e.open("")
		exempt := func() bool { return a.Lane.Admission() == nil }
		a.ReportBacklog(5)
		b := e.open("")
		assert.False(t, exempt(), "the backlog of the new handle is unknown")
		assert.EqualValues(t, -1, a.Stats().Backlog)
		time.Sleep(time.Second)
		b.ReportBacklog(6)
		assert.True(t, exempt())
		assert.EqualValues(t, 11, a.Stats().Backlog)
		b.ReportBacklog(500)
		assert.False(t, exempt())
		a.ReportBacklog(5)
		assert.False(t, exempt())
		b.Close()
		assert.True(t, exempt(), "the handle with a backlog is closed")
		b.ReportBacklog(500)
		assert.True(t, exempt(), "reports of closed handles do not count")
		time.Sleep(4 * time.Second)
		c := e.open("")
		c.ReportBacklog(0)
		time.Sleep(1100 * ms)
		assert.False(t, exempt(), "the older of two reports is older than 5 s")
	})
}

// TestCaughtUpExpires: a lane is caught up for 5 s after a report, also where that exempts it from
// no limit.
func TestCaughtUpExpires(t *testing.T) {
	for _, policies := range []string{"", orders + " messageRate=10 sharing.mode=strict"} {
		run(t, 0, policies, func(t *testing.T, e *fixture) {
			h := e.open("")
			time.Sleep(time.Second)
			h.ReportBacklog(3)
			assert.True(t, h.Stats().CaughtUp)
			time.Sleep(5010 * ms)
			assert.False(t, h.Stats().CaughtUp, policies)
		})
	}
}

// TestCaughtUpWaiters: waiting callers pass once their subscription has caught up.
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

// TestCaughtUpClosed: a lane that is closed while it is exempt stays closed.
func TestCaughtUpClosed(t *testing.T) {
	run(t, 0, orders+" messageRate=1", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		h.ReportBacklog(0)
		h.Close()
		assert.True(t, isClosed(h))
		time.Sleep(10 * time.Second)
		assert.True(t, isClosed(h))
	})
}

// TestExemptions: caught-up subscriptions bypass limits of messages and bytes of their topic and
// themselves, unless the policy says otherwise.
func TestExemptions(t *testing.T) {
	for policies, exempt := range map[string]bool{
		orders + " messageRate=10":                                          true,
		orders + " messageRate=10 byteRate=500":                             true,
		orders + " messageRate=10 caughtUp.throttle=true":                   false,
		orders + " messageRate=10 sharing.mode=strict":                      false,
		orders + " messageRate=10 maxInFlight=5":                            false,
		orders + " messageRate=10\nacme/shop messageRate=99 aggregate=true": false,
		orders + " messageRate=10\nquota tenant:acme total=1638400":         false,
		orders + " messageRate=10\n" + billing + " paused=true":             false,
	} {
		run(t, 0, policies, func(t *testing.T, e *fixture) {
			h := e.open("")
			h.ReportBacklog(0)
			assert.Equal(t, exempt, h.Lane.Admission() == nil, policies)
			assert.Equal(t, exempt, h.Stats().Exempt, policies)
			assert.True(t, h.Stats().CaughtUp, policies)
		})
	}
}
