package sharing

import (
	"math"
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

	// Engine.mu guards the rest.
	batches    []batch   // in the order of their slots; see batch
	end        float64   // when the last batch released ends, a gap after its last permit
	lastDue    float64   // when the last batch that was added begins
	lastN      int64     // its permits
	rate       float64   // permits a second at which batches are released
	starts     [2]uint64 // the steps at which the last two batches started
	quick      float64   // permits in the last batch, if it was spent in under half a round; else 0
	put        int64     // permits put into avail by the loop, all time, less those taken out again
	toReturn   int64     // permits that go back with the next request
	toReturnAt float64   // since when
	strayAt    float64   // the last time at which the counter was empty or a batch was there
	strayLife  float64   // seconds from strayAt until the counter's permits expire; a round at least
	lost       int64     // permits that expired and did not go back, all time
}

// A Time is the time of a step of the loop.
type Time struct {
	Now  float64
	Step uint64  // counts the loop's steps
	Late float64 // how far the loop runs behind schedule, seconds
}

// sinceStart is the time since the engine's start of a time on its clock, which starts at 1.
func sinceStart(at float64) time.Duration { return time.Duration((at - 1) * 1e9) }

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

// TakeAll takes n permits or none. One permit is taken by a single atomic add, which is undone if
// there was none. For several it looks first: an add that is to be undone would leave the counter
// far too low for other callers meanwhile.
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

// A shadowed counts what passes a limit whose mode is shadow. Any goroutine may use it.
type shadowed struct {
	messages atomic.Int64 // that passed without a permit, all time
	permits  atomic.Int64 // that they lacked, all time
	unused   atomic.Int64 // permits of messages that passed and were not used: the next ones use them
}

// takeUnused takes up to n unused permits, and returns what is left of n.
func (s *shadowed) takeUnused(n int64) int64 {
	for {
		unused := s.unused.Load()
		took := min(n, unused)
		if took == 0 || s.unused.CompareAndSwap(unused, unused-took) {
			return n - took
		}
	}
}

// used is how many permits were used beyond those taken, all time.
func (s *shadowed) used() int64 { return s.permits.Load() - s.unused.Load() }

// Pass takes the permits of n messages in shadow mode as far as there are some, and reports whether
// they were there. Those that were not count as demand.
func (b *Bucket) Pass(n int64) bool {
	n = b.shadow.takeUnused(n)
	missing := n - b.Take(n)
	return b.lack(missing, missing)
}

// PassBytes is Pass for n messages of that many bytes: one byte is enough for all of them, as it is
// for Charge.
func (b *Bucket) PassBytes(n, bytes int64) bool {
	bytes = b.shadow.takeUnused(bytes)
	if bytes == 0 || b.Charge(bytes) {
		return true
	}
	return b.lack(n, bytes)
}

// Unpass gives up permits of messages that passed in shadow mode and were not used. They are no
// permits that callers could take, since nobody may have allocated them; but as many of the next
// messages do not count.
func (b *Bucket) Unpass(permits int64) { b.shadow.unused.Add(permits) }

func (b *Bucket) lack(messages, permits int64) (enough bool) {
	if permits == 0 {
		return true
	}
	b.refused.Add(permits)
	b.shadow.permits.Add(permits)
	b.shadow.messages.Add(messages)
	return false
}

// Refuse notes that n permits were refused: demand for the next step. Of several refusals between
// two steps the last one counts, which is most likely the same caller's.
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
