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
	returned atomic.Int64 // permits that callers gave back to the counter, all time
	owed     atomic.Int64 // permits used beyond those granted, all time
	_        [40]byte

	// Callers read these. The loop writes them now and then.
	freshFrom    atomic.Uint64             // grants of steps before it are too old to be returned
	refused      atomic.Int64              // permits that were refused since the last step
	next         atomic.Pointer[time.Time] // when a refused caller may come back: no clock read for it
	holdReturned atomic.Bool               // a held grant gave permits back since the last step
	slotBack     atomic.Uint64             // strict: 1 + the step at which a returned slot was taken
	shadow       shadowed                  // what passed in shadow mode
	stock        atomic.Pointer[stock]     // nil if nothing was ever held

	// Of strict slots; times are ns since the engine's start.
	usableUntil atomic.Int64 // when the slot last released expires; 0 = none yet
	fullUntil   atomic.Int64 // a caller that does not wait finds no free slot before
	wasted      atomic.Int64 // slots that their callers came to too late, all time

	// Engine.mu guards the rest.
	batches   []batch   // in the order of their slots; see batch
	end       float64   // when the last batch released ends, a gap after its last permit
	lastDue   float64   // when the last batch that was added begins
	lastN     int64     // its permits
	rate      float64   // permits a second of the whole limit, as last told: batches have this pace
	starts    [2]uint64 // the steps at which the last two batches started
	quick     float64   // permits of the last batch, if spent within half a round; else 0
	put       int64     // permits put into avail by the loop, all time, less those taken out again
	toStore   int64     // permits that go back with the next request
	toStoreAt float64   // since when
	strayAt   float64   // permits in the counter without a batch are stray since then
	strayLife float64   // how long until they go back, seconds; a round if that is longer
	lost      int64     // permits that expired and did not go back, all time
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
func (b *Bucket) Fresh(step uint64) bool { return step >= b.freshFrom.Load() }

// Available is how many permits can be taken now.
func (b *Bucket) Available() int64 { return max(0, b.avail.Load()) }

// Debt is what was used beyond what was granted.
func (b *Bucket) Debt() int64 { return max(0, -b.avail.Load()) }

// Empty reports whether no permit can be taken now.
func (b *Bucket) Empty() bool { return b.avail.Load() <= 0 }

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

// UsableUntil is when the strict slot last released may be used no more, since the engine's start.
func (b *Bucket) UsableUntil() time.Duration { return time.Duration(b.usableUntil.Load()) }

// FullUntil is before when a caller that does not wait would find no free strict slot, since the
// engine's start.
func (b *Bucket) FullUntil() time.Duration { return time.Duration(b.fullUntil.Load()) }

// Waste counts n strict slots that their callers came to too late.
func (b *Bucket) Waste(n int64) { b.wasted.Add(n) }

// GiveSlotBack gives back a strict slot that was taken at that step of the loop. The next step puts
// it back if it may still be used then.
func (b *Bucket) GiveSlotBack(step uint64) {
	if b.slotBack.Swap(step+1) != 0 {
		b.Waste(1) // of two since the last step, only the later one may still be used
	}
}
