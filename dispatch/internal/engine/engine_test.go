package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

func TestUnlimited(t *testing.T) {
	run(t, 0, "", func(t *testing.T, e *fixture) {
		h := e.open("")
		assert.Nil(t, h.Lane.Admission())
		g := e.acquire(h, 7, -1)
		assert.Equal(t, 7, g.N)
		assert.Nil(t, g.Admission)
		g, _, ok := h.Lane.TryAcquire(7)
		assert.True(t, ok)
		assert.Equal(t, 7, g.N)
		g, err := h.Lane.Acquire(t.Context(), -1, -1)
		assert.NoError(t, err)
		assert.Zero(t, g.N)
		_, _, ok = h.Lane.TryAcquire(0)
		assert.True(t, ok)
		assert.Empty(t, statsOf(e, true))
		assert.Len(t, statsOf(e, false), 1)
	})
}

// TestClose: waiting callers get ErrClosed, permits go back to the store, and no lane opens.
func TestClose(t *testing.T) {
	for _, rtt := range []time.Duration{0, 20 * ms} {
		policies := orders + " messageRate=100 round=1s\n" + billing + " messageRate=200"
		run(t, rtt, policies, func(t *testing.T, e *fixture) {
			h := e.open("")
			e.acquireFor(3*time.Second, h, -1)
			var waiting []*call
			for _, n := range []int{1 << 20, 5, 1} {
				waiting = append(waiting, e.wait(t.Context(), h, n, -1))
			}
			time.Sleep(ms)
			before := len(e.store.asked())
			e.close()
			for _, c := range waiting {
				assert.True(t, c.over())
			}
			assert.ErrorIs(t, waiting[2].err, engine.ErrClosed)
			_, err := h.Lane.Acquire(t.Context(), 1, -1)
			assert.ErrorIs(t, err, engine.ErrClosed)
			assert.True(t, isClosed(h))
			assert.ErrorIs(t, e.Open(&engine.Handle{}, laneOf("")), engine.ErrClosed)
			returned := 0.0
			for _, r := range e.store.asked()[before:] {
				assert.Zero(t, r.Allocate.Want)
				returned += r.Allocate.Returned
			}
			assert.Greater(t, returned, 40.0, "permits held of both limits")
			assert.Len(t, e.store.asked()[before:], 2, "one drain for each limit")
			h.Close()
			h.Close()
		})
	}
}

// TestCloseStrict: Close gives a strict slot back.
func TestCloseStrict(t *testing.T) {
	run(t, 0, orders+" messageRate=1/1m sharing.mode=strict", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		c := e.wait(t.Context(), h, 1, -1)
		time.Sleep(time.Second) // refused at first: the last slot is for those that were refused
		e.close()
		assert.True(t, c.over())
		asked := e.store.asked()
		assert.EqualValues(t, 1, asked[len(asked)-1].Allocate.Returned)
	})
}

// TestCloseWhileUnavailable: Close sends no drain to a store whose requests fail.
func TestCloseWhileUnavailable(t *testing.T) {
	run(t, 20*ms, orders+" messageRate=100", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		e.store.setDown(true)
		c := e.wait(t.Context(), h, 100, -1)
		time.Sleep(100 * ms)
		for !c.over() {
			time.Sleep(ms)
		}
		last := e.wait(t.Context(), h, 100, -1)
		time.Sleep(500 * ms)
		calls := len(e.store.asked())
		from := time.Now()
		e.close()
		assert.LessOrEqual(t, len(e.store.asked()), calls+1, "the request that was on its way")
		assert.LessOrEqual(t, time.Since(from), 20*ms)
		assert.True(t, last.over())
	})
}

// TestCloseOfPoolWhileUnavailable: Close does not wait for a store whose heartbeats fail.
func TestCloseOfPoolWhileUnavailable(t *testing.T) {
	run(t, 20*ms, orders+" messageRate=100 sharing.mode=split", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		e.store.setDown(true)
		time.Sleep(time.Second) // the replica is still a member
		for asked := len(e.store.asked()); len(e.store.asked()) == asked; {
			time.Sleep(ms)
		}
		time.Sleep(30 * ms) // no heartbeat is on its way
		asked, from := len(e.store.asked()), time.Now()
		e.close()
		assert.Len(t, e.store.asked(), asked)
		assert.Zero(t, time.Since(from))
	})
}

// TestAvailability: an outage and its end are logged once each.
func TestAvailability(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=100", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquireFor(2*time.Second, h, -1)
		e.store.setDown(true)
		e.acquireFor(200*ms, h, -1)
		assert.False(t, e.Availability().Unavailable, "requests have failed for under 0.5 s")
		assert.Zero(t, e.logged("\n"), e.log)
		e.acquireFor(3*time.Second, h, -1)
		e.store.setDown(false)
		assert.True(t, e.Availability().Unavailable)
		e.acquireFor(3*time.Second, h, -1)
		time.Sleep(time.Second) // no request is under way
		a := e.Availability()
		assert.False(t, a.Unavailable)
		assert.Equal(t, len(e.store.asked()), int(a.Requests))
		assert.Positive(t, a.Errors)
		assert.Zero(t, a.Late)
		assert.Equal(t, 1, e.logged("the permit store is unavailable"), e.log)
		assert.Equal(t, 1, e.logged("available again"), e.log)
		assert.Equal(t, 2, e.logged("\n"), e.log)
	})
}

// TestOneFailingLimit: failing requests for one limit are no outage. They are logged once, and so
// is their end.
func TestOneFailingLimit(t *testing.T) {
	policies := orders + " messageRate=100\n" + billing + " messageRate=90"
	run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquireFor(2*time.Second, h, -1)
		e.store.set(func(s *store) { s.down = "billing" })
		e.acquireFor(900*ms, h, -1)
		assert.Zero(t, e.logged("\n"), e.log)
		e.acquireFor(5*time.Second, h, -1)
		assert.False(t, e.Availability().Unavailable)
		assert.Equal(t, 1, e.logged("requests for a limit fail"), e.log)
		e.store.setDown(false)
		e.acquireFor(5*time.Second, h, -1)
		assert.Equal(t, 1, e.logged("requests for a limit are answered again"), e.log)
		assert.Equal(t, 2, e.logged("\n"), e.log)
	})
}

// TestOutageOpen: onOutage open lifts a limit while the store is unavailable.
func TestOutageOpen(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=10 onOutage=open", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquireFor(time.Second, h, -1)
		e.store.setDown(true)
		e.empty(h)
		c := e.wait(t.Context(), h, 1000, -1)
		time.Sleep(2 * time.Second)
		assert.True(t, c.over())
		assert.Nil(t, h.Lane.Admission())
		time.Sleep(time.Minute)
		assert.Nil(t, h.Lane.Admission())
		e.store.setDown(false)
		time.Sleep(time.Second)
		assert.NotNil(t, h.Lane.Admission(), "the engine asks whether the store answers")
		e.empty(h)
		c = e.wait(t.Context(), h, 1, -1)
		assert.False(t, c.over())
	})
}

// TestReplicas: a replica without a share goes on at the limit divided by the pool size.
func TestReplicas(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=100", func(t *testing.T, e *fixture) {
		e.store.setDown(true)
		e.SetReplicas(4)
		h := e.open("")
		e.acquire(h, 1, -1)
		from := e.since()
		for range 50 {
			e.acquire(h, 1, -1)
		}
		assert.InDelta(t, 2, (e.since() - from).Seconds(), 0.2, "25/s")
	})
}

// TestDamage: the report of a damaged record is logged.
func TestDamage(t *testing.T) {
	run(t, 0, orders+" messageRate=100", func(t *testing.T, e *fixture) {
		e.store.set(func(s *store) { s.damage = assert.AnError })
		e.acquire(e.open(""), 1, -1)
		assert.Positive(t, e.logged("was damaged"))
		assert.Positive(t, e.logged(assert.AnError.Error()))
	})
}

// TestNoGroup: a process in none of the worker groups gets no permits, which is logged once.
func TestNoGroup(t *testing.T) {
	policies := orders + " messageRate=100 sharing.mode=groups sharing.groups=us,asia"
	run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		c := e.wait(t.Context(), h, 1, -1)
		time.Sleep(5 * time.Second)
		assert.False(t, c.over())
		assert.Equal(t, engine.ReasonNoGroup, h.Stats().Reason)
		assert.Equal(t, 1, e.logged("none of a limit's worker groups"), e.log)
	})
}

// TestLateAnswers counts answers of requests that the store got after their deadline.
func TestLateAnswers(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=100", func(t *testing.T, e *fixture) {
		h := e.open("")
		for range 100 {
			e.acquire(h, 1, -1)
		}
		e.store.set(func(s *store) { s.rtt = 800 * ms }) // its timeout is 300 ms
		for range 3 {
			e.acquire(h, 1, -1)
			time.Sleep(time.Second)
		}
		assert.Positive(t, e.Availability().Late)
		assert.LessOrEqual(t, e.Availability().Late, e.Availability().Requests)
	})
}

// TestLateAnswersAreAnswers: while late answers come, the permit store is not unavailable because
// the requests of another limit fail.
func TestLateAnswersAreAnswers(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=100\n"+busy+" messageRate=100", func(t *testing.T, e *fixture) {
		a, b := e.open(""), e.openBusy()
		e.acquireFor(time.Second, a, -1)
		e.acquireFor(time.Second, b, -1)
		down := only(b).Key
		e.store.set(func(s *store) { s.rtt, s.down = 800*ms, down })
		for _, h := range []*handle{a, b} {
			go func() {
				for e.since() < 10*time.Second {
					if _, err := h.Lane.Acquire(t.Context(), 1, -1); err != nil {
						return
					}
				}
			}()
			time.Sleep(400 * ms)
		}
		time.Sleep(time.Second)
		assert.Positive(t, e.Availability().Late)
		assert.Positive(t, e.Availability().Errors)
		assert.Zero(t, e.logged("the permit store is unavailable"), e.log)
	})
}

// TestTies: each tie of two patterns is logged once.
func TestTies(t *testing.T) {
	tie := "pattern:orders messageRate=5\npattern:rder.$ messageRate="
	run(t, 0, tie+"6", func(t *testing.T, e *fixture) {
		e.open("")
		e.open("bulk")
		e.apply(tie + "7")
		assert.Equal(t, 1, e.logged("two patterns tie"), e.log)
	})
}

// TestOpenLike: a handle opened like another starts with the other's backlog.
func TestOpenLike(t *testing.T) {
	run(t, 0, orders+" messageRate=10", func(t *testing.T, e *fixture) {
		a := e.open("")
		a.ReportBacklog(7)
		var b, c engine.Handle
		require.NoError(t, e.OpenLike(&b, laneOf("bulk"), &a.Handle))
		assert.EqualValues(t, 7, e.LaneStats(b.Lane).Backlog)
		assert.True(t, e.LaneStats(b.Lane).CaughtUp)
		a.Close()
		assert.ErrorIs(t, e.OpenLike(&c, laneOf("bulk"), &a.Handle), engine.ErrClosed)
	})
}

// TestRecordsDelayNoAllocation: heartbeats, whose records many replicas change, do not hold up the
// allocations of other limits.
func TestRecordsDelayNoAllocation(t *testing.T) {
	policies := orders + " messageRate=100 sharing.mode=split\n" +
		orders + "?subscription=billing messageRate=50 sharing.mode=fair"
	run(t, 2*ms, policies, func(t *testing.T, e *fixture) {
		e.store.slowRecords = 250 * ms
		h := e.open("")
		time.Sleep(10 * time.Second) // the replica has joined the pool
		longest := time.Duration(0)
		for e.since() < 60*time.Second {
			from := time.Now()
			e.acquire(h, 1, -1)
			longest = max(longest, time.Since(from))
		}
		assert.Less(t, longest, 60*ms)
		assert.Zero(t, e.store.mixed)
	})
}
