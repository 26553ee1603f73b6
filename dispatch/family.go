package dispatch

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// A family is the queues of one subscription, one for each owner of its messages, and what they share.
type family struct {
	queues   atomic.Pointer[[]*queue] // replaced under limiter.mu
	flying   atomic.Int64             // messages handed out and not Done, where that is limited
	next     atomic.Pointer[queue]    // who allocates a permit for its turn while no more may be in flight
	outcomes outcomes
}

// joinFamily makes q one of the family of its subscription. The caller holds l.mu.
func (l *Limiter) joinFamily(q *queue) {
	key := q.key().subscriptionKey
	f := l.families[key]
	if f == nil {
		f = &family{}
		l.families[key] = f
	}
	queues := append(slices.Clone(f.all()), q)
	f.queues.Store(&queues)
	q.family = f
}

// leaveFamily takes q out of it. The caller holds l.mu.
func (l *Limiter) leaveFamily(q *queue) {
	queues := slices.DeleteFunc(slices.Clone(q.family.all()), func(other *queue) bool { return other == q })
	if q.family.queues.Store(&queues); len(queues) == 0 {
		delete(l.families, q.key().subscriptionKey)
	}
}

func (f *family) all() []*queue {
	if queues := f.queues.Load(); queues != nil {
		return *queues
	}
	return nil
}

// takeOff lets up to n more messages be in flight, of so many, and says how many.
func (f *family) takeOff(n, most int64) int64 {
	for {
		flying := f.flying.Load()
		n = min(n, most-flying)
		if n <= 0 {
			return 0
		}
		if f.flying.CompareAndSwap(flying, flying+n) {
			return n
		}
	}
}

// free is how many more messages of q may be in flight soon, of so many: one at least if its turn is next, so that it has a permit then.
func (f *family) free(q *queue, most int64) int64 {
	least := int64(0)
	if f.next.Load() == q {
		least = 1
	}
	return max(least, most-f.flying.Load())
}

// turnBack undoes takeOff for n messages; the loop serves who waits. The caller may hold a queue's mutex.
func (f *family) turnBack(n int64) {
	f.flying.Add(-n)
	for _, q := range f.all() {
		if q.waiters.Load() > 0 {
			q.activate()
		}
	}
}

// land ends the flight of n messages of q, of which so many may be in flight. The queues that wait take turns, the one after q first. The first that
// has no permit for its place is next: it allocates one.
func (f *family) land(q *queue, n, most int64) {
	f.flying.Add(-n)
	now, queues := time.Now(), f.all()
	after := slices.Index(queues, q) + 1
	var next *queue
	for i := range queues {
		of := queues[(after+i)%len(queues)]
		waiting := of.waiters.Load()
		if waiting == 0 {
			continue
		}
		if f.flying.Load() >= most {
			break
		}
		of.serve(now)
		of.activate()
		if of.waiters.Load() >= waiting {
			next = cmp.Or(next, of)
		}
	}
	if f.next.Store(next); next != nil {
		next.activate()
	}
}
