package sharing

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A heldBucket is a bucket from which permits were taken and are held.
type heldBucket struct{ Bucket }

const ms = time.Millisecond

// at brings the bucket to now, and reports whether callers hold too much.
func (b *heldBucket) at(now time.Duration, share float64, shareAt time.Duration) (full bool) {
	return b.stock.Load().full(now, share, shareAt)
}

// hold takes n permits that are released now, and holds them until then.
func (b *heldBucket) hold(n int64, now, until time.Duration) {
	b.supply(n)
	b.again(n, now, until)
}

// again takes n permits of the counter, and holds them until then.
func (b *heldBucket) again(n int64, now, until time.Duration) {
	b.Take(n)
	b.Hold(n, now, until)
}

// twice is hold for a second of ten permits that are given back, and taken again until 1.95 s.
func (b *heldBucket) twice() {
	b.hold(10, 0, 1000*ms)
	b.EndHold(10, 10, 950*ms, 1000*ms)
	b.again(10, 950*ms, 1950*ms)
}

// TestEndHold: what was held and not used goes back into the counter as far as it is no more, with
// what is held, than was released within the longest Hold, or than most of the share of that time.
func TestEndHold(t *testing.T) {
	for name, c := range map[string]struct {
		run   func(b *heldBucket)
		avail int64
	}{
		"before its end": {func(b *heldBucket) {
			b.hold(10, 0, 1000*ms)
			b.EndHold(10, 10, 950*ms, 1000*ms)
		}, 10},
		"after its end": {func(b *heldBucket) {
			b.hold(10, 0, 1000*ms)
			b.EndHold(10, 10, 1001*ms, 1000*ms)
		}, 0},
		"a part": {func(b *heldBucket) {
			b.hold(10, 0, 1000*ms)
			b.EndHold(10, 4, 950*ms, 1000*ms)
		}, 4},
		"too many were used": {func(b *heldBucket) {
			b.hold(10, 0, 1000*ms)
			b.EndHold(10, -5, 950*ms, 1000*ms)
		}, -5},
		"to a debt, after its end": {func(b *heldBucket) {
			b.hold(10, 0, 1000*ms)
			b.Return(-6)
			b.EndHold(10, 10, 1001*ms, 1000*ms)
		}, 0},
		"held twice": {func(b *heldBucket) {
			b.twice()
			b.EndHold(10, 10, 1900*ms, 1950*ms)
		}, 0},
		"held twice, and new ones": {func(b *heldBucket) {
			b.twice()
			b.at(1500*ms, 0, 0)
			b.hold(4, 1500*ms, 2500*ms)
			b.EndHold(10, 10, 1900*ms, 1950*ms)
		}, 0},
		"held twice, and new ones used": {func(b *heldBucket) {
			b.twice()
			b.at(1500*ms, 0, 0)
			b.hold(4, 1500*ms, 2500*ms)
			b.EndHold(4, 0, 1600*ms, 2500*ms)
			b.EndHold(10, 10, 1900*ms, 1950*ms)
		}, 4},
		"held twice, of a share": {func(b *heldBucket) {
			b.twice()
			b.at(1400*ms, 8, 1310*ms)
			b.EndHold(10, 10, 1900*ms, 1950*ms)
		}, 6},
		"held twice, of an old share": {func(b *heldBucket) {
			b.twice()
			b.at(1400*ms, 8, 1290*ms)
			b.EndHold(10, 10, 1900*ms, 1950*ms)
		}, 0},
		"a shorter Hold after a long one": {func(b *heldBucket) {
			b.hold(10, 0, 3000*ms)
			b.EndHold(10, 10, 2900*ms, 3000*ms)
			b.again(10, 2900*ms, 3000*ms)
			b.EndHold(10, 10, 2990*ms, 3000*ms)
		}, 10},
		"a shorter Hold, long after": {func(b *heldBucket) {
			b.hold(1, 0, 3000*ms)
			b.EndHold(1, 0, 100*ms, 3000*ms)
			b.at(6010*ms, 0, 0)
			b.hold(10, 6010*ms, 6110*ms)
			b.EndHold(10, 10, 6100*ms, 6110*ms)
			b.again(10, 6100*ms, 6200*ms)
			b.EndHold(10, 10, 6190*ms, 6200*ms)
			b.again(10, 6200*ms, 6300*ms)
			b.EndHold(10, 10, 6290*ms, 6300*ms)
		}, 0},
		"a forgotten Grant": {func(b *heldBucket) {
			b.hold(10, 0, 1000*ms)
			b.at(1060*ms, 0, 0)
			b.hold(10, 1060*ms, 2060*ms)
			b.EndHold(10, 10, 2010*ms, 2060*ms)
		}, 10},
	} {
		t.Run(name, func(t *testing.T) {
			b := &heldBucket{}
			c.run(b)
			assert.Equal(t, c.avail, b.avail.Load())
			assert.Equal(t, c.avail > 0, b.holdReturned.Load() && b.avail.Load() > 0, "the loop is told")
		})
	}
}

// TestFull: nothing is requested while more is held than was released within the longest Hold.
func TestFull(t *testing.T) {
	b := &heldBucket{}
	assert.False(t, b.at(0, 0, 0), "nothing was ever held")
	b.hold(10, 0, 1000*ms)
	assert.False(t, b.at(500*ms, 0, 0))
	b.EndHold(10, 10, 950*ms, 1000*ms)
	b.again(10, 950*ms, 1950*ms)
	assert.False(t, b.at(1000*ms, 0, 0))
	assert.True(t, b.at(1200*ms, 0, 0), "the permits are older than a second")
	assert.True(t, b.at(1200*ms, 13, 1190*ms))
	assert.False(t, b.at(1200*ms, 14, 1190*ms), "three quarters of the share of a second")
	assert.True(t, b.at(1200*ms, 14, 590*ms), "it was told long ago")
	b.EndHold(10, 10, 1300*ms, 1950*ms)
	assert.False(t, b.at(1300*ms, 0, 0))
}

// TestFullRequestsNothing, and waits until something is used, given back or too old.
func TestFullRequestsNothing(t *testing.T) {
	w := newWorld()
	c, f := fairShare(w)
	c.Hold(5, 0, time.Second)
	waits := Demand{Waiting: 1, Anybody: true, Callers: 1}
	c.Advance(Time{Now: 1.5}, waits)
	assert.NotNil(t, c.Next(1.5, waits))
	f.pending = false
	c.Hold(500, 500*ms, 1500*ms)
	c.Advance(Time{Now: 1.6}, waits)
	assert.Nil(t, c.Next(1.6, waits))
	assert.LessOrEqual(t, c.WakeAt(1.6), 1.6+stockTick.Seconds())
	c.EndHold(500, 0, 650*ms, 1500*ms)
	c.Advance(Time{Now: 1.7}, waits)
	assert.NotNil(t, c.Next(1.7, waits))
}
