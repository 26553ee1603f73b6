package sharing

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

func strictLimit(rate float64) resolve.Limit {
	l := limited(policy.Strict, rate)
	l.MaxReserved, l.Expiry = 64, 0.02
	return l
}

func (c *client) strict() *strict { return c.Mode.(*strict) }

// minGap is the shortest time between two permits of any clients.
func (w *world) minGap() float64 {
	shortest := math.Inf(1)
	for _, c := range w.clients {
		for i, at := range c.got {
			for _, o := range w.clients {
				for j, other := range o.got {
					if (o != c || i != j) && other >= at {
						shortest = min(shortest, other-at)
					}
				}
			}
		}
	}
	return shortest
}

// TestStrictSlots: all replicas together have one slot a period, and each waiting caller has one.
func TestStrictSlots(t *testing.T) {
	w := newWorld()
	for i := range 3 {
		c := w.join(strictLimit(10))
		c.callers = 1 + i
		c.far(0.01)
	}
	w.run(20)
	n := 0
	for i, c := range w.clients {
		n += len(c.got)
		assert.InDelta(t, 200*(1+i)/6, len(c.got), 12, "in proportion to its callers")
		assert.LessOrEqual(t, c.Unspent(), int64(1+i))
	}
	assert.InDelta(t, 200, n, 4)
	assert.Greater(t, w.minGap(), 0.098)
	assert.InDelta(t, 10, w.clients[0].Stats(w.now).Allowed, 1e-9)
	assert.LessOrEqual(t, len(w.requests), n+60+10, "a request for each slot, and some that confirm")
}

// stepped is a client whose share has stepped once, for a caller.
func (w *world) stepped(l resolve.Limit) *client {
	c := w.join(l)
	c.Advance(Time{Now: w.now}, one)
	return c
}

// slot returns a strict share with a slot that is due at that time.
func slot(w *world, l resolve.Limit, due float64) (*client, *strict) {
	c := w.stepped(l)
	r := c.Next(w.now, one)
	r.Allocate.Reply = schedule.Reply{
		N: 1, Start: due - w.now, Rate: l.Rate, Now: w.now, Carry: schedule.Carry{Inc: 5, Seq: 1},
	}
	c.Answered(r, w.now, w.now)
	return c, c.strict()
}

var one = Demand{Waiting: 1, Callers: 1, Anybody: true}

// TestStrictExpiry: a slot may be used from when it is due until permitExpiry later.
func TestStrictExpiry(t *testing.T) {
	for i, c := range []struct {
		steps []float64 // of the loop
		avail int64     // after the last
		lost  int64
	}{
		{[]float64{1.2999}, 0, 0},
		{[]float64{1.3}, 1, 0},
		{[]float64{1.32}, 1, 0},
		{[]float64{1.3201}, 0, 1},        // the loop was late
		{[]float64{1.3, 1.3199}, 1, 0},   //
		{[]float64{1.3, 1.3201}, 0, 1},   // no caller took it
		{[]float64{1.3, 1.4, 1.5}, 0, 1}, // lost once
	} {
		w := newWorld()
		s, _ := slot(w, strictLimit(10), 1.3)
		assert.InDelta(t, 1.3, s.WakeAt(1), 1e-9)
		for j, now := range c.steps {
			s.Advance(Time{Now: now, Step: uint64(j)}, one)
		}
		assert.Equal(t, c.avail, s.Available(), "row %d", i)
		assert.Equal(t, c.lost, s.lost, "row %d", i)
		if c.avail == 1 {
			assert.InDelta(t, 0.32, s.UsableUntil().Seconds(), 1e-6, "since the start")
			assert.InDelta(t, 1.32, s.WakeAt(1.3), 1e-9)
			s.Take(1)
			s.strict().batches = append(s.strict().batches, batch{n: 1, left: 1, due: 1.31, expires: 1.33})
			assert.InDelta(t, 1.31, s.WakeAt(1.3), 1e-9, "the first one is taken")
		}
	}
}

// TestStrictConfirm: a slot is used only within a second after the last request that its line has
// answered, since another line may have replaced it. The share asks half a second before the slot.
func TestStrictConfirm(t *testing.T) {
	w := newWorld()
	s, _ := slot(w, strictLimit(0.2), 6)
	assert.InDelta(t, 5.5, s.WakeAt(1), 1e-9)
	s.Advance(Time{Now: 5.4}, one)
	assert.Nil(t, s.Next(5.4, one))
	r := s.Next(5.5, one)
	if assert.NotNil(t, r) {
		assert.Zero(t, r.Allocate.Want)
	}
	assert.Nil(t, s.Next(5.6, one), "a request is on its way")
	s.Advance(Time{Now: 6}, one)
	assert.Zero(t, s.Available(), "not confirmed")
	assert.InDelta(t, 6.02, s.WakeAt(6), 1e-9, "when it expires")
	r.Allocate.Reply = schedule.Reply{Rate: 0.2, Now: 5.5, Carry: schedule.Carry{Inc: 5, Seq: 1}}
	s.Answered(r, 5.6, 5.6)
	s.Advance(Time{Now: 6}, one)
	assert.EqualValues(t, 1, s.Available())
	assert.InDelta(t, 5.02, s.UsableUntil().Seconds(), 1e-6)

	s, _ = slot(w, strictLimit(10), 1.9)
	s.Limit.Expiry = 1
	s.strict().batches[0].expires = 2.9
	s.Advance(Time{Now: 1.9}, one)
	assert.EqualValues(t, 1, s.Available(), "within a second")
	assert.InDelta(t, 1.0, s.UsableUntil().Seconds(), 1e-6, "until the second is over")

	s, _ = slot(w, strictLimit(0.2), 6) // the request fails
	r = s.Next(5.5, one)
	w.down = true
	w.do(r, 5.5)
	s.Answered(r, 5.6, 5.6)
	assert.Nil(t, s.Next(5.6, one))
	assert.NotNil(t, s.Next(s.retryAt, one))

	s, _ = slot(w, strictLimit(0.2), 6) // the line was replaced
	r = s.Next(5.5, one)
	r.Allocate.Reply = schedule.Reply{Rate: 0.2, Now: 5.5, Carry: schedule.Carry{Inc: 6}}
	s.Answered(r, 5.6, 5.6)
	assert.Zero(t, s.Unspent())
	assert.EqualValues(t, 1, s.lost)
}

// TestStrictFull: the store says when a full line has a slot. Replicas come back then, or up to
// half a period later, at random.
func TestStrictFull(t *testing.T) {
	w := newWorld()
	low, high := math.Inf(1), 0.0
	for range 300 {
		c := w.stepped(strictLimit(10))
		r := c.Next(1, one)
		r.Allocate.Reply = schedule.Reply{Start: 0.3, Rate: 10, Now: 1, Carry: schedule.Carry{Inc: 5}}
		c.Answered(r, 1, 1)
		assert.Nil(t, c.Next(1.29, one))
		assert.InDelta(t, c.retryAt, c.WakeAt(1), 1e-9)
		low, high = min(low, c.retryAt), max(high, c.retryAt)
	}
	assert.InDelta(t, 1.3, low, 0.003)
	assert.GreaterOrEqual(t, low, 1.3)
	assert.InDelta(t, 1.35, high, 0.003)
}

// TestStrictTry: a caller that does not wait asks for a slot that is free now. After a refusal, no
// other caller asks until the line may have one.
func TestStrictTry(t *testing.T) {
	try := Demand{Anybody: true, Try: true}
	w := newWorld()
	c := w.stepped(strictLimit(10))
	r := c.Next(1, try)
	if assert.NotNil(t, r) {
		assert.EqualValues(t, 1, r.Allocate.Want)
		assert.Zero(t, r.Allocate.MaxReserved, "no slots ahead")
	}
	assert.False(t, refused(c, 1), "its request is on its way")
	r.Allocate.Reply = schedule.Reply{Start: 0.05, Rate: 10, Now: 1, Carry: schedule.Carry{Inc: 5}}
	c.Answered(r, 1, 1)
	assert.True(t, refused(c, 1))
	full := c.FullUntil().Seconds() + 1
	assert.Greater(t, full, 1.05)
	assert.LessOrEqual(t, full, 1.0751, "at most a quarter of a period later")
	assert.InDelta(t, full, c.NextPermit(1), 1e-6)
	assert.Nil(t, c.Next(1.05, try))
	assert.NotNil(t, c.Next(full+1e-6, try))

	c = w.stepped(strictLimit(10)) // the rate changes
	r = c.Next(1, try)
	r.Allocate.Reply = schedule.Reply{Start: 5, Rate: 10, Now: 1, Carry: schedule.Carry{Inc: 5}}
	c.Answered(r, 1, 1)
	assert.Nil(t, c.Next(1.1, try))
	c.Apply(at(c.Limit, 100))
	assert.NotNil(t, c.Next(1.1, try))

	c = w.stepped(strictLimit(10)) // the request fails
	r = c.Next(1, try)
	w.down = true
	w.do(r, 1)
	c.Answered(r, 1, 1)
	assert.InDelta(t, c.retryAt-1, c.FullUntil().Seconds(), 1e-6)

	c, _ = slot(w, strictLimit(10), 1.3)
	assert.Nil(t, c.Next(1.1, try), "a slot is on its way")
	assert.False(t, refused(c, 1.299))
	next, yes := c.TryRefused(1.1)
	assert.True(t, yes, "it is for later")
	assert.InDelta(t, 1.3, next, 1e-9)
	assert.InDelta(t, 1.3, c.NextPermit(1.1), 1e-9)
	c.Advance(Time{Now: 1.3}, try)
	assert.True(t, refused(c, 1.3), "another limit has no permit for it")
}

func refused(s *client, now float64) bool {
	_, yes := s.TryRefused(now)
	return yes
}

// TestStrictQueue: a caller that finds the line full queues. It asks again when its turn is due or
// when it is woken. A caller that gives up leaves the queue.
func TestStrictQueue(t *testing.T) {
	queueing := strictLimit(10)
	queueing.MaxReserved, queueing.Queue = 1, true
	w := newWorld()
	w.run(1)
	a, b := w.join(queueing), w.join(queueing)
	a.callers = 3
	w.run(5)
	b.once = 1
	b.touch()
	w.run(0.01)
	assert.True(t, b.Stats(w.now).Queued)
	assert.Equal(t, b.Waiter, w.last().Allocate.Waiter)
	assert.Contains(t, b.Waiter, "p|")
	assert.Len(t, w.state.Queue, 2)
	assert.False(t, b.Idle())
	w.run(0.5)
	assert.Zero(t, b.once, "in its turn")
	assert.False(t, b.Stats(w.now).Queued)
	w.run(1)
	assert.True(t, b.Idle())

	b.once = 1
	b.touch()
	w.run(0.01)
	n := len(w.requests)
	b.Woken(w.now)
	b.touch()
	w.run(0.001)
	assert.Greater(t, len(w.requests), n, "a woken share asks at once")
	b.once = 0
	b.touch()
	w.run(0.001)
	assert.Zero(t, w.last().Allocate.Want)
	assert.False(t, b.Stats(w.now).Queued)
	for _, waiter := range w.state.Queue {
		assert.NotEqual(t, b.Waiter, waiter.Name)
	}

	c := w.stepped(queueing) // woken while its request is on its way
	r := c.Next(w.now, one)
	c.Woken(w.now + 0.1)
	r.Allocate.Reply = schedule.Reply{Start: 0.5, Rate: 10, Now: w.now, Carry: schedule.Carry{Inc: 5}}
	c.Answered(r, w.now+0.2, w.now+0.2)
	assert.NotNil(t, c.Next(w.now+0.2, one))

	c = w.stepped(queueing) // woken before its request, in the same step
	c.Woken(w.now)
	r = c.Next(w.now, one)
	r.Allocate.Reply = schedule.Reply{
		Start: 0.5, Rate: 10, Now: w.now, Carry: schedule.Carry{Inc: 5},
	}
	c.Answered(r, w.now, w.now)
	assert.Nil(t, c.Next(w.now, one), "the wake-up has its answer")
	assert.InDelta(t, w.now+0.5, c.WakeAt(w.now), 1e-9)

	d := w.stepped(strictLimit(10))
	r = d.Next(w.now, one)
	assert.Empty(t, r.Allocate.Waiter, "the policy has no queue")
}

// TestStrictGivesBack: only the last slot of the line can be given back, and only before it is due.
func TestStrictGivesBack(t *testing.T) {
	for _, drain := range []bool{false, true} {
		for _, c := range []struct {
			now      float64
			last     bool
			returned float64
			asks     bool
		}{
			{1.2, true, 1, true},
			{1.2, false, 0, drain},
			{1.31, true, 0, drain}, // it is due
		} {
			w := newWorld()
			s, mode := slot(w, strictLimit(10), 1.3)
			mode.newestToStore = mode.newestToStore && c.last
			next := func(now float64) (returned float64, asks bool) {
				ask := func() *permits.Request { return s.Next(now, Demand{}) }
				if drain {
					ask = func() *permits.Request { return s.Drain(now) }
				}
				r := ask()
				if r == nil {
					return 0, false
				}
				assert.Zero(t, r.Allocate.Want)
				return r.Allocate.Returned, true
			}
			returned, asks := next(c.now)
			assert.Equal(t, c.asks, asks, "drain %v, %+v", drain, c)
			assert.Equal(t, c.returned, returned, "drain %v, %+v", drain, c)
			if drain {
				assert.Zero(t, s.Unspent())
				assert.EqualValues(t, 1-c.returned, s.lost)
				s.pending = false
				_, asks = next(c.now)
				assert.False(t, asks, "once")
			}
		}
	}
	w := newWorld()
	s, _ := slot(w, strictLimit(10), 1.3)
	assert.Nil(t, s.Next(1.1, Demand{Callers: 1, Anybody: true}), "the caller waits for another limit")
	assert.EqualValues(t, 1, s.Unspent())
	r := s.Next(1.1, Demand{Waiting: 1, Callers: 2, Anybody: true})
	assert.EqualValues(t, 1, r.Allocate.Want, "a second caller")
	r.Allocate.Reply = schedule.Reply{
		Start: 0.1, Rate: 10, Now: 1.1, Carry: schedule.Carry{Inc: 5, Seq: 1},
	}
	s.Answered(r, 1.1, 1.1)
	assert.True(t, s.strict().newestToStore, "the line is full: the slot is still the last")
}

// TestStrictTryIsNotLast: a slot that a try got is used at once. The one before it is no longer the
// last slot.
func TestStrictTryIsNotLast(t *testing.T) {
	w := newWorld()
	s, mode := slot(w, strictLimit(10), 1.05)
	s.Advance(Time{Now: 1.05}, one)
	s.Take(1)
	s.Advance(Time{Now: 1.06}, one)
	assert.Zero(t, s.Unspent())
	assert.True(t, mode.newestToStore)
	r := s.Next(1.2, Demand{Anybody: true, Try: true})
	r.Allocate.Reply = schedule.Reply{N: 1, Rate: 10, Now: 1.2, Carry: schedule.Carry{Inc: 5, Seq: 2}}
	s.Answered(r, 1.2, 1.2)
	assert.False(t, mode.newestToStore)
}

// TestStrictChangedRate: slots of the old rate are void, also if they are on their way.
func TestStrictChangedRate(t *testing.T) {
	w := newWorld()
	s, _ := slot(w, strictLimit(10), 1.3)
	r := s.Next(1.1, Demand{Waiting: 1, Callers: 2, Anybody: true})
	s.Apply(at(s.Limit, 20))
	s.Advance(Time{Now: 1.15}, one)
	assert.Zero(t, s.Unspent())
	r.Allocate.Reply = schedule.Reply{
		N: 1, Start: 0.3, Rate: 10, Now: 1.1, Carry: schedule.Carry{Inc: 5, Seq: 2},
	}
	s.Answered(r, 1.2, 1.2)
	assert.Zero(t, s.Unspent())
	assert.NotNil(t, s.Next(1.2, one), "a new slot is requested at once")
}

// TestStrictSlowAnswer: a slot starts as if its answer had been as fast as others. How fast others
// are is unknown of the first answer, whose slot is used only if it came within permitExpiry.
func TestStrictSlowAnswer(t *testing.T) {
	for i, c := range []struct {
		took []float64 // by requests that are a second apart
		due  float64   // of the last slot, after its request; 0 = void
	}{
		{[]float64{0.01}, 0.31},
		{[]float64{0.1}, 0}, // longer than permitExpiry
		{[]float64{0.01, 0.1}, 0.31},
		{[]float64{0.1, 0.01}, 0.31},
		{[]float64{0.1, 0.1}, 0.4},
		{[]float64{0.1, 0.2}, 0.4},
	} {
		w := newWorld()
		s := w.stepped(strictLimit(10))
		sent := 1.0
		for j, took := range c.took {
			sent = float64(1 + j)
			s.strict().void()
			s.strict().newestToStore = false
			r := s.Next(sent, one)
			r.Allocate.Reply = schedule.Reply{
				N: 1, Start: 0.3, Rate: 10, Now: 100 + sent, Carry: schedule.Carry{Inc: 5},
			}
			s.Answered(r, sent+took, sent+took)
		}
		if c.due == 0 {
			assert.Zero(t, s.Unspent(), "row %d", i)
			assert.EqualValues(t, 1, s.lost)
			continue
		}
		if assert.NotNil(t, s.current(), "row %d", i) {
			assert.InDelta(t, sent+c.due, s.current().due, 1e-3, "row %d", i)
		}
	}
	w := newWorld() // clocks drift, so that slow answers become usual within an hour
	s := w.stepped(strictLimit(10)).strict()
	for i, c := range []struct{ sent, took, delay float64 }{
		{1, 0.01, 0}, {2, 0.1, 0.09}, {3602, 0.1, 0}, {3603, 0.1, 0},
	} {
		s.sent, s.done = c.sent, c.sent+c.took
		delay, known := s.delay(&schedule.Reply{Now: 100 + c.sent})
		assert.True(t, known)
		assert.InDelta(t, c.delay, delay, 1e-3, "row %d", i)
	}
}

// TestStrictClockWentBack: a step back of the store's clock is no delay.
func TestStrictClockWentBack(t *testing.T) {
	s := newWorld().stepped(strictLimit(10)).strict()
	for i, c := range []struct{ sent, now, delay float64 }{
		{1, 101, 0}, {2, 101.995, 0.005}, {3, 98, 0}, {4, 99, 0},
	} {
		s.sent, s.done = c.sent, c.sent+0.01
		delay, _ := s.delay(&schedule.Reply{Now: c.now})
		assert.InDelta(t, c.delay, delay, 1e-3, "row %d", i)
	}
}

// TestStrictConfirmedWhenSent: a slot counts as confirmed when the request was sent, since the line
// may have been replaced before its answer arrived.
func TestStrictConfirmedWhenSent(t *testing.T) {
	w := newWorld()
	c := w.stepped(strictLimit(10))
	c.Limit.Expiry = 1
	r := c.Next(1, one)
	r.Allocate.Reply = schedule.Reply{
		N: 1, Start: 0.9, Rate: 10, Now: 1.2, Carry: schedule.Carry{Inc: 5, Seq: 1},
	}
	c.Answered(r, 1.2, 1.2)
	c.Advance(Time{Now: 2.1}, one)
	assert.Zero(t, c.Available(), "sent 1.1 s ago")
}

// TestStrictGivesBackOnce: after the last slot, the one before it does not go back.
func TestStrictGivesBackOnce(t *testing.T) {
	w := newWorld()
	c, _ := slot(w, strictLimit(10), 1.3)
	two := Demand{Waiting: 2, Callers: 2, Anybody: true}
	r := c.Next(1.1, two)
	r.Allocate.Reply = schedule.Reply{
		N: 1, Start: 0.3, Rate: 10, Now: 1.1, Carry: schedule.Carry{Inc: 5, Seq: 2},
	}
	c.Answered(r, 1.1, 1.1)
	assert.EqualValues(t, 2, c.Unspent())
	r = c.Next(1.2, Demand{})
	assert.EqualValues(t, 1, r.Allocate.Returned)
	r.Allocate.Reply = schedule.Reply{Rate: 10, Now: 1.2, Carry: schedule.Carry{Inc: 5, Seq: 2}}
	c.Answered(r, 1.2, 1.2)
	assert.Nil(t, c.Next(1.21, Demand{}))
	assert.EqualValues(t, 1, c.Unspent())
}

// TestStrictUnused: a slot that its caller did not use goes to another caller while it may be used,
// and only once. Without another, it goes back to the line if it is the newest.
func TestStrictUnused(t *testing.T) {
	const due, expires = 1.3, 1.32
	for name, c := range map[string]struct {
		at       float64 // when the loop notices that it came back
		newer    bool    // a later slot is held
		avail    int64
		returned float64 // to the line, at last
	}{
		"in time":            {at: due + 0.001, avail: 1, returned: 1},
		"too late":           {at: expires + 0.001},
		"not the newest one": {at: due + 0.001, newer: true, avail: 1},
	} {
		w := newWorld()
		s, strict := slot(w, strictLimit(10), due)
		s.Advance(Time{Now: due, Step: 7}, one)
		assert.EqualValues(t, 1, s.Take(1))
		if c.newer {
			strict.batches = append(strict.batches, batch{n: 1, left: 1, due: 1.4, expires: 1.42})
		}
		s.GiveSlotBack(8)
		s.Advance(Time{Now: c.at, Step: 9}, Demand{})
		assert.Equal(t, c.avail, s.Available(), name)
		assert.Equal(t, 1-c.avail, s.wasted.Load(), name)
		if c.newer {
			continue
		}
		assert.Nil(t, s.Next(c.at, Demand{}), "%s: the next caller may come at once", name)
		later := s.WakeAt(c.at)
		s.Advance(Time{Now: later, Step: 10}, Demand{})
		r := s.Next(later, Demand{})
		if c.returned == 0 {
			assert.Nil(t, r, name)
		} else if assert.NotNil(t, r, name) {
			assert.InDelta(t, c.returned, r.Allocate.Returned, 0, name)
			assert.Less(t, later, expires)
		}
		assert.Zero(t, s.Unspent(), name)
	}
}

// TestStrictUnusedOfAnother: once the next slot was released, the one before it does not come back:
// two callers would have one each at that moment.
func TestStrictUnusedOfAnother(t *testing.T) {
	l := strictLimit(10)
	l.Expiry = 1 // so that the first one could still be used
	s, strict := slot(newWorld(), l, 1.3)
	strict.batches = append(strict.batches, batch{n: 1, left: 1, due: 1.4, expires: 2.4})
	s.Advance(Time{Now: 1.3, Step: 7}, one)
	assert.EqualValues(t, 1, s.Take(1))
	s.Advance(Time{Now: 1.4, Step: 9}, one)
	s.GiveSlotBack(8)
	assert.EqualValues(t, 1, s.Take(1))
	s.Advance(Time{Now: 1.41, Step: 10}, one)
	assert.Zero(t, s.Available())
	s.GiveSlotBack(9)
	s.GiveSlotBack(9)
	s.Advance(Time{Now: 1.42, Step: 11}, one)
	assert.EqualValues(t, 1, s.Available())
	assert.EqualValues(t, 2, s.wasted.Load())
}

// TestStrictHindered: a share requests no slots for callers that another limit holds up, but keeps
// those that it has, and its place in the queue.
func TestStrictHindered(t *testing.T) {
	l := strictLimit(10)
	l.Queue = true
	s, strict := slot(newWorld(), l, 1.3)
	hindered := Demand{Waiting: 3, Callers: 3, Hindered: 3, Anybody: true}
	assert.Nil(t, s.Next(1.1, hindered))
	assert.EqualValues(t, 1, s.Unspent())
	strict.queued = true
	r := s.Next(1.1, hindered)
	if assert.NotNil(t, r) {
		assert.InDelta(t, 1, r.Allocate.Want, 0)
		assert.NotEmpty(t, r.Allocate.Waiter)
	}
}

// TestStrictShortPause: a refused try may come back after 0.1 ms at the earliest.
func TestStrictShortPause(t *testing.T) {
	c := newWorld().stepped(strictLimit(1e6))
	r := c.Next(1, Demand{Anybody: true, Try: true})
	r.Allocate.Reply = schedule.Reply{Rate: 1e6, Now: 1, Carry: schedule.Carry{Inc: 5}}
	c.Answered(r, 1, 1)
	assert.Equal(t, 100*time.Microsecond, c.FullUntil().Round(time.Microsecond))
}

// TestStrictUse: the use that is reported is at most the limit, whatever few permits look like.
func TestStrictUse(t *testing.T) {
	c := newWorld().join(strictLimit(10))
	r := Report{Use: 12}
	c.Report(&r)
	assert.EqualValues(t, 10, r.Use)
}
