package numaflowthrottle

import (
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// sliceTime is how long a slice collects data at least, unless its batch ends: each slice is a
// call of the user's code.
const sliceTime = 50 * time.Millisecond

// A batch comes from the data plane a datum at a time, and is passed on in slices, as permits come.
// Permits also come while a slice is handled: those data make the next slice.
type batch[D any] struct {
	some  chan struct{} // holds a value for a slice that has started; closed after the last one
	ended chan struct{} // closed when the last datum is in its slice

	mu      sync.Mutex
	slice   []permitted[D]
	since   time.Time // when its first permit came
	stopped bool
}

// A permitted datum has a permit.
type permitted[D any] struct {
	datum D
	grant dispatch.Grant
}

// inSlices passes on what comes from in, in its order.
//
// admit waits for the permit of a datum. If it fails, that datum and all behind it are returned as
// refused, with the reason. last is called when all are admitted. handle settles the permits of the
// slice that it is given; if it panics, permits of other slices go back. If permits are paced, each
// is a slice of its own, which is used at once.
func inSlices[D any](
	in <-chan D, paced bool,
	admit func(D) (dispatch.Grant, error), last func(), handle func([]permitted[D]),
) (refused []D, reason error) {
	admitted := func(d D) (p permitted[D], ok bool) {
		if reason == nil {
			p.datum = d
			p.grant, reason = admit(d)
		}
		if reason != nil {
			refused = append(refused, d)
		}
		return p, reason == nil
	}
	if paced {
		defer last()
		for d := range in {
			if p, ok := admitted(d); ok {
				handle([]permitted[D]{p})
			}
		}
		return refused, reason
	}
	b := &batch[D]{some: make(chan struct{}, 1), ended: make(chan struct{})}
	defer b.stop()
	go func() {
		defer close(b.some)
		defer close(b.ended)
		defer last()
		for d := range in {
			if p, ok := admitted(d); ok {
				b.add(p)
			}
		}
	}()
	for range b.some {
		b.fill()
		handle(b.take())
	}
	return refused, reason
}

func (b *batch[D]) add(p permitted[D]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		p.grant.Done(0, 0)
		return
	}
	b.slice = append(b.slice, p)
	if len(b.slice) == 1 {
		b.since = time.Now()
		b.some <- struct{}{} // it has room: its last value was received before the slice was taken
	}
}

// fill waits until the slice has collected data for sliceTime.
func (b *batch[D]) fill() {
	b.mu.Lock()
	left := sliceTime - time.Since(b.since)
	if b.slice[0].grant.InFlight() { // maxInFlight may admit no more before these are settled
		left = 0
	}
	b.mu.Unlock()
	if left > 0 {
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-b.ended:
		}
	}
}

func (b *batch[D]) take() (slice []permitted[D]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	slice, b.slice = b.slice, nil
	return slice
}

// stop gives back the permits of data that are not handled.
func (b *batch[D]) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	for i := range b.slice {
		b.slice[i].grant.Done(0, 0)
	}
	b.slice = nil
}

// channelOf returns the data of a slice as the user's code reads them.
func channelOf[D any](slice []permitted[D]) <-chan D {
	c := make(chan D, len(slice))
	for _, p := range slice {
		c <- p.datum
	}
	close(c)
	return c
}
