package dispatch

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// An account is one subscription's share of one limit in this process: its stock of permits, and what decides
// when to allocate the next ones, and how many. Times are seconds on the Limiter's clock.
type account struct {
	limit        *limit
	queue        *queue // whose callers it serves; guarded by limiter.mu
	subscription string
	waiter       string // its name in the queue for slots; "" = it does not queue
	reason       Reason // why callers wait for it
	loss         policy.OnOutage
	weight       float64 // of the subscription in the limit
	reserved     float64 // permits a second

	refused atomic.Int64              // permits that TryAcquire and shadow mode asked for in vain since the last step
	next    atomic.Pointer[time.Time] // when a refused caller may come back; kept ready, for a clock read is dear

	strict *strict  // nil: the limit is not paced strictly
	split  *split   // nil: the limit is not split
	groups *grouped // nil: the limit is not divided over groups

	stock

	through  atomic.Int64     // messages of a quota that shadow mode let begin without a permit
	lost     atomic.Bool      // the permit store does not answer
	heldBack atomic.Bool      // a held Grant has given permits back since the last step
	outside  atomic.Bool      // this process is in none of the limit's groups
	plain    bool             // who has caught up is exempt
	open     bool             // lets through what comes, since the permit store is away
	cut      bool             // the limit has become lower since the last allocation
	fruitful bool             // something was taken since the last allocation
	gone     bool             // no caller: nothing is requested until one waits
	dropAt   float64          // the last handle is closed: nothing is allocated, and what is held then goes back; 0 = there is a handle
	busy     bool             // a call is under way
	unheard  schedule.Answers // that the permit store has not been told of
	faulty   bool             // the log has it that this limit cannot be allocated
	handBack bool             // held Grants gave permits back that may be unused

	// The rest belongs to the loop.
	carry schedule.Carry // from the last reply
	share float64        // from the last reply, permits a second; 0 = unknown
	told  float64        // when that was
	rev   revision       // of the limit that the batches were allocated under
	top   float64        // the limit's rate, and
	ramp  schedule.Ramp  // the ramp to it, by which permits are released

	wanted    demand // at the last step, before anybody was served
	taken     int64  // put - avail at the last step
	use       float64
	meter     useMeter // of what was taken, for people
	usedAt    float64  // the last step at which something was taken
	sparse    float64  // permits a second since the one before, if that was over two rounds ago; else +Inf
	steppedAt float64
	refusedAt float64 // when something was last refused
	patience  float64 // how long a refused caller is thought to stay away
	asked     int64   // permits that he asked for
	heldUp    float64 // seconds since the last call in which callers waited for slots to come
	calledAt  float64 // the last call

	failures    int     // calls failed in a row
	lostAt      float64 // when the first of them did
	retryAt     float64 // no call before
	turnAt      float64 // while the line is full, no request for permits before this time: see turn
	rtts        [2]float64
	storeTime   float64 // the store's clock less ours, from the last reply
	heard       heard   // the last reply that was not late
	allocations int64   // made, all time
	settled     int64   // messages of a quota that have been counted as begun
	lent        float64 // `share` without a store: when the next permit of our own is due; 0 = the store is there
	cutAt       float64 // when the first of the calls that failed in a row was sent
	spent       int64   // permits of our own, since then
}

// A demand is what the callers of an account want at this moment.
type demand struct {
	waiting float64 // permits asked for by callers whom this limit holds up
	anybody bool    // somebody waits for the message, whatever limit holds him up
	callers int     // who do
}

var never time.Time

func newAccount(l *limit, subscription string, reason Reason, now float64) *account {
	a := &account{limit: l, subscription: subscription, reason: reason, plain: reason.plain(), weight: 1, steppedAt: now}
	a.end, a.sparse = math.Inf(-1), math.Inf(1)
	a.next.Store(&never)
	return a
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
		a.meter.add(used+a.strict.triedSince(), now)
		a.use += (float64(used)/dt - a.use) * (1 - math.Exp(-dt/0.3))
		if used > 0 {
			a.sparse = math.Inf(1)
			if pause := now - a.usedAt; pause > 2*a.limit.round { // not a gap of who comes at random
				a.sparse = float64(used) / pause
			}
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
// somebody who is taken for greedy by mistake allocates no slots that he then wastes.
func (a *account) pressure(now, d float64) float64 {
	if now > a.calledAt {
		d /= max(0.8, 1-a.heldUp/(now-a.calledAt))
	}
	return d
}

// demand is the permits a second that this replica wants, as far as it shows.
func (a *account) demand(w demand) float64 {
	// Just after a caller came, the average shows one who comes rarely as if he came more often.
	d := 1.3*min(a.use, a.sparse) + w.waiting/a.limit.round
	if n := a.refused.Load(); n > 0 {
		d += float64(n) / a.patience
	}
	if w.waiting > 0 && a.quick > 0 {
		d = max(d, 2*a.quick/a.limit.round)
	}
	return d
}

// A call is an allocation on its way.
type call struct {
	account    *account
	allocation allocation
	demand     float64 // as far as it showed
	sent       float64
	rev        revision
	try        bool   // by TryAcquire: for a slot that is free now
	confirms   bool   // asks whether a strict line is still there
	visit      *visit // nil: an allocation
	reply      allocated
	done       float64
}

// An allocation is a request for slots under a key; allocated is its answer, which counts only if Err is nil.
type (
	allocation struct {
		Key     string
		Request schedule.Request
	}
	allocated struct {
		Reply schedule.Reply
		Err   error
	}
)

// advance brings the account to now; the loop is late by so much.
func (a *account) advance(step uint64, now, late float64, w demand) {
	switch {
	case a.split != nil:
		a.advanceSplit(step, now, w)
		return
	case a.strict != nil:
		a.advanceStrict(now, w)
		return
	}
	if a.otherPace() {
		a.adjust(now)
	}
	a.wanted = w
	a.takeHeld(now)
	a.observe(now, w)
	a.release(step, now, late, a.limit.grace())
	a.age(now, a.limit.round)
	if a.lent > 0 {
		a.lend(now, w)
	}
}

// adjust goes over to the limit's new rate. Whatever is held is scaled, a share included. Where on its ramp a limit
// is, the next reply says.
func (a *account) adjust(now float64) {
	rate := a.limit.rate
	if ramp := a.limit.ramp; ramp.Over > 0 {
		from := ramp.From
		if a.ramp.Over > 0 {
			from = max(from, a.rate)
		}
		rate = min(rate, from)
	}
	if f := rate / a.rate; a.rate > 0 {
		a.share *= f
		if a.lent > now {
			a.lent = now + (a.lent-now)/f
		}
		a.cut = f < 1
	}
	a.changeRate(now, rate)
	a.top, a.ramp = a.limit.rate, a.limit.ramp
}

// otherPace says that the limit's rate, or the ramp to it, has changed.
func (a *account) otherPace() bool { return a.top != a.limit.rate || a.ramp != a.limit.ramp }

// allocate decides what to allocate now, and returns nil for nothing. An account that is gone has nobody to allocate for ever again.
func (a *account) allocate(step uint64, now float64, w demand, gone bool, timeout float64) *call {
	switch {
	case a.split != nil:
		a.refused.Store(0)
		return nil
	case a.strict != nil:
		return a.allocateStrict(now, w, gone, timeout)
	case a.groups != nil:
		return a.allocateGrouped(step, now, w, gone, timeout)
	}
	return a.allocateBatch(step, now, w, gone, timeout)
}

// bookBatch allocates as much as this replica may have use for.
func (a *account) allocateBatch(step uint64, now float64, w demand, gone bool, timeout float64) *call {
	defer a.refused.Store(0)
	if gone = gone || a.closed() && now >= a.dropAt; gone || a.closed() {
		a.asked = 0
	}
	if a.gone = gone || a.gone && w.waiting == 0 && a.asked == 0; a.busy || now < a.retryAt {
		return nil
	}
	d, held := a.demand(w), a.held()
	if gone && held == 0 {
		return nil
	}
	if gone || a.handsBack(now, w) {
		return a.farewell(now, timeout)
	}
	changed := a.rev != a.limit.rev
	wanted := false
	switch next := a.upcoming(now); {
	case changed && held > 0 && (a.gone || a.closed()):
		return a.farewell(now, timeout)
	case changed && a.cut && held > 0:
		a.clear(now) // else what is running would come on top of the new line
		held, a.cut, wanted = 0, false, true
	case next != nil: // there is never a third, nor a farewell while the next one is still to come
	case w.waiting > 0:
		wanted = a.running() <= 1
	case a.asked > 0: // a refused caller comes back
		wanted = held < a.asked+a.debt() && a.running() <= 1
	case a.gone:
	case !w.anybody && now-a.usedAt > max(0.015, 5/a.use):
		a.gone = true
		a.since.Store(step + 1) // what was taken until now comes back too late
		if held > 2 {
			return a.farewell(now, timeout)
		}
	case a.closed():
	default:
		wanted = a.fruitful && float64(held) < d*a.limit.round/4
	}
	if !wanted || now < a.turnAt && !changed {
		if changed && len(a.batches) == 0 && a.expired == 0 {
			a.rev = a.limit.rev
		}
		return nil
	}
	round := a.limit.round
	if a.carry.Round > 0 {
		round = a.carry.Round
	}
	want := max(d*round, float64(a.asked+a.debt()-held))
	if d < a.share {
		want = max(want, min(8, 4*a.limit.round*d))
	}
	return a.call(now, d, max(1, want), timeout)
}

// farewell gives everything back.
func (a *account) farewell(now, timeout float64) *call {
	if a.strict != nil {
		return a.farewellStrict(now, timeout)
	}
	a.clear(now)
	return a.call(now, 0, 0, timeout)
}

func (a *account) call(now, d, want, timeout float64) *call {
	l := a.limit
	r := schedule.Request{
		Subscription: a.subscription, Weight: a.weight, Reserved: a.reserved,
		Demand: a.pressure(now, d), Want: want, Returned: float64(a.expired), Held: float64(a.held()),
		RTT: min(a.rtts[0], a.rtts[1]), Round: l.round, Burst: l.burst,
		Rate: l.rate, Ramp: l.ramp, Identity: l.rev.identity, Rev: l.rev.number,
		Rule: l.rule, Strict: a.strict != nil, MaxReserved: l.ahead, Waiter: a.waiter,
		Carry: a.carry,
	}
	switch {
	case a.storeTime != 0:
		r.NotAfter = now + a.storeTime + timeout
	case a.failures > 0: // a frozen store will run this however late: it only asks for the clock
		r.Want = 0
	}
	r.Low, r.High = a.heard.bounds(now)
	a.expired = 0
	a.busy, a.fruitful = true, false
	a.heldUp, a.calledAt = 0, now
	c := &call{account: a, allocation: allocation{l.key, r}, demand: d, sent: now, rev: l.rev}
	if a.groups != nil {
		c.visit = a.visiting(r)
	}
	return c
}

// closed says that the last handle is closed: a new one takes the account over.
func (a *account) closed() bool { return a.dropAt > 0 }

// batched says that the account holds batches of a schedule: sharing is neither strict, nor split, nor by groups.
func (a *account) batched() bool { return a.strict == nil && a.split == nil && a.groups == nil }

// askAgain lets the account send its next request at once: the delay that it was given no longer applies.
func (a *account) askAgain() {
	a.turnAt = 0
	if a.failures == 0 {
		a.retryAt = 0
	}
	if a.strict != nil {
		a.strict.full.Store(0)
	}
	if a.groups != nil {
		a.groups.notBefore = 0
	}
}

// restart has an account begin anew, for another way of sharing.
func (a *account) restart() {
	a.void()
	a.rate, a.top, a.share, a.told, a.lent = 0, 0, 0, 0, 0
	a.askAgain()
}

// outage says that the store is unavailable: a single lost request or reply is no outage.
func (a *account) outage() bool { return a.failures > 1 }

// failed notes that the permit store did not answer.
func (a *account) failed(now float64) {
	if a.failures++; a.failures == 1 {
		a.lostAt = now
	}
	a.lost.Store(a.outage())
}

// A heard is a reply: the store's clock in it, and when its request was sent and it was received.
type heard struct{ now, sent, received float64 }

// drift is how much two clocks may differ in a second that goes by.
const drift = 5e-4

// bounds returns the earliest and the latest time that the store's clock can show now; 0, 0 before the first reply.
func (h heard) bounds(now float64) (low, high float64) {
	if h.received == 0 {
		return 0, 0
	}
	low, high = now-h.received, now-h.sent
	return h.now + low - drift*low, h.now + high + drift*high
}

// slow says that a call took so much longer than usual that the store's clock need not have stepped forward. Slots of a
// strict line stay where they are all the same.
func (c *call) slow(usual float64) bool {
	request, r := &c.allocation.Request, &c.reply.Reply
	return request.High > 0 && !request.Strict && r.Carry.Inc == request.Carry.Inc && r.Now-request.High <= c.done-c.sent-usual+0.02
}

// answered takes the reply of a call in; jitter is random, 0..1.
func (a *account) answered(c *call, now, jitter float64) {
	a.busy = false
	r := c.reply.Reply
	if c.reply.Err == nil {
		a.storeTime = r.Now - c.done
	}
	if c.reply.Err != nil || r.Late {
		if a.failures == 0 {
			a.cutAt, a.spent = c.sent, 0
		}
		a.failed(now)
		if a.outage() && a.lent == 0 {
			a.lent = now + 1.5*a.limit.round // the next call may be answered before
		}
		a.retryAt = now + a.limit.round*(0.25+jitter/2)
		if a.failures > 3 { // not all are to come back in the same moment
			a.retryAt = now + a.limit.round*(0.5+2*jitter)
		}
		return
	}
	a.failures, a.retryAt = 0, 0
	a.lost.Store(false)
	usual := min(a.rtts[0], a.rtts[1])
	a.heard = heard{r.Now, c.sent, c.done}
	a.rtts[0], a.rtts[1] = a.rtts[1], c.done-c.sent // the first call, which may have to connect, is not among the last two
	a.carry, a.unheard = r.Carry, schedule.Answers{}
	if told := r.Carry.Shifts - c.allocation.Request.Carry.Shifts; told > 0 && c.slow(usual) { // the clock has not stepped: the next request says so
		a.carry.Shifts -= told
		r.Start = max(min(r.Start, 0), r.Start-r.Ahead)
		c.reply.Reply.Start = r.Start
	}
	if a.lent > 0 {
		a.repay(now, r.Since > c.done-a.cutAt)
	}
	if c.visit != nil {
		a.answeredGrouped(c, now, jitter)
		return
	}
	if a.strict != nil && c.allocation.Request.Strict {
		a.answeredStrict(c, now, jitter)
		return
	}
	if r.N == 0 {
		return
	}
	if a.split != nil || a.strict != nil || a.groups != nil || c.allocation.Request.Strict { // allocated for another way of sharing
		a.lapsed += int64(r.N)
		return
	}
	a.share, a.told, a.rev = r.Share, now, c.rev
	a.turnAt = now + a.turn(c)
	if (a.limit.ramp.Over > 0 || a.limit.rule.Mode != busy.None) && c.rev == a.limit.rev {
		a.rate = r.Rate
	}
	a.allocations++
	a.add(int64(r.N), c.done+r.Start, r.Gap*r.Rate/a.rate, a.calledAt, a.life(c), a.limit.round)
}

// maxTurn is the longest that a replica with a light share waits between two permits, in seconds: a share lighter than one
// permit in that time gets that one.
const maxTurn = 2.0

// turn is how long after a reply a replica requests no more, in seconds. An allocation is one permit at least. Where that is
// more than the replica's share of a round, one in each round would be more than its share. While others are allocated
// slots before its next ones, the replica therefore leaves out rounds; if the line has room, there is no delay.
func (a *account) turn(c *call) float64 {
	r := c.reply.Reply
	end := max(c.done, a.end)
	if b := a.current(); b != nil {
		end = max(end, b.due+float64(b.left)*b.least)
	}
	if r.Share*max(a.limit.round, schedule.Stretch(r.Rate)) >= 1 || c.done+r.Start < end+a.limit.round/2 {
		return 0
	}
	return min(maxTurn, 1/r.Share)
}

// life is how long what a call allocated may lie unspent.
func (a *account) life(c *call) float64 {
	turn := maxTurn
	if a.share > 1e-6 { // else reserved shares take all
		turn = 1 / a.share
	}
	life := max(a.carry.Round, a.limit.round, turn)
	if c.demand > 0 {
		life = max(life, 1.3*c.reply.Reply.N/c.demand)
	}
	if a.asked > 0 {
		life = max(life, 1.3*a.patience)
	}
	return life
}

// idle says that the account needs no step until somebody calls.
func (a *account) idle() bool {
	if a.split != nil {
		return a.split.idle()
	}
	if a.groups != nil {
		return a.groups.left && !a.busy
	}
	return !a.busy && !a.lining() && len(a.batches) == 0 && a.expired == 0 && (a.gone || a.closed() || !a.fruitful) && a.lent == 0 && a.avail.Load() <= 0
}

// wakeAt is when the account wants its next step.
func (a *account) wakeAt(now float64, w demand) float64 {
	switch {
	case a.split != nil:
		return a.wakeSplit(w)
	case a.strict != nil:
		return a.wakeStrict(now, w)
	}
	at := a.stock.wakeAt(a.limit.round)
	if again := max(a.retryAt, a.turnAt); !a.busy && (w.waiting > 0 || a.asked > 0) && again > now {
		at = min(at, again)
	}
	if a.lent > 0 && w.waiting > 0 {
		at = min(at, a.lent)
	}
	if g := a.groups; g != nil && !a.busy && !g.left {
		at = min(at, max(g.again, a.retryAt))
		if w.waiting > 0 || a.asked > 0 {
			at = min(at, max(g.notBefore, a.retryAt))
		}
	}
	if a.closed() && a.held() > 0 {
		at = min(at, a.dropAt)
	}
	if !w.anybody && !a.gone && a.use > 0.3 && a.held() > 0 {
		at = min(at, now+0.010) // is somebody still there, and is the stock low? Who uses less is left to expire
	}
	return at
}

// comeBack is when a refused caller may find a permit.
func (a *account) comeBack(now float64) float64 {
	if a.split != nil {
		return min(a.split.due(a.rate), now+1)
	}
	if b := a.current(); b != nil {
		return b.due
	}
	if a.share > 0 {
		return now + min(a.limit.round, 1/a.share)
	}
	return now + a.limit.round
}
