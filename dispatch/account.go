package dispatch

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// An account is one subscription's stock of one limit's permits in this process: a counter that
// callers take from, and behind it the batches booked, which the Limiter's loop releases into the
// counter when their slots have come. Times are seconds on the Limiter's clock.
type account struct {
	limit        *limit
	subscription string
	reason       Reason // why callers wait for it
	loss         policy.OnLedgerLoss

	gen      atomic.Uint32             // counts batches begun
	refused  atomic.Int64              // permits that TryAcquire and shadow mode asked for in vain since the last step
	returned atomic.Int64              // permits given back by callers, all time
	owed     atomic.Int64              // permits used beyond those granted, all time
	lost     atomic.Bool               // the ledger does not answer
	next     atomic.Pointer[time.Time] // when a refused caller may come back; kept ready, for a clock read is dear

	// The counter has a cache line of its own, since all callers write to it.
	_     [64]byte
	avail atomic.Int64 // released and not taken; below zero: a debt
	_     [56]byte

	// The rest belongs to the loop.
	batches []batch        // the older ones, released but not spent; the running one; the next
	end     float64        // when the last batch released has ended: none begins before
	carry   schedule.Carry // from the last reply
	share   float64        // from the last reply, permits a second; 0 = unknown
	rev     revision       // of the limit that the batches were booked under
	rate    float64        // and its rate

	put       int64 // permits put into avail by the loop, all time, less those taken out again
	taken     int64 // put - avail at the last step
	use       float64
	usedAt    float64 // the last step at which something was taken
	steppedAt float64
	refusedAt float64 // when something was last refused
	patience  float64 // how long a refused caller is thought to stay away
	asked     int64   // permits that he asked for
	heldUp    float64 // seconds since the last call in which callers waited for slots to come
	calledAt  float64 // the last call
	quick     float64 // permits in the last batch, if that was gone in under half a round; else 0
	fruitful  bool    // something was taken since the last booking
	gone      bool    // nobody is there: nothing is booked until somebody waits

	expired   int64   // permits that go back with the next booking
	expiredAt float64 // since when
	busy      bool    // a call is under way
	failures  int     // calls failed in a row
	retryAt   float64 // no call before
	rtts      [2]float64
	storeTime float64 // the store's clock less ours, from the last reply
	strayAt   float64 // the last time at which the counter was empty or a batch was there
	bookings  int64   // made, all time
	lapsed    int64   // permits wasted, all time
	lent      float64 // `share` without a store: when the next permit of our own is due; 0 = the store is there
}

// A batch is what one booking got.
type batch struct {
	n, left  int64   // permits; those not yet released
	due, gap float64 // of the next permit; between two
	begun    float64 // when its first permit was released; 0 = not yet
	expires  float64
}

// A demand is what the callers of an account want at this moment.
type demand struct {
	waiting float64 // permits asked for by callers whom this limit holds up
	anybody bool    // somebody waits for the message, whatever limit holds him up
}

func newAccount(l *limit, subscription string, reason Reason, now float64) *account {
	a := &account{limit: l, subscription: subscription, reason: reason, steppedAt: now, end: math.Inf(-1)}
	a.next.Store(new(time.Time))
	return a
}

// take takes up to n permits, and says how many it got.
func (a *account) take(n int64) int64 {
	left := a.avail.Add(-n)
	if left >= 0 {
		return n
	}
	got := max(0, left+n)
	a.avail.Add(n - got)
	return got
}

// charge takes n permits, if at least one is there: the rest is a debt.
func (a *account) charge(n int64) bool {
	if a.avail.Add(-n)+n > 0 {
		return true
	}
	a.avail.Add(n)
	return false
}

// giveBack puts back what was taken and not used; a negative n is a debt.
func (a *account) giveBack(n int64) {
	a.avail.Add(n)
	if n > 0 {
		a.returned.Add(n)
	} else {
		a.owed.Add(-n)
	}
}

// forgive is giveBack for permits whose slots are long over: they only shorten a debt.
func (a *account) forgive(n int64) {
	for {
		debt := -a.avail.Load()
		if debt <= 0 || a.avail.CompareAndSwap(-debt, -debt+min(n, debt)) {
			return
		}
	}
}

// stockNow is what can be taken now.
func (a *account) stockNow() int64 { return max(0, a.avail.Load()) }

// withdraw takes up to n permits out of the stock again.
func (a *account) withdraw(n int64) int64 {
	got := a.take(n)
	a.put -= got
	return got
}

// observe brings the averages up to date.
func (a *account) observe(now float64, w demand) {
	if w.waiting > 0 && a.running() > 0 {
		a.heldUp += now - a.steppedAt
	}
	if dt := now - a.steppedAt; dt > 0 {
		taken := a.put - a.avail.Load()
		used := max(0, taken-a.taken)
		a.taken, a.steppedAt = taken, now
		a.use += (float64(used)/dt - a.use) * (1 - math.Exp(-dt/0.3))
		if used > 0 {
			a.usedAt, a.fruitful = now, true
		}
	}
	if a.refused.Load() > 0 {
		a.patience = min(60, max(a.limit.round, now-a.refusedAt))
		if a.refusedAt == 0 {
			a.patience = 1
		}
		a.refusedAt, a.asked = now, a.refused.Load()
	} else if a.asked > 0 && now-a.refusedAt > 2*a.patience {
		a.asked = 0
	}
}

// pressure is the demand that the schedule is told. Whoever must wait for slots shows less than he wants: his
// demand d counts for the time only in which he had a choice, but by a quarter more at most, lest a short
// rush of a quiet caller costs him his credit. Batches are sized by d itself, so that
// somebody who is taken for greedy by mistake books no slots that he then wastes.
func (a *account) pressure(now, d float64) float64 {
	if now > a.calledAt {
		d /= max(0.8, 1-a.heldUp/(now-a.calledAt))
	}
	return d
}

// demand is the permits a second that this replica wants, as far as it shows.
func (a *account) demand(w demand) float64 {
	d := 1.3*a.use + w.waiting/a.limit.round
	if n := a.refused.Load(); n > 0 {
		d += float64(n) / a.patience
	}
	if w.waiting > 0 && a.quick > 0 {
		d = max(d, 2*a.quick/a.limit.round)
	}
	return d
}

// release moves what is due into the counter. After a pause of the process, what is overdue by more than a round is lost.
func (a *account) release(now float64, late bool) {
	for i := range a.batches {
		b := &a.batches[i]
		if b.left == 0 {
			continue
		}
		b.due = max(b.due, a.end)
		if oldest := now - a.limit.round; late && b.due < oldest {
			a.lapsed += b.skip(oldest)
		}
		if k := b.skip(now); k > 0 {
			if b.begun == 0 {
				b.begun = now
				a.gen.Add(1)
			}
			a.put += k
			a.avail.Add(k)
		}
		if b.left > 0 {
			return
		}
		a.end = b.due
	}
}

// skip passes over the permits that are due by then, and says how many they are.
func (b *batch) skip(then float64) int64 {
	if b.left == 0 || b.due > then {
		return 0
	}
	k := b.left
	if due := (then - b.due) / b.gap; due < float64(b.left) {
		k = min(k, int64(due)+1)
	}
	b.left -= k
	b.due += float64(k) * b.gap
	return k
}

// age drops the batches that are spent, and takes out those that have expired: what is
// unspent of them goes back with the next booking, if that comes soon.
func (a *account) age(now float64) {
	for len(a.batches) > 0 {
		b := &a.batches[0]
		younger := int64(0) // the oldest are spent first
		for _, y := range a.batches[1:] {
			younger += y.n - y.left
		}
		unspent := min(b.n-b.left, max(0, a.avail.Load()-younger))
		spent := unspent == 0 && b.left == 0
		if now < b.expires && !spent {
			break
		}
		if spent && now-b.begun < a.limit.round/2 {
			a.quick = float64(b.n)
		}
		if old := a.withdraw(unspent) + b.left; old > 0 {
			a.expired += old
			a.expiredAt = now
		}
		a.batches = slices.Delete(a.batches, 0, 1)
	}
	if stray := a.avail.Load(); len(a.batches) > 0 || stray <= 0 {
		a.strayAt = now
	} else if now > a.strayAt+a.limit.round { // given back after their batch was spent, and wanted by nobody
		a.expired += a.withdraw(stray)
		a.expiredAt = now
	}
	if a.expired > 0 && now > a.expiredAt+a.limit.round {
		a.lapsed += a.expired
		a.expired = 0
	}
}

// stock is what is booked and unspent.
func (a *account) stock() int64 {
	n := max(0, a.avail.Load())
	for _, b := range a.batches {
		n += b.left
	}
	return n
}

// debt is what was used beyond what was granted, as a number below zero, or zero.
func (a *account) debt() int64 { return min(0, a.avail.Load()) }

// nextBatch is the batch that has not begun, or nil.
func (a *account) nextBatch(now float64) *batch {
	if n := len(a.batches); n > 0 && a.batches[n-1].begun == 0 && a.batches[n-1].due > now {
		return &a.batches[n-1]
	}
	return nil
}

// revise adopts a changed limit: what is running goes on at the new rate at once.
func (a *account) revise(now float64) {
	l := a.limit
	if a.rate != l.rate && a.rate > 0 {
		f := a.rate / l.rate
		for i := range a.batches {
			b := &a.batches[i]
			b.gap *= f
			if b.due > now {
				b.due = now + (b.due-now)*f
			}
		}
	}
	a.rate = l.rate
}

// A call is a booking on its way.
type call struct {
	queue   *queue
	account *account
	booking schedule.Booking
	demand  float64 // as far as it showed
	sent    float64
	rev     revision
	reply   schedule.Booked
	done    float64
}

// step brings the account to now, and returns the booking to make, if there is one to make.
func (a *account) step(now float64, late bool, w demand, timeout float64) *call {
	changed := a.rev != a.limit.rev
	if a.rate != a.limit.rate {
		a.revise(now)
	}
	a.observe(now, w)
	a.release(now, late)
	a.age(now)
	if a.lent > 0 {
		a.lend(now, w)
	}
	if w.waiting > 0 || a.asked > 0 {
		a.gone = false
	}
	defer a.refused.Store(0)
	if a.busy || now < a.retryAt {
		return nil
	}

	d := a.demand(w)
	stock := a.stock()
	wanted := false
	switch next := a.nextBatch(now); {
	case changed && next != nil:
		a.expired += next.left // booked at the old rate: goes back, and is booked again
		a.expiredAt = now
		a.batches = a.batches[:len(a.batches)-1]
		wanted = true
	case next != nil:
	case w.waiting > 0:
		wanted = a.running() <= 1
	case a.asked > 0: // a refused caller comes back
		wanted = stock < a.asked-a.debt() && a.running() <= 1
	case a.gone:
	case !w.anybody && now-a.usedAt > max(0.015, 5/a.use):
		a.gone = true
		a.gen.Add(3) // what is given back from now on comes too late
		if stock > 2 {
			return a.farewell(now, timeout)
		}
	default:
		wanted = a.fruitful && float64(stock) < d*a.limit.round/4
	}
	if !wanted {
		if changed && len(a.batches) == 0 && a.expired == 0 {
			a.rev = a.limit.rev
		}
		return nil
	}
	round := a.limit.round
	if a.carry.Round > 0 {
		round = a.carry.Round
	}
	want := max(d*round, float64(a.asked-a.debt()-stock))
	if d < a.share {
		want = max(want, min(8, 4*a.limit.round*d))
	}
	return a.call(now, d, max(1, want), timeout)
}

// running counts the batches that still have permits to release.
func (a *account) running() (n int) {
	for _, b := range a.batches {
		if b.left > 0 {
			n++
		}
	}
	return n
}

// farewell gives everything back.
func (a *account) farewell(now, timeout float64) *call {
	a.expired += a.withdraw(max(0, a.avail.Load()))
	for _, b := range a.batches {
		a.expired += b.left
	}
	a.batches = nil
	return a.call(now, 0, 0, timeout)
}

func (a *account) call(now, d, want, timeout float64) *call {
	l := a.limit
	r := schedule.Request{
		Subscription: a.subscription, Weight: 1,
		Demand: a.pressure(now, d), Want: want, Returned: float64(a.expired), Held: float64(a.stock()),
		RTT: min(a.rtts[0], a.rtts[1]), Round: l.round, Burst: l.burst,
		Rate: l.rate, Identity: l.rev.identity, Rev: l.rev.number,
		Carry: a.carry,
	}
	if a.storeTime != 0 {
		r.NotAfter = now + a.storeTime + timeout
	}
	a.expired = 0
	a.busy, a.fruitful = true, false
	a.heldUp, a.calledAt = 0, now
	return &call{account: a, booking: schedule.Booking{Key: l.key, Request: r}, demand: d, sent: now, rev: l.rev}
}

// answered takes the reply of a call in; jitter is random, 0..1.
func (a *account) answered(c *call, now, jitter float64) {
	a.busy = false
	r := c.reply.Reply
	if c.reply.Err == nil {
		a.storeTime = r.Now - c.done
	}
	if c.reply.Err != nil || r.Late {
		a.failures++
		a.lost.Store(true)
		a.lent = max(a.lent, now)
		a.retryAt = now + a.limit.round/2*(0.5+jitter)
		return
	}
	a.failures, a.retryAt = 0, 0
	a.lost.Store(false)
	a.rtts[0], a.rtts[1] = a.rtts[1], c.done-c.sent
	if a.rtts[0] == 0 {
		a.rtts[0] = a.rtts[1]
	}
	a.carry = r.Carry
	if a.lent > 0 {
		a.repay(now)
	}
	if r.N == 0 {
		return
	}
	a.share, a.rev = r.Share, c.rev
	a.bookings++
	a.append(batch{n: int64(r.N), left: int64(r.N), due: c.done + r.Start, gap: 1 / c.booking.Request.Rate}, c.demand)
	if a.rate != c.booking.Request.Rate { // the limit has changed since
		b := &a.batches[len(a.batches)-1]
		b.gap *= c.booking.Request.Rate / a.rate
	}
}

// append puts a batch behind the others; the running one then spreads what it has left until the new one's start.
func (a *account) append(b batch, d float64) {
	b.due = max(b.due, a.end)
	if n := len(a.batches); n > 0 && a.batches[n-1].left > 0 {
		running := &a.batches[n-1]
		b.due = max(b.due, running.due+float64(running.left)/a.rate)
		running.gap = max(1/a.rate, (b.due-running.due)/float64(running.left))
		running.expires = max(running.expires, b.due+a.limit.round)
	}
	round := max(a.carry.Round, a.limit.round)
	if d > 0 {
		round = max(round, 1.3*float64(b.n)/d)
	}
	if a.asked > 0 {
		round = max(round, 1.3*a.patience)
	}
	b.expires = max(b.due, a.calledAt) + round + a.limit.round
	a.quick = 0
	a.batches = append(a.batches, b)
}

// lend lets a replica go on at its last share while the store is away. A permit of its own comes
// a share's gap after the last booked one, so that it never exceeds the time that passes.
func (a *account) lend(now float64, w demand) {
	if a.loss != policy.LossShare {
		return
	}
	gap := 1 / a.lastShare()
	if a.stock() > 0 {
		a.lent = max(a.lent, now+gap)
		return
	}
	if w.waiting == 0 && a.asked == 0 {
		a.lent = max(a.lent, now)
		return
	}
	if a.lent > now {
		return
	}
	k := int64((now-a.lent)/gap) + 1
	if most := int64(a.limit.round/gap) + 1; k > most {
		k, a.lent = most, now
	}
	a.put += k
	a.avail.Add(k)
	a.lent += float64(k) * gap
}

// lastShare is the share last told; for a replica that was never told one, a hundredth of the
// rate, so that a hundred newcomers at most double it.
func (a *account) lastShare() float64 {
	if a.share > 0 {
		return min(a.share, a.limit.rate)
	}
	return a.limit.rate / 100
}

// repay ends the lending: what was released ahead of its time is owed.
func (a *account) repay(now float64) {
	if ahead := math.Floor((a.lent - now) * a.lastShare()); ahead >= 1 && a.loss == policy.LossShare {
		a.put -= int64(ahead)
		a.avail.Add(-int64(ahead))
	}
	a.lent = 0
}

// away says that the store did not answer and nothing booked is left.
func (a *account) away() bool { return a.failures > 0 && a.stock() == 0 }

// idle says that the account needs no step until somebody calls.
func (a *account) idle() bool {
	return !a.busy && len(a.batches) == 0 && a.expired == 0 && (a.gone || !a.fruitful) && a.lent == 0 && a.avail.Load() <= 0
}

// wakeAt is when the account wants its next step.
func (a *account) wakeAt(now float64, w demand) float64 {
	at := math.Inf(1)
	for _, b := range a.batches {
		if b.left > 0 {
			at = min(at, b.due)
			break
		}
	}
	if len(a.batches) > 0 {
		at = min(at, a.batches[0].expires)
	}
	if !a.busy && (w.waiting > 0 || a.asked > 0) && a.retryAt > now {
		at = min(at, a.retryAt)
	}
	if a.expired > 0 {
		at = min(at, a.expiredAt+a.limit.round)
	}
	if len(a.batches) == 0 && a.avail.Load() > 0 {
		at = min(at, a.strayAt+a.limit.round)
	}
	if a.lent > 0 && w.waiting > 0 {
		at = min(at, a.lent)
	}
	if !w.anybody && !a.gone && a.use > 0.3 && a.stock() > 0 {
		at = min(at, now+0.010) // is somebody still there, and is the stock low? Who uses less is left to expire
	}
	return at
}

// comeBack is when a refused caller may find a permit.
func (a *account) comeBack(now float64) float64 {
	for _, b := range a.batches {
		if b.left > 0 {
			return b.due
		}
	}
	if a.share > 0 {
		return now + min(a.limit.round, 1/a.share)
	}
	return now + a.limit.round
}
