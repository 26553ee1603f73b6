package sharing

// A batch is the permits of one allocation. In a bucket, the batches that are released come first,
// then one at most that is running, then those to come.
type batch struct {
	state     batchState
	n, left   int64   // permits; those not yet released
	due       float64 // of the next permit
	gap       float64 // between two permits
	minGap    float64 // the limit's own gap
	requested float64 // when it was
	life      float64 // how long its permits may lie unspent, seconds; see setExpiry
	started   float64 // when its first permit was released; 0 = not yet
	expires   float64 // when unspent permits do
}

// A batchState is where a batch is in its life.
type batchState int

const (
	toCome   batchState = iota // no permit is released
	running                    // some are
	released                   // none is left to be released; callers take them until they expire
)

func (s batchState) String() string {
	return [...]string{"to come", "running", "released"}[s]
}

// release marks the permits that are due by now as released, and returns how many they are. starts
// reports whether the first one of the batch is among them.
func (b *batch) release(now float64) (k int64, starts bool) {
	starts = b.state == toCome
	if k = b.skip(now); k == 0 {
		return 0, false
	}
	if starts {
		b.started = now
		if b.state == toCome { // not all at once
			b.state = running
		}
	}
	return k, starts
}

// skip takes the permits that are due by then off those left, and returns how many they are: they
// are released, or lost.
func (b *batch) skip(then float64) int64 {
	if b.left == 0 || b.due > then {
		return 0
	}
	k := b.left
	if due := (then - b.due) / b.gap; due < float64(b.left) {
		k = min(k, int64(due)+1)
	}
	b.due += float64(k) * b.gap
	if b.left -= k; b.left == 0 {
		b.state = released
	}
	return k
}

// end is when the next batch may begin: a gap of the limit's own after the last permit.
func (b *batch) end() float64 { return b.due + float64(b.left)*b.minGap }

// spreadUntil releases what is left evenly until then, or at the limit's own gap if that is later.
func (b *batch) spreadUntil(then float64) {
	b.gap = max(b.minGap, (then-b.due)/float64(b.left))
}

// hasten goes back to the limit's own gap.
func (b *batch) hasten(now float64) {
	b.gap = b.minGap
	b.due = min(b.due, now+b.gap)
}

// setExpiry sets when unspent permits expire: a round and life after the batch begins, or after it
// was requested if that is later.
func (b *batch) setExpiry(round float64) { b.expires = max(b.due, b.requested) + b.life + round }

// stretch makes what is left last f times as long.
func (b *batch) stretch(now, f float64) {
	b.gap *= f
	b.minGap *= f
	if b.due > now {
		b.due = now + (b.due-now)*f
	}
}

// finish leaves nothing to be released.
func (b *batch) finish() { b.left, b.state = 0, released }

// recall takes back n permits that were released and not taken: they are to come again.
func (b *batch) recall(n int64) {
	if b.left += n; b.left > 0 {
		b.state = toCome
	}
}
