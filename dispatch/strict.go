package dispatch

import (
	"context"
	"math"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// A strict account holds a slot for each permit that somebody waits for, booked one by one, and nothing else: a slot that
// nobody uses in time is wasted.

// advanceStrict releases the slots that have come. One that the loop comes to later than permitExpiry is never used.
func (a *account) advanceStrict(step uint64, now float64) {
	if a.rate != a.limit.rate || a.rev != a.limit.rev && len(a.batches) > 0 {
		a.lapsed += a.held() // void: the store counts on nobody's using slots of the old pace
		a.withdraw(a.ready())
		a.batches, a.rate = nil, a.limit.rate
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
		if b.left == 0 || b.due > now {
			return
		}
		b.left = 0
		a.until.Store(int64((b.expires - 1) * 1e9))
		a.begins = [3]uint64{step, step, step}
		a.since.Store(step)
		a.supply(1)
		return // one at a time
	}
}

// bookStrict books a slot for who has none, and gives back the last one if its caller has gone.
func (a *account) bookStrict(now float64, w demand, gone bool, timeout float64) *call {
	defer a.refused.Store(0)
	if a.busy || now < a.retryAt {
		return nil
	}
	if gone && a.held() > 0 {
		return a.farewellStrict(now, timeout)
	}
	held, wanted := a.held(), a.slots(w, gone)
	switch {
	case held < wanted:
		return a.call(now, a.limit.rate, 1, timeout)
	case held > wanted && a.upcoming(now) != nil:
		a.cancel(now)
		return a.call(now, 0, 0, timeout)
	}
	a.rev = a.limit.rev
	return nil
}

// slots is how many are wanted: one for each caller that this limit holds up, and one for who asks again.
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

// answeredStrict takes in a slot. If the book was full, the next call is as late as the store says, and up to half a
// period more, lest all come back at once.
func (a *account) answeredStrict(c *call, now, jitter float64) {
	r := c.reply.Reply
	switch {
	case c.rev != a.limit.rev: // of the old pace
	case r.N > 0:
		a.rate, a.rev, a.share = c.booking.Request.Rate, c.rev, r.Share
		a.bookings++
		due := max(c.sent, c.done-a.delay(c)) + r.Start
		a.batches = append(a.batches, batch{n: 1, left: 1, due: due, gap: 1 / a.rate, expires: due + a.limit.expiry})
	case c.booking.Request.Want > 0:
		a.retryAt = now + max(0.001, r.Start) + jitter/2*min(1/a.limit.rate, 1)
	}
}

// delay is how much later a reply came than the fastest of late, compared by the store's clock: a start counts from the
// moment at which it would have come.
func (a *account) delay(c *call) float64 {
	offset := c.reply.Reply.Now - c.done
	if a.offset != 0 {
		a.offset -= 1e-4 * (c.done - a.offsetAt) // clocks drift
	}
	if offset > a.offset || a.offset-offset > 1 { // faster; or the clock has stepped
		a.offset = offset
	}
	a.offsetAt = c.done
	return a.offset - offset
}

// farewellStrict gives back the last slot, if it is still to come; the others are wasted.
func (a *account) farewellStrict(now, timeout float64) *call {
	last := a.upcoming(now) != nil
	a.lapsed += a.held()
	a.withdraw(a.ready())
	a.batches, a.expired = nil, 0
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
		if at = a.batches[0].due; a.batches[0].left == 0 {
			at = a.batches[0].expires
		}
	}
	if !a.busy && a.held() < a.slots(w, false) {
		at = min(at, max(now, a.retryAt))
	}
	return at
}

// tryPaced is TryAcquire where pacing is strict: it books a slot that is free now, or none.
func (q *queue) tryPaced(max int) (Grant, time.Time, bool) {
	q.mu.Lock()
	p, waiting := q.plan.Load(), len(q.waiting) > 0
	q.mu.Unlock()
	now := time.Now()
	switch {
	case p == nil || !p.paced || p.shadow || p.paused || max <= 0:
		return q.tryAcquire(max)
	case waiting: // he is first
		return Grant{}, now.Add(tick), false
	}
	for _, a := range p.messages {
		if next := time.Unix(0, a.full.Load()); a.limit.strict && next.After(now) {
			return Grant{}, next, false
		}
	}
	size := q.sizeOf(p, 1, -1)
	if !p.take1(size) {
		return q.tryAcquire(max) // counts the refusal
	}
	g := Grant{n: 1, plan: p, size: size, taken: p.now()}
	for _, a := range p.messages {
		if !a.limit.strict {
			continue
		}
		if next, ok := q.limiter.bookNow(a); !ok {
			a.full.Store(next.UnixNano())
			g.waste()
			return Grant{}, next, false
		}
	}
	return g, time.Time{}, true
}

// bookNow books a slot of a strict limit that is free now, or says when the next one is.
func (l *Limiter) bookNow(a *account) (next time.Time, ok bool) {
	l.mu.Lock()
	m, nonce := *a.limit, 1+l.cfg.Rand.Int64N(1<<52)
	l.mu.Unlock()
	booked := l.cfg.Ledger.Book(context.Background(), []schedule.Booking{{Key: m.key, Request: schedule.Request{
		Subscription: a.subscription, Weight: 1, Want: 1, Round: m.round,
		Rate: m.rate, Identity: m.rev.identity, Rev: m.rev.number, Strict: true, Nonce: nonce,
	}}})[0]
	l.counters.trips.Add(1)
	now := time.Now()
	switch r := booked.Reply; {
	case booked.Err != nil:
		l.counters.errors.Add(1)
		return now.Add(tick), false
	case r.N == 0:
		return now.Add(max(tick/20, time.Duration(r.Start*float64(time.Second)))), false
	}
	a.tried.Add(1)
	return now, true
}
