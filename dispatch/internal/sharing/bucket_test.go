package sharing

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func newBucket(rate float64) *Bucket {
	b := &Bucket{rate: rate}
	b.init()
	return b
}

// TestCounter: each row is one call of a bucket that has some permits.
func TestCounter(t *testing.T) {
	for _, c := range []struct {
		what        string
		have        int64
		do          func(b *Bucket) any
		want        any
		avail, owed int64
	}{
		{"what there is", 3, func(b *Bucket) any { return b.Take(5) }, int64(3), 0, 0},
		{"no part of a debt", -3, func(b *Bucket) any { return b.Take(5) }, int64(0), -3, 0},
		{"one", 1, func(b *Bucket) any { return b.TakeAll(1) }, true, 0, 0},
		{"one of none", 0, func(b *Bucket) any { return b.TakeAll(1) }, false, 0, 0},
		{"all", 5, func(b *Bucket) any { return b.TakeAll(5) }, true, 0, 0},
		{"too many", 4, func(b *Bucket) any { return b.TakeAll(5) }, false, 4, 0},
		{"a charge goes into debt", 1, func(b *Bucket) any { return b.Charge(5) }, true, -4, 0},
		{"but needs a permit", 0, func(b *Bucket) any { return b.Charge(5) }, false, 0, 0},
		{"and undone", 0, func(b *Bucket) any { b.Untake(5); return b.Empty() }, false, 5, 0},
		{"returned", 0, func(b *Bucket) any { b.Return(2); return b.returned.Load() }, int64(2), 2, 0},
		{"owed", 1, func(b *Bucket) any { b.Return(-3); return b.Debt() }, int64(2), -2, 3},
		{"forgiven", -5, func(b *Bucket) any { b.Forgive(3); return b.Debt() }, int64(2), -2, 0},
		{"at most the debt", -5, func(b *Bucket) any { b.Forgive(8); return b.Debt() }, int64(0), 0, 0},
		{"no debt", 2, func(b *Bucket) any { b.Forgive(8); return b.Available() }, int64(2), 2, 0},
		{"withdrawn", 5, func(b *Bucket) any { return b.withdraw(8) }, int64(5), 0, 0},
	} {
		b := newBucket(10)
		b.supply(c.have)
		assert.Equal(t, c.want, c.do(b), c.what)
		assert.Equal(t, c.avail, b.avail.Load(), c.what)
		assert.Equal(t, c.owed, b.owed.Load(), c.what)
	}
}

func TestRefused(t *testing.T) {
	b := newBucket(10)
	_, yes := b.Refused()
	assert.False(t, yes, "no caller was refused")
	at := time.Unix(5, 0)
	b.SetNext(at)
	b.Refuse(3)
	next, yes := b.Refused()
	assert.True(t, yes)
	assert.Equal(t, at, next)
	b.supply(1)
	_, yes = b.Refused()
	assert.False(t, yes, "there is a permit")
	b.withdraw(1)
	assert.False(t, b.Pass(2))
	assert.False(t, b.PassBytes(1, 3))
	assert.EqualValues(t, 8, b.refused.Load(), "demand")
}

// TestRelease: a batch of ten permits, 10 ms apart from 1 s on, is released into the counter.
func TestRelease(t *testing.T) {
	b := newBucket(100)
	b.receive(10, 1, 0.01, 0.9, 0.1, 0.1)
	assert.EqualValues(t, 10, b.Unspent())
	for _, c := range []struct {
		now, late   float64
		avail, lost int64
	}{
		{0.999, 0, 0, 0},
		{1, 0, 1, 0},
		{1.0099, 0, 1, 0},
		{1.0101, 0, 2, 0},
		{1.0501, 0.01, 6, 0}, // late by less than the grace
		{1.0801, 0.03, 8, 1}, // one was overdue by more than the grace
		{2, 0, 9, 1},
	} {
		b.release(Time{Now: c.now, Late: c.late}, 0.02)
		assert.Equal(t, c.avail, b.Available(), "at %v", c.now)
		assert.Equal(t, c.lost, b.lost, "at %v", c.now)
	}
	b.receive(5, 1.05, 0.01, 1, 0.1, 0.1)
	assert.InDelta(t, 1.1, b.current().due, 1e-9, "a gap after the last permit of the last batch")
}

// TestRunningBatchSpreads: the running batch spreads what it has left until the next one starts.
func TestRunningBatchSpreads(t *testing.T) {
	b := newBucket(100)
	b.receive(10, 1, 0.01, 1, 0.1, 0.1)
	b.release(Time{Now: 1.0401}, 1) // five of them
	expires := b.batches[0].expires
	b.receive(10, 1.3, 0.01, 1.04, 0.1, 0.1)
	running, next := b.current(), b.upcoming(1.05)
	assert.InDelta(t, 0.05, running.gap, 1e-9, "5 permits in the quarter of a second until then")
	assert.InDelta(t, 1.3, next.due, 1e-9)
	assert.Greater(t, running.expires, expires)
	assert.InDelta(t, 1.4, running.expires, 1e-9, "a round after the next starts")
	assert.InDelta(t, 1.5, next.expires, 1e-9, "a life and a round after its start")

	b = newBucket(100)
	b.receive(10, 1, 0.01, 1, 0.1, 0.1)
	b.receive(10, 1.02, 0.01, 1.5, 0.1, 0.1)
	assert.InDelta(t, 1.1, b.batches[1].due, 1e-9, "no overlap: the running batch keeps its gap")
	assert.InDelta(t, 1.7, b.batches[1].expires, 1e-9, "counted from the request, which was later")
}

// TestCancel: a running batch that was spread until the next one goes on at its own pace if that is
// canceled.
func TestCancel(t *testing.T) {
	b := newBucket(100)
	b.receive(10, 1, 0.01, 1, 0.1, 0.1)
	b.release(Time{Now: 1.0401}, 1) // five of them
	b.receive(10, 1.3, 0.01, 1.04, 0.1, 0.1)
	assert.InDelta(t, 0.05, b.current().gap, 1e-9)
	b.cancel(1.06)
	assert.InDelta(t, 0.01, b.current().gap, 1e-9)
	assert.LessOrEqual(t, b.current().due, 1.0701)
	assert.EqualValues(t, 10, b.toStore)
}

func TestUpcoming(t *testing.T) {
	b := newBucket(100)
	assert.Nil(t, b.upcoming(1))
	b.receive(2, 1, 0.01, 1, 0.1, 0.1)
	assert.NotNil(t, b.upcoming(0.9))
	assert.Nil(t, b.upcoming(1), "it starts now")
	b.release(Time{Now: 1}, 1)
	assert.Nil(t, b.upcoming(0.9), "it has started")
	assert.Equal(t, 1, b.unreleased())
	b.receive(2, 1.2, 0.01, 1, 0.1, 0.1)
	assert.Equal(t, 2, b.unreleased())
	b.cancel(1.1)
	assert.EqualValues(t, 2, b.toStore, "they go back")
	assert.Equal(t, 1, b.unreleased())
	b.clear(1.1)
	assert.EqualValues(t, 4, b.toStore, "all of them")
	assert.Zero(t, b.Unspent())
	b.receive(3, 1.2, 0.01, 1, 0.1, 0.1)
	b.release(Time{Now: 1.3}, 1)
	b.void()
	assert.Zero(t, b.Unspent())
	assert.EqualValues(t, 3, b.lost)
	assert.Zero(t, b.put, "no caller has taken any")
	b.receive(3, 1.205, 0.01, 1, 0.1, 0.1)
	assert.InDelta(t, 1.205, b.current().due, 1e-9, "void permits delay nothing")
}

// TestFresh: grants may be returned that were taken since the last batch but two started.
func TestFresh(t *testing.T) {
	b := newBucket(1)
	for i, step := range []uint64{10, 20, 30, 40} {
		b.receive(1, float64(i+1), 1, 0, 100, 1)
		b.release(Time{Now: float64(i + 1), Step: step}, 1)
		oldest := []uint64{0, 0, 10, 20}[i]
		assert.True(t, b.Fresh(oldest), "batch %d", i)
		assert.Equal(t, oldest == 0, b.Fresh(oldest-min(1, oldest)), "batch %d", i)
	}
}

func TestAge(t *testing.T) {
	const round = 0.1
	full := func() *Bucket { // ten permits from 1 s on, that expire at 1.2 s
		b := newBucket(100)
		b.receive(10, 1, 0.01, 1, 0.1, round)
		return b
	}
	t.Run("unspent permits go back, for a round", func(t *testing.T) {
		b := full()
		b.release(Time{Now: 1.0501}, 1)
		assert.InDelta(t, 1.06, b.dueAt(round), 1e-9, "the next permit")
		b.release(Time{Now: 1.15}, 1)
		b.Take(4)
		b.age(1.19, round)
		assert.EqualValues(t, 6, b.Available())
		assert.InDelta(t, 1.2, b.dueAt(round), 1e-9)
		b.age(1.201, round)
		assert.Zero(t, b.Unspent())
		assert.EqualValues(t, 6, b.toStore)
		assert.InDelta(t, 1.301, b.dueAt(round), 1e-9)
		b.age(1.3, round)
		assert.Zero(t, b.lost)
		b.age(1.302, round)
		assert.Zero(t, b.toStore)
		assert.EqualValues(t, 6, b.lost)
	})
	t.Run("later, if callers wait for the slot of a strict limit", func(t *testing.T) {
		b := full()
		b.release(Time{Now: 1.15}, 1)
		b.keep(0) // no slot is held
		assert.InDelta(t, 1.2, b.dueAt(round), 1e-9)
		b.keep(1.5)
		b.age(1.49, round)
		assert.EqualValues(t, 10, b.Available())
		assert.InDelta(t, 1.5, b.dueAt(round), 1e-9)
		b.age(1.501, round)
		assert.EqualValues(t, 10, b.toStore)
	})
	t.Run("so do permits that were not released", func(t *testing.T) {
		b := full()
		b.release(Time{Now: 1}, 1)
		b.age(1.3, round)
		assert.EqualValues(t, 10, b.toStore)
	})
	t.Run("the oldest permits are spent first", func(t *testing.T) {
		b := full()
		b.receive(10, 1.1, 0.01, 1.1, 0.1, round)
		b.release(Time{Now: 1.1201}, 1) // 10 and 3
		b.Take(8)
		b.age(1.2001, round)
		assert.EqualValues(t, 2, b.toStore)
		assert.EqualValues(t, 3, b.Available())
	})
	t.Run("a batch that is spent is dropped", func(t *testing.T) {
		b := full()
		b.release(Time{Now: 1.0401}, 1)
		b.batches[0].started = 1
		b.Take(5)
		b.age(1.0401, round)
		assert.Len(t, b.batches, 1, "five are still to come")
		b.release(Time{Now: 1.0901}, 1)
		b.Take(5)
		b.age(1.0901, round)
		assert.Empty(t, b.batches)
		assert.Zero(t, b.quick)
	})
	t.Run("in under half a round is quick", func(t *testing.T) {
		b := newBucket(1000)
		b.receive(10, 1, 0.001, 1, 0.1, round)
		b.release(Time{Now: 1}, 1)
		b.release(Time{Now: 1.01}, 1)
		b.Take(10)
		b.age(1.01, round)
		assert.EqualValues(t, 10, b.quick)
		b.receive(10, 1.1, 0.001, 1, 0.1, round)
		assert.Zero(t, b.quick, "until the next batch")
	})
	t.Run("permits that come back after their batch go back", func(t *testing.T) {
		b := newBucket(100)
		b.age(1, round)
		b.Return(5)
		assert.InDelta(t, 1.1, b.dueAt(round), 1e-9)
		b.age(1.09, round)
		assert.EqualValues(t, 5, b.Available())
		b.age(1.11, round)
		assert.EqualValues(t, 5, b.toStore)
		assert.Zero(t, b.Available())
	})
}

// TestChangeRate: allocated permits are released at the new rate from then on.
func TestChangeRate(t *testing.T) {
	b := newBucket(100)
	b.receive(10, 1, 0.01, 1, 0.1, 0.1)
	b.receive(10, 1.1, 0.01, 1, 0.1, 0.1)
	b.release(Time{Now: 1.0401}, 1)
	b.changeRate(1.045, 50)
	assert.InDelta(t, 1.055, b.batches[0].due, 1e-9)
	assert.InDelta(t, 0.02, b.batches[0].gap, 1e-9)
	assert.InDelta(t, 0.02, b.batches[0].minGap, 1e-9)
	assert.InDelta(t, 1.155, b.batches[1].due, 1e-9)
	assert.EqualValues(t, 50, b.rate)

	b = newBucket(100)
	b.receive(1, 1, 0.5, 1, 0.1, 0.1)
	b.release(Time{Now: 1}, 1)
	b.changeRate(1.1, 200)
	b.receive(1, 1, 0.5, 1, 0.1, 0.1)
	assert.InDelta(t, 1.3, b.batches[1].due, 1e-9, "the end of the last batch comes earlier, too")
}

// TestLostBatch: a batch whose permits are all lost, as after a pause of the process, is none that
// is still to come, although its next slot would be.
func TestLostBatch(t *testing.T) {
	var b Bucket
	b.init()
	b.rate = 100
	b.receive(1, 1, 0.01, 1, 0.01, 0.01)
	b.release(Time{Now: 1}, 0.01)
	b.receive(1, 1.01, 0.05, 1, 1, 0.01)
	b.release(Time{Now: 1.03, Late: 0.02}, 0.01)
	assert.Equal(t, released, b.batches[1].state)
	assert.Greater(t, b.batches[1].due, 1.03)
	assert.EqualValues(t, 1, b.lost)
	assert.Nil(t, b.upcoming(1.03))
	assert.EqualValues(t, 1, b.Unspent(), "that of the first one, which nobody has taken")
}
