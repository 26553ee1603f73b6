package dispatch

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// A strict account holds a slot for each permit that somebody waits for, allocated one by one, and nothing else: a slot that
// nobody uses in time is wasted.
type strict struct {
	until  atomic.Int64 // when the slot last released may be used no more, ns since the Limiter's start; 0 = there was none
	full   atomic.Int64 // until then no slot is free, ns since the Limiter's start
	tried  atomic.Int64 // slots allocated by TryAcquire, all time
	known  int64        // of these, when the averages were last brought up to date; the loop's
	wasted atomic.Int64 // slots that their callers came to too late, all time

	// The rest belongs to the loop.
	inc         int64   // incarnation of the line that the slots are from
	confirmedAt float64 // when the last request was sent that it has answered
	queued      bool    // in the line's queue
	wokenAt     float64 // when it was last said that our turn has come
	last        bool    // the last slot that was allocated may be given back
	offset      float64 // the store's clock less ours, from the fastest reply of late
	offsetAt    float64 // when it was last looked at; 0 = never
}

// triedSince is how many slots TryAcquire has allocated since the last call.
func (s *strict) triedSince() (n int64) {
	if s == nil {
		return 0
	}
	tried := s.tried.Load()
	n, s.known = tried-s.known, tried
	return n
}

// advanceStrict releases the slots that have come. One that the loop comes to later than permitExpiry is never used.
func (a *account) advanceStrict(now float64, w demand) {
	a.observe(now, w)
	if a.otherPace() {
		a.void() // the store counts on nobody's using slots of the old pace
		a.top, a.ramp = a.limit.rate, a.limit.ramp
	}
	for len(a.batches) > 0 {
		b := &a.batches[0]
		if b.left == 0 && (a.avail.Load() > 0 && now > b.expires) { // nobody has come for it
			a.lapsed += a.withdraw(1)
		}
		if b.left > 0 && now > b.expires {
			b.left = 0
			a.lapsed++
		}
		if b.left == 0 && (a.avail.Load() <= 0 || now > b.expires) {
			a.batches = a.batches[1:]
			continue
		}
		if b.left == 0 || b.due > now || a.strict.unconfirmed(now) {
			return
		}
		b.left = 0
		b.expires = min(b.expires, a.strict.confirmedAt+schedule.Unconfirmed)
		a.strict.until.Store(int64((b.expires - 1) * 1e9))
		a.supply(1)
		return // one at a time
	}
}

// bookStrict allocates a slot for who has none, and gives back the last one if its caller has gone.
func (a *account) allocateStrict(now float64, w demand, gone bool, timeout float64) *call {
	defer a.refused.Store(0)
	if at, needed := a.confirmAt(); needed && !a.busy && !gone && now >= at {
		c := a.call(now, a.limit.rate, 0, timeout)
		c.allocation.Request.Waiter, c.confirms = "", true // it keeps its place in the queue
		return c
	}
	if a.busy || now < a.retryAt && !(a.lining() && a.failures == 0 && a.slots(w, gone) == 0) { // who leaves the queue need not wait
		return nil
	}
	if gone && (a.held() > 0 || a.lining()) {
		return a.farewellStrict(now, timeout)
	}
	held, wanted := a.held(), a.slots(w, gone)
	switch {
	case held < wanted:
		return a.call(now, a.limit.rate, 1, timeout)
	case held > wanted && a.strict.last && a.upcoming(now) != nil: // of others that are too many, nobody could take one back
		a.strict.last = false
		a.cancel(now)
		return a.call(now, 0, 0, timeout)
	case a.lining(): // for nobody any more
		a.strict.queued = false
		return a.call(now, 0, 0, timeout)
	}
	a.rev = a.limit.rev
	return nil
}

// unconfirmed says that a slot must not be used then: its line may have been replaced by another.
func (s *strict) unconfirmed(then float64) bool { return then-s.confirmedAt > schedule.Unconfirmed }

// confirmAt is when to ask whether the next slot's line is still in force, if that is needed: half a second before it.
func (a *account) confirmAt() (at float64, needed bool) {
	b := a.current()
	if b == nil || !a.strict.unconfirmed(b.due+schedule.Unconfirmed/4) {
		return 0, false
	}
	if at = b.due - schedule.Unconfirmed/2; a.failures > 0 {
		at = max(at, a.retryAt)
	}
	return at, true
}

// lining says that the account is in the line's queue.
func (a *account) lining() bool { return a.strict != nil && a.strict.queued }

// slots is how many are wanted: one for each caller whom this limit holds up.
func (a *account) slots(w demand, gone bool) int64 {
	switch {
	case gone:
		return 0
	case w.waiting > 0:
		return int64(w.callers)
	case w.callers > 0: // wait for another limit
		return a.held()
	}
	return 0
}

// answeredStrict takes in a slot. If the allocate was full, the next call is as late as the store says, and up to half a
// period more, lest all come back at once; who is in the queue comes in his turn.
func (a *account) answeredStrict(c *call, now, jitter float64) {
	r := c.reply.Reply
	if r.Carry.Inc != a.strict.inc { // slots of another line are void
		a.void()
		a.strict.inc, a.strict.last = r.Carry.Inc, false
	}
	a.strict.confirmedAt = c.sent
	if c.confirms {
		return
	}
	if !c.try {
		a.strict.queued = c.allocation.Request.Waiter != "" && c.allocation.Request.Want > 0 && r.N == 0
	}
	switch {
	case c.try:
		a.strict.last = a.strict.last && r.N == 0
	case c.rev != a.limit.rev: // of the old pace
	case r.N > 0:
		a.rate, a.rev, a.share = r.Rate, c.rev, r.Share
		a.allocations++
		delay, known := a.strict.delay(c, a.limit.expiry)
		if a.strict.last = known; !known {
			a.lapsed++
			return
		}
		due := max(c.sent, c.done-delay) + r.Start
		a.batches = append(a.batches, batch{n: 1, left: 1, due: due, gap: 1 / a.rate, expires: due + a.limit.expiry})
	case a.strict.queued:
		if a.strict.wokenAt < c.sent {
			delay, _ := a.strict.delay(c, a.limit.expiry)
			a.retryAt = max(now+0.001, c.done-delay+r.Start)
		}
	case c.allocation.Request.Want > 0:
		a.retryAt = now + max(0.001, r.Start) + jitter/2*min(1/r.Rate, 1)
	}
}

// delay is how much later a reply came than the fastest of late, compared by the store's clock: a start counts from the
// moment at which it would have come. Of the first reply of all that is known only if it was fast.
func (s *strict) delay(c *call, expiry float64) (delay float64, known bool) {
	offset := c.reply.Reply.Now - c.done
	known = s.offsetAt != 0 || c.done-c.sent <= expiry
	if s.offsetAt != 0 {
		s.offset -= 1e-4 * (c.done - s.offsetAt) // clocks drift
	}
	if s.offsetAt == 0 || offset > s.offset || s.offset-offset > c.done-c.sent { // faster; or the clock has stepped
		s.offset = offset
	}
	s.offsetAt = c.done
	return s.offset - offset, known
}

// farewellStrict gives back the last slot, if it is still to come; the others are wasted.
func (a *account) farewellStrict(now, timeout float64) *call {
	last := a.strict.last && a.upcoming(now) != nil
	a.strict.last = false
	a.void()
	a.expired, a.strict.queued = 0, false
	if last {
		a.lapsed--
		a.expired = 1
	}
	return a.call(now, 0, 0, timeout)
}

// wakeStrict is when the account wants its next step.
func (a *account) wakeStrict(now float64, w demand) float64 {
	at := math.Inf(1)
	if len(a.batches) > 0 {
		if at = a.batches[0].due; a.batches[0].left == 0 || at <= now { // or not confirmed in time
			at = a.batches[0].expires
		}
	}
	if confirm, needed := a.confirmAt(); needed && !a.busy {
		at = min(at, max(now, confirm))
	}
	if !a.busy && a.held() < a.slots(w, false) {
		at = min(at, max(now, a.retryAt))
	}
	return at
}

// beStrict has an account hold slots, or batches as others do. The caller holds limiter.mu.
func (a *account) beStrict(yes bool) {
	if (a.strict != nil) != yes {
		a.strict = nil
		if yes {
			a.strict = &strict{}
		}
		a.restart()
	}
}

// tryPaced is TryAcquire where pacing is strict: it allocates a slot that is free now, or none.
func (q *queue) tryPaced(max int) (Grant, time.Time, bool) {
	now := time.Now()
	q.mu.Lock()
	p := q.plan.Load()
	switch {
	case p == nil || p.paced == nil || p.shadow || p.paused || p.closed || max <= 0:
		q.mu.Unlock()
		return q.tryAcquire(max)
	case len(q.waiting) > 0, p.inFlight > 0 && q.family.flying.Load() >= p.inFlight: // he is first
		q.mu.Unlock()
		return Grant{}, now.Add(tick), false
	}
	a := p.paced
	if next := q.limiter.start.Add(time.Duration(p.slots.full.Load())); next.After(now) {
		q.mu.Unlock()
		return Grant{}, next, false
	}
	size := q.sizeOf(p, 1, -1)
	if !p.take1(size) {
		q.mu.Unlock()
		return q.tryAcquire(max) // counts the refusal
	}
	if p.inFlight > 0 && size == 0 {
		size = 1 // nobody's bytes, but Done has something to settle
	}
	q.mu.Unlock()
	g := Grant{n: 1, plan: p, size: size, taken: p.now()}
	next, ok := q.allocateNow(a)
	if !ok {
		g.undo()
		return Grant{}, next, false
	}
	return g, time.Time{}, true
}

// bookNow allocates a slot of a strict limit that is free now, or says when to ask again. One call is under way at a time.
func (q *queue) allocateNow(a *account) (next time.Time, ok bool) {
	l := q.limiter
	l.mu.Lock()
	now := l.clock(time.Now())
	slots := a.strict
	if a.busy || now < a.retryAt || slots == nil {
		l.mu.Unlock()
		return time.Now().Add(tick), false
	}
	c := a.call(now, a.limit.rate, 1, l.cfg.Permits.Timeout().Seconds())
	c.try = true
	c.allocation.Request.Nonce = 1 + l.cfg.Rand.Int64N(1<<52)
	c.allocation.Request.MaxReserved, c.allocation.Request.Waiter = 0, ""
	l.mu.Unlock()

	l.allocate(c)

	l.mu.Lock()
	defer l.mu.Unlock()
	t := time.Now()
	l.settle([]*call{c}, c.done)
	q.activate() // the loop looks after a permit store that is away
	r := c.reply.Reply
	switch {
	case c.reply.Err != nil || r.Late:
		next = t.Add(time.Duration((a.retryAt - c.done) * float64(time.Second)))
	case r.N == 0: // not all come back at once
		pause := r.Start + l.cfg.Rand.Float64()*min(0.25/r.Rate, 0.025)
		next = t.Add(max(tick/20, time.Duration(pause*float64(time.Second))))
	default:
		if delay, known := slots.delay(c, a.limit.expiry); !known || delay > a.limit.expiry { // too late for its slot
			a.lapsed++
			return t.Add(tick), false
		}
		slots.tried.Add(1)
		return t, true
	}
	slots.full.Store(int64(next.Sub(l.start)))
	return next, false
}
