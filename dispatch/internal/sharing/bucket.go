package sharing

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// A Bucket is the permits of one limit that this process holds: a counter that callers take from,
// and behind it the batches, which the loop releases into the counter when their slots are due.
// Times are seconds on the engine's clock.
type Bucket struct {
	// The counters have a cache line of their own, since all callers write to them.
	_        [64]byte
	avail    atomic.Int64 // released and not taken; below zero: a debt
	returned atomic.Int64 // permits given back by callers, all time
	owed     atomic.Int64 // permits used beyond those granted, all time
	_        [40]byte

	// Callers read these. The loop writes them now and then.
	since    atomic.Uint64             // grants of steps before this one are too old to be returned
	refused  atomic.Int64              // permits that were refused since the last step
	next     atomic.Pointer[time.Time] // when a refused caller may come back: no clock read for it
	heldBack atomic.Bool               // a held grant has given permits back since the last step
	unused   atomic.Uint64             // strict: 1 + the step at which a slot that came back was taken
	shadow   shadowed                  // what passed in shadow mode
	stock    atomic.Pointer[stock]     // nil if nothing was ever held

	// Of strict slots; times are ns since the engine's start.
	usableUntil atomic.Int64 // when the slot last released expires; 0 = none yet
	fullUntil   atomic.Int64 // a caller that does not wait finds no free slot before
	wasted      atomic.Int64 // slots that their callers came to too late, all time

	// The rest belongs to the loop.
	batches   []batch   // released but not spent; the running one; the next
	end       float64   // when the last batch released ends, a gap after its last permit
	lastDue   float64   // when the last batch begins, and
	lastN     int64     // of how many permits it was
	rate      float64   // permits a second at which batches are released
	starts    [2]uint64 // the steps at which the last two batches started
	quick     float64   // permits in the last batch, if it was spent in under half a round; else 0
	put       int64     // permits put into avail by the loop, all time, less those taken out again
	expired   int64     // permits that go back with the next request
	expiredAt float64   // since when
	strayAt   float64   // the last time at which the counter was empty or a batch was there
	strayLife float64   // seconds from strayAt until the counter's permits expire; a round at least
	lost      int64     // permits that expired and did not go back, all time
}

// A batch is the permits of one allocation.
type batch struct {
	n, left int64   // permits; those not yet released
	due     float64 // of the next permit
	gap     float64 // between two permits
	minGap  float64 // the limit's own gap
	started float64 // when its first permit was released; 0 = not yet
	expires float64
}

var never time.Time

func (b *Bucket) init() {
	b.end = math.Inf(-1)
	b.next.Store(&never)
}

// Take takes up to n permits, and returns how many it got.
func (b *Bucket) Take(n int64) int64 {
	for {
		have := b.avail.Load()
		got := min(n, max(0, have))
		if got == 0 || b.avail.CompareAndSwap(have, have-got) {
			return got
		}
	}
}

// TakeAll takes n permits or none. It takes one before it knows that it is there; many it does
// not, since the counter would be far off meanwhile.
func (b *Bucket) TakeAll(n int64) bool {
	if n > 1 && b.avail.Load() < n {
		return false
	}
	if b.avail.Add(-n) >= 0 {
		return true
	}
	b.avail.Add(n)
	return false
}

// Charge takes n permits if at least one is there: the rest is a debt.
func (b *Bucket) Charge(n int64) bool {
	for {
		have := b.avail.Load()
		if have <= 0 || b.avail.CompareAndSwap(have, have-n) {
			return have > 0
		}
	}
}

// Untake undoes a Take or Charge of n permits that led to no grant.
func (b *Bucket) Untake(n int64) { b.avail.Add(n) }

// Return puts back permits that were granted and not used; a negative n is a debt.
func (b *Bucket) Return(n int64) {
	b.avail.Add(n)
	if n > 0 {
		b.returned.Add(n)
	} else {
		b.owed.Add(-n)
	}
}

// Forgive is Return for permits whose slots are long over: they only shorten a debt.
func (b *Bucket) Forgive(n int64) {
	for {
		debt := b.Debt()
		if debt == 0 || b.avail.CompareAndSwap(-debt, -debt+min(n, debt)) {
			return
		}
	}
}

// Fresh reports whether a grant taken at that step may still be returned: older ones would come
// too late.
func (b *Bucket) Fresh(step uint64) bool { return step >= b.since.Load() }

// Available is how many permits can be taken now.
func (b *Bucket) Available() int64 { return max(0, b.avail.Load()) }

// Debt is what was used beyond what was granted.
func (b *Bucket) Debt() int64 { return max(0, -b.avail.Load()) }

// Empty reports whether no permit can be taken now.
func (b *Bucket) Empty() bool { return b.avail.Load() <= 0 }

// Refuse counts n permits as refused: demand for the next step.
func (b *Bucket) Refuse(n int64) { b.refused.Store(n) }

// Refused reports whether the bucket is empty and a caller was refused since the last step, and
// when to come back.
func (b *Bucket) Refused() (next time.Time, yes bool) {
	if b.avail.Load() > 0 || b.refused.Load() <= 0 {
		return never, false
	}
	return *b.next.Load(), true
}

// Next is when a refused caller may come back.
func (b *Bucket) Next() time.Time { return *b.next.Load() }

// SetNext sets when a refused caller may come back.
func (b *Bucket) SetNext(t time.Time) { b.next.Store(&t) }

// HeldBack notes that a held grant has given permits back.
func (b *Bucket) HeldBack() { b.heldBack.Store(true) }

// UsableUntil is when the strict slot last released may be used no more, since the engine's start.
func (b *Bucket) UsableUntil() time.Duration { return time.Duration(b.usableUntil.Load()) }

// FullUntil is before when a caller that does not wait would find no free strict slot, since the
// engine's start.
func (b *Bucket) FullUntil() time.Duration { return time.Duration(b.fullUntil.Load()) }

// Waste counts n strict slots that their callers came to too late.
func (b *Bucket) Waste(n int64) { b.wasted.Add(n) }

// Unused gives back a strict slot that was taken at that step of the loop. The next step puts it
// back if it may still be used then.
func (b *Bucket) Unused(step uint64) {
	if b.unused.Swap(step+1) != 0 {
		b.Waste(1) // of two since the last step, only the later one may still be used
	}
}

// held is what is allocated and unspent.
func (b *Bucket) held() int64 {
	n := b.Available()
	for i := range b.batches {
		n += b.batches[i].left
	}
	return n
}

// unreleased counts the batches that still have permits to release.
func (b *Bucket) unreleased() (n int) {
	for i := range b.batches {
		if b.batches[i].left > 0 {
			n++
		}
	}
	return n
}

// current is the batch whose permits are released next, or nil.
func (b *Bucket) current() *batch {
	for i := range b.batches {
		if b.batches[i].left > 0 {
			return &b.batches[i]
		}
	}
	return nil
}

// upcoming is the batch that has not started, or nil.
func (b *Bucket) upcoming(now float64) *batch {
	if n := len(b.batches); n > 0 && b.batches[n-1].started == 0 && b.batches[n-1].due > now {
		return &b.batches[n-1]
	}
	return nil
}

// supply puts k permits into the counter; a negative k is taken out, and may leave a debt.
func (b *Bucket) supply(k int64) {
	b.stock.Load().release(k)
	b.put += k
	b.avail.Add(k)
}

// withdraw takes up to n permits out of the counter again.
func (b *Bucket) withdraw(n int64) int64 {
	got := b.Take(n)
	b.stock.Load().release(-got)
	b.put -= got
	return got
}

// release moves what is due into the counter. If the loop is late by more than grace, as after a
// pause of the process, permits that are overdue by more than that are lost.
func (b *Bucket) release(t Time, grace float64) {
	for i := range b.batches {
		batch := &b.batches[i]
		if batch.left == 0 {
			continue
		}
		batch.due = max(batch.due, b.end)
		if oldest := t.Now - grace; t.Late > grace && batch.due < oldest {
			b.lost += batch.skip(oldest)
		}
		if k := batch.skip(t.Now); k > 0 {
			if batch.started == 0 {
				batch.started = t.Now
				b.noteStart(t.Step)
			}
			b.supply(k)
		}
		if batch.left > 0 {
			return
		}
		b.end = batch.due
	}
}

// outdated lets no grants be returned any more that were taken before that step.
func (b *Bucket) outdated(step uint64) { b.since.Store(max(b.since.Load(), step)) }

// noteStart notes that a batch starts: only grants taken since the last but two started may be
// returned from now on.
func (b *Bucket) noteStart(step uint64) {
	b.outdated(b.starts[0])
	b.starts = [2]uint64{b.starts[1], step}
}

// void wastes all permits.
func (b *Bucket) void() {
	b.lost += b.held()
	b.withdraw(b.Available())
	b.batches, b.end, b.lastN = nil, math.Inf(-1), 0
}

// skip passes over the permits that are due by then, and returns how many they are.
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

// age drops the batches that are spent, and takes out those that have expired: their unspent
// permits go back with the next request, if that is sent within a round. If the loop comes later
// than that, as after a pause of the process, their slots are over, and they are lost.
func (b *Bucket) age(now, round float64) {
	for len(b.batches) > 0 {
		oldest := &b.batches[0]
		younger := int64(0) // the oldest permits are spent first
		for _, y := range b.batches[1:] {
			younger += y.n - y.left
		}
		unspent := min(oldest.n-oldest.left, max(0, b.avail.Load()-younger))
		spent := unspent == 0 && oldest.left == 0
		if now < oldest.expires && !spent {
			break
		}
		if spent && now-oldest.started < round/2 {
			b.quick = float64(oldest.n)
		}
		if n := b.withdraw(unspent) + oldest.left; now <= oldest.expires+round {
			b.expire(now, n)
		} else {
			b.lost += n
		}
		b.batches = slices.Delete(b.batches, 0, 1)
	}
	if stray := b.avail.Load(); len(b.batches) > 0 || stray <= 0 {
		b.strayAt = now
	} else if now > b.strayAt+max(round, b.strayLife) { // given back too late, and not wanted
		b.expire(now, b.withdraw(stray))
	}
	if b.expired > 0 && now > b.expiredAt+round {
		b.lost += b.expired
		b.expired = 0
	}
}

// expire notes n permits for the next request.
func (b *Bucket) expire(now float64, n int64) {
	if n > 0 {
		b.expired += n
		b.expiredAt = now
	}
}

// cancel lets the batch that has not started expire. The one before it was spread until then, and
// now goes on at its own pace.
func (b *Bucket) cancel(now float64) {
	next := b.upcoming(now)
	if next == nil {
		return
	}
	b.expire(now, next.left)
	b.batches = b.batches[:len(b.batches)-1]
	b.end = min(b.end, now+1/b.rate)
	if running := b.current(); running != nil && running.started > 0 {
		running.gap = running.minGap
		running.due = min(running.due, now+running.gap)
	}
}

// clear lets all permits expire. The slots of the next ones may begin where those of these began.
func (b *Bucket) clear(now float64) {
	n := b.withdraw(b.Available())
	for i := range b.batches {
		n += b.batches[i].left
	}
	b.batches, b.lastN = nil, 0
	b.expire(now, n)
	if b.end > now && b.rate > 0 {
		b.end = max(now, b.end-float64(n)/b.rate)
	}
}

// changeRate releases what is allocated at another rate from now on.
func (b *Bucket) changeRate(now, rate float64) {
	if b.rate > 0 {
		f := b.rate / rate
		for i := range b.batches {
			batch := &b.batches[i]
			batch.gap *= f
			batch.minGap *= f
			if batch.due > now {
				batch.due = now + (batch.due-now)*f
			}
		}
		if b.end > now {
			b.end = now + (b.end-now)*f
		}
	}
	b.rate = rate
}

// add puts a batch of n permits behind the others. Its slots begin at due, gap apart; the running
// batch then spreads what it has left until they begin. Unspent permits expire a round and then
// life after their begin, or after requested if that is later.
func (b *Bucket) add(n int64, due, gap, requested, life, round float64) {
	next := batch{n: n, left: n, due: max(due, b.end), gap: gap, minGap: gap}
	if k := len(b.batches); k > 0 && b.batches[k-1].left > 0 {
		running := &b.batches[k-1]
		next.due = max(next.due, running.due+float64(running.left)*running.minGap)
		running.gap = max(running.minGap, (next.due-running.due)/float64(running.left))
		running.expires = max(running.expires, next.due+round)
	}
	next.expires = max(next.due, requested) + life + round
	b.quick, b.lastDue, b.lastN = 0, next.due, n
	b.batches = append(b.batches, next)
}

// spread releases the last batch a gap apart, until the next one is there.
func (b *Bucket) spread(gap float64) {
	last := &b.batches[len(b.batches)-1]
	last.gap = max(last.gap, gap)
}

// wakeAt is when the bucket has something to do.
func (b *Bucket) wakeAt(round float64) float64 {
	at := math.Inf(1)
	if running := b.current(); running != nil {
		at = running.due
	}
	if len(b.batches) > 0 {
		at = min(at, b.batches[0].expires)
	} else if b.avail.Load() > 0 {
		at = min(at, b.strayAt+max(round, b.strayLife))
	}
	if b.expired > 0 {
		at = min(at, b.expiredAt+round)
	}
	return at
}
