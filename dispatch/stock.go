package dispatch

import (
	"math"
	"slices"
	"sync/atomic"
)

// A stock is the permits of one limit that this process has allocated: a counter that callers take from, and
// behind it the batches, which the Limiter's loop releases into the counter when their slots have come.
// Times are seconds on the Limiter's clock.
type stock struct {
	since    atomic.Uint64 // the step of the loop at which the last batch but two began: older grants give nothing back
	returned atomic.Int64  // permits given back by callers, all time
	owed     atomic.Int64  // permits used beyond those granted, all time

	// The counter has a cache line of its own, since all callers write to it.
	_     [64]byte
	avail atomic.Int64 // released and not taken; below zero: a debt
	_     [56]byte

	// The rest belongs to the loop.
	batches   []batch   // the older ones, released but not spent; the running one; the next
	end       float64   // when the last batch released ends, a gap after its last permit: none begins before
	rate      float64   // permits a second at which batches are released
	begins    [2]uint64 // the steps at which the last two batches began
	quick     float64   // permits in the last batch, if that was gone in under half a round; else 0
	put       int64     // permits put into avail by the loop, all time, less those taken out again
	expired   int64     // permits that go back with the next allocation
	expiredAt float64   // since when
	strayAt   float64   // the last time at which the counter was empty or a batch was there
	lapsed    int64     // permits wasted, all time
}

// A batch is what one allocation got.
type batch struct {
	n, left  int64   // permits; those not yet released
	due, gap float64 // of the next permit; between two
	least    float64 // gap
	begun    float64 // when its first permit was released; 0 = not yet
	expires  float64
}

// take takes up to n permits, and says how many it got.
func (s *stock) take(n int64) int64 {
	for {
		have := s.avail.Load()
		got := min(n, max(0, have))
		if got == 0 || s.avail.CompareAndSwap(have, have-got) {
			return got
		}
	}
}

// charge takes n permits, if at least one is there: the rest is a debt.
func (s *stock) charge(n int64) bool {
	for {
		have := s.avail.Load()
		if have <= 0 || s.avail.CompareAndSwap(have, have-n) {
			return have > 0
		}
	}
}

// giveBack puts back what was taken and not used; a negative n is a debt.
func (s *stock) giveBack(n int64) {
	s.avail.Add(n)
	if n > 0 {
		s.returned.Add(n)
	} else {
		s.owed.Add(-n)
	}
}

// forgive is giveBack for permits whose slots are long over: they only shorten a debt.
func (s *stock) forgive(n int64) {
	for {
		debt := s.debt()
		if debt == 0 || s.avail.CompareAndSwap(-debt, -debt+min(n, debt)) {
			return
		}
	}
}

// fresh says that a grant taken at that step may still give back: what is older would come too late.
func (s *stock) fresh(step uint64) bool { return step >= s.since.Load() }

// ready is what can be taken now.
func (s *stock) ready() int64 { return max(0, s.avail.Load()) }

// debt is what was used beyond what was granted.
func (s *stock) debt() int64 { return max(0, -s.avail.Load()) }

// held is what is allocated and unspent.
func (s *stock) held() int64 {
	n := s.ready()
	for i := range s.batches {
		n += s.batches[i].left
	}
	return n
}

// running counts the batches that still have permits to release.
func (s *stock) running() (n int) {
	for i := range s.batches {
		if s.batches[i].left > 0 {
			n++
		}
	}
	return n
}

// current is the batch whose permits are released next, or nil.
func (s *stock) current() *batch {
	for i := range s.batches {
		if s.batches[i].left > 0 {
			return &s.batches[i]
		}
	}
	return nil
}

// upcoming is the batch that has not begun, or nil.
func (s *stock) upcoming(now float64) *batch {
	if n := len(s.batches); n > 0 && s.batches[n-1].begun == 0 && s.batches[n-1].due > now {
		return &s.batches[n-1]
	}
	return nil
}

// supply puts k permits into the counter; a negative k is taken out, and may leave a debt.
func (s *stock) supply(k int64) {
	s.put += k
	s.avail.Add(k)
}

// withdraw takes up to n permits out of the counter again.
func (s *stock) withdraw(n int64) int64 {
	got := s.take(n)
	s.put -= got
	return got
}

// release moves what is due into the counter. Of a loop that is late by more than grace,
// as after a pause of the process, what is overdue by more than that is lost.
func (s *stock) release(step uint64, now, late, grace float64) {
	for i := range s.batches {
		b := &s.batches[i]
		if b.left == 0 {
			continue
		}
		b.due = max(b.due, s.end)
		if oldest := now - grace; late > grace && b.due < oldest {
			s.lapsed += b.skip(oldest)
		}
		if k := b.skip(now); k > 0 {
			if b.begun == 0 {
				b.begun = now
				s.begin(step)
			}
			s.supply(k)
		}
		if b.left > 0 {
			return
		}
		s.end = b.due
	}
}

// begin notes that a batch begins: only grants since the last but two may give back from now on.
func (s *stock) begin(step uint64) {
	s.since.Store(s.begins[0])
	s.begins = [2]uint64{s.begins[1], step}
}

// void wastes everything.
func (s *stock) void() {
	s.lapsed += s.held()
	s.withdraw(s.ready())
	s.batches, s.end = nil, math.Inf(-1)
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
// unspent of them goes back with the next allocation, if that comes within a round.
func (s *stock) age(now, round float64) {
	for len(s.batches) > 0 {
		b := &s.batches[0]
		younger := int64(0) // the oldest are spent first
		for _, y := range s.batches[1:] {
			younger += y.n - y.left
		}
		unspent := min(b.n-b.left, max(0, s.avail.Load()-younger))
		spent := unspent == 0 && b.left == 0
		if now < b.expires && !spent {
			break
		}
		if spent && now-b.begun < round/2 {
			s.quick = float64(b.n)
		}
		s.expire(now, s.withdraw(unspent)+b.left)
		s.batches = slices.Delete(s.batches, 0, 1)
	}
	if stray := s.avail.Load(); len(s.batches) > 0 || stray <= 0 {
		s.strayAt = now
	} else if now > s.strayAt+round { // given back after their batch was spent, and wanted by nobody
		s.expire(now, s.withdraw(stray))
	}
	if s.expired > 0 && now > s.expiredAt+round {
		s.lapsed += s.expired
		s.expired = 0
	}
}

// expire notes n permits for the next allocation.
func (s *stock) expire(now float64, n int64) {
	if n > 0 {
		s.expired += n
		s.expiredAt = now
	}
}

// cancel lets the batch that has not begun expire.
func (s *stock) cancel(now float64) {
	if b := s.upcoming(now); b != nil {
		s.expire(now, b.left)
		s.batches = s.batches[:len(s.batches)-1]
	}
}

// clear lets everything expire.
func (s *stock) clear(now float64) {
	n := s.withdraw(s.ready())
	for i := range s.batches {
		n += s.batches[i].left
	}
	s.batches = nil
	s.expire(now, n)
}

// changeRate has what is allocated go on at another rate at once.
func (s *stock) changeRate(now, rate float64) {
	if s.rate > 0 {
		f := s.rate / rate
		for i := range s.batches {
			b := &s.batches[i]
			b.gap *= f
			b.least *= f
			if b.due > now {
				b.due = now + (b.due-now)*f
			}
		}
		if s.end > now {
			s.end = now + (s.end-now)*f
		}
	}
	s.rate = rate
}

// add puts n permits whose slots begin at due, gap apart, behind the others; the running batch then spreads what it has left until
// they begin. Unspent, they expire a round and then life after their begin, or after called if that is later.
func (s *stock) add(n int64, due, gap, called, life, round float64) {
	b := batch{n: n, left: n, due: max(due, s.end), gap: gap, least: gap}
	if k := len(s.batches); k > 0 && s.batches[k-1].left > 0 {
		running := &s.batches[k-1]
		b.due = max(b.due, running.due+float64(running.left)*running.least)
		running.gap = max(running.least, (b.due-running.due)/float64(running.left))
		running.expires = max(running.expires, b.due+round)
	}
	b.expires = max(b.due, called) + life + round
	s.quick = 0
	s.batches = append(s.batches, b)
}

// wakeAt is when the stock has something to do.
func (s *stock) wakeAt(round float64) float64 {
	at := math.Inf(1)
	if b := s.current(); b != nil {
		at = b.due
	}
	if len(s.batches) > 0 {
		at = min(at, s.batches[0].expires)
	} else if s.avail.Load() > 0 {
		at = min(at, s.strayAt+round)
	}
	if s.expired > 0 {
		at = min(at, s.expiredAt+round)
	}
	return at
}
