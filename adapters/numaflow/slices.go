package numaflowthrottle

import (
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// sliceTime is how long a slice is in the making at least, unless its batch ends: a call of the user's is to be worth its while.
const sliceTime = 50 * time.Millisecond

// A batch comes from the data plane a datum at a time, and is handed on in slices, each when its permits are there. Permits
// come also while a slice is handled: those make the next.
type batch[D any] struct {
	some  chan struct{} // one for each slice that has begun; closed when there is no more
	ended chan struct{} // closed when the last datum is in its slice

	mu      sync.Mutex
	slice   []permitted[D]
	since   time.Time // its first permit came
	stopped bool
}

type permitted[D any] struct {
	datum D
	grant dispatch.Grant
}

// sliced hands on what comes from in, in its order. admit waits for the permit of a datum; where it fails, that datum and all
// behind it are returned, with the reason. last is called when all are admitted. hand settles what it is given. If it panics,
// what was not given to it goes back. Where permits are paced, each is for a slice of its own, and used at once.
func sliced[D any](in <-chan D, paced bool, admit func(D) (dispatch.Grant, error), last func(), hand func([]permitted[D])) (refused []D, reason error) {
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
				hand([]permitted[D]{p})
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
		hand(b.take())
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
		b.some <- struct{}{} // there is room: the last one was taken before its slice was
	}
}

// fill waits until the slice may go.
func (b *batch[D]) fill() {
	b.mu.Lock()
	left := sliceTime - time.Since(b.since)
	if b.slice[0].grant.InFlight() { // no more may come before these are done with
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

func (b *batch[D]) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	for i := range b.slice {
		b.slice[i].grant.Done(0, 0)
	}
	b.slice = nil
}

// channel returns the data of a slice as the user's code reads them.
func channel[D any](slice []permitted[D]) <-chan D {
	c := make(chan D, len(slice))
	for _, p := range slice {
		c <- p.datum
	}
	close(c)
	return c
}
