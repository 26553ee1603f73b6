package sharing

import (
	"math"
	"slices"
)

// Unspent is how many permits are allocated and not spent. Concurrent callers may make it less.
func (b *Bucket) Unspent() int64 {
	n := b.Available()
	for i := range b.batches {
		n += b.batches[i].left
	}
	return n
}

// unreleased counts the batches that still have permits to release.
func (b *Bucket) unreleased() (n int) {
	for i := range b.batches {
		if b.batches[i].state != released {
			n++
		}
	}
	return n
}

// current is the batch whose permits are released next, or nil.
func (b *Bucket) current() *batch {
	for i := range b.batches {
		if b.batches[i].state != released {
			return &b.batches[i]
		}
	}
	return nil
}

// upcoming is the batch that has not started and whose time has not come, or nil.
func (b *Bucket) upcoming(now float64) *batch {
	if n := len(b.batches); n > 0 && b.batches[n-1].state == toCome && b.batches[n-1].due > now {
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
		if batch.state == released {
			continue
		}
		batch.due = max(batch.due, b.end)
		if oldest := t.Now - grace; t.Late > grace && batch.due < oldest {
			b.lost += batch.skip(oldest)
		}
		k, starts := batch.release(t.Now)
		if starts {
			b.noteStart(t.Step)
		}
		if k > 0 {
			b.supply(k)
		}
		if batch.state != released {
			return
		}
		b.end = batch.due
	}
}

// outdateBefore lets no grants be returned any more that were taken before that step.
func (b *Bucket) outdateBefore(step uint64) { b.freshFrom.Store(max(b.freshFrom.Load(), step)) }

// noteStart notes that a batch starts: only grants taken since the second batch before it started
// may be returned from now on.
func (b *Bucket) noteStart(step uint64) {
	b.outdateBefore(b.starts[0])
	b.starts = [2]uint64{b.starts[1], step}
}

// void loses all permits.
func (b *Bucket) void() {
	b.lost += b.Unspent()
	b.withdraw(b.Available())
	b.batches, b.end, b.lastN = nil, math.Inf(-1), 0
}

// keep lets permits expire no sooner than at that time: their callers wait until then for the slot
// of a strict limit. Others that were requested in their place could come too late for it.
func (b *Bucket) keep(until float64) {
	for i := range b.batches {
		b.batches[i].expires = max(b.batches[i].expires, until)
	}
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
		spent := unspent == 0 && oldest.state == released
		if now < oldest.expires && !spent {
			break
		}
		if spent && now-oldest.started < round/2 {
			b.quick = float64(oldest.n)
		}
		n := b.withdraw(unspent) + oldest.left
		if now <= oldest.expires+round {
			b.giveBackLater(now, n)
		} else {
			b.lost += n
		}
		b.batches = slices.Delete(b.batches, 0, 1)
	}
	if stray := b.avail.Load(); len(b.batches) > 0 || stray <= 0 {
		b.strayAt = now
	} else if now > b.strayAt+max(round, b.strayLife) { // given back too late, and not wanted
		b.giveBackLater(now, b.withdraw(stray))
	}
	if b.toStore > 0 && now > b.toStoreAt+round {
		b.lost += b.toStore
		b.toStore = 0
	}
}

// giveBackLater notes n permits that go back to the store with the next request.
func (b *Bucket) giveBackLater(now float64, n int64) {
	if n > 0 {
		b.toStore += n
		b.toStoreAt = now
	}
}

// cancel gives the batch that has not started back with the next request. The one before it was
// spread until then, and now goes on at its own pace.
func (b *Bucket) cancel(now float64) {
	next := b.upcoming(now)
	if next == nil {
		return
	}
	b.giveBackLater(now, next.left)
	b.batches = b.batches[:len(b.batches)-1]
	b.end = min(b.end, now+1/b.rate)
	if last := b.current(); last != nil && last.state == running {
		last.hasten(now)
	}
}

// clear gives all permits back with the next request. The slots of the next ones may begin where
// those of these began.
func (b *Bucket) clear(now float64) {
	n := b.withdraw(b.Available())
	for i := range b.batches {
		n += b.batches[i].left
	}
	b.batches, b.lastN = nil, 0
	b.giveBackLater(now, n)
	if b.end > now && b.rate > 0 {
		b.end = max(now, b.end-float64(n)/b.rate)
	}
}

// changeRate releases what is allocated at another rate from now on.
func (b *Bucket) changeRate(now, rate float64) {
	if b.rate > 0 {
		f := b.rate / rate
		for i := range b.batches {
			b.batches[i].stretch(now, f)
		}
		if b.end > now {
			b.end = now + (b.end-now)*f
		}
	}
	b.rate = rate
}

// add puts a batch behind the others. Its slots begin at its due time at the earliest; the running
// batch then spreads what it has left until they begin.
func (b *Bucket) add(next batch, round float64) {
	next.left, next.minGap, next.due = next.n, next.gap, max(next.due, b.end)
	if k := len(b.batches); k > 0 && b.batches[k-1].state != released {
		last := &b.batches[k-1]
		next.due = max(next.due, last.end())
		last.spreadUntil(next.due)
		last.expires = max(last.expires, next.due+round)
	}
	next.setExpiry(round)
	b.quick, b.lastDue, b.lastN = 0, next.due, next.n
	b.batches = append(b.batches, next)
}

// spread releases the last batch a gap apart, until the next one is there.
func (b *Bucket) spread(gap float64) {
	last := &b.batches[len(b.batches)-1]
	last.gap = max(last.gap, gap)
}

// dueAt is when the bucket has something to do.
func (b *Bucket) dueAt(round float64) float64 {
	at := math.Inf(1)
	if current := b.current(); current != nil {
		at = current.due
	}
	if len(b.batches) > 0 {
		at = min(at, b.batches[0].expires)
	} else if b.avail.Load() > 0 {
		at = min(at, b.strayAt+max(round, b.strayLife))
	}
	if b.toStore > 0 {
		at = min(at, b.toStoreAt+round)
	}
	return at
}
