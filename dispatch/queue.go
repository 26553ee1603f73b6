package dispatch

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// A queue is the callers of one subscription in this process: its limits, and who waits.
type queue struct {
	limiter *Limiter
	topic   policy.Topic
	name    string
	owner   owner

	metered atomic.Pointer[quota.ID] // whose cost is counted; nil: nobody's
	plan    atomic.Pointer[plan]     // what callers obey
	waiters atomic.Int32             // as many as wait: newcomers go behind them
	average atomic.Uint64            // size of a message, float64 bits; 0 = unknown
	active  atomic.Bool              // the loop knows the queue
	touched atomic.Bool              // something has happened since the last step
	family  *family                  // of the subscription

	mu      sync.Mutex // guards the fields below
	waiting []*waiter  // in the order they came
	wanted  float64    // messages they ask for, in all
	handles []*Subscription
	stats   queueStats

	// The rest belongs to whoever holds limiter.mu.
	limits            *plan // what the policies say, before caught up and permit store loss
	threshold         int64 // backlog at which a handle is caught up
	throttlesCaughtUp bool
	retired           []*account // of limits that are gone: what is allocated goes back, and a debt waits for the limit to come back
	caughtUp          bool
	endedAt           time.Time // when its last handle was closed
	due               float64   // when the next step is; the loop's own
	validUntil        time.Time // of caughtUp
}

// A waiter is a caller in the queue.
type waiter struct {
	max   int64
	size  int64 // -1 = unknown
	since time.Time
	why   Reason
	until time.Duration // that the grant may be used; 0 = for ever
	ready chan struct{} // gets one value when grant is set
	grant Grant
	err   error
}

func newWaiter() any { return &waiter{ready: make(chan struct{}, 1)} }

// acquire is Acquire when the counter did not have it all.
func (q *queue) acquire(ctx context.Context, max int, size int64) (Grant, error) {
	if max <= 0 {
		return Grant{}, nil
	}
	max = min(max, most)
	q.mu.Lock()
	p := q.plan.Load()
	switch {
	case p == nil:
		q.mu.Unlock()
		return Grant{n: max}, nil
	case p.closed:
		q.mu.Unlock()
		return Grant{}, ErrClosed
	case len(q.waiting) == 0 || p.shadow:
		if g, ok := q.grant(p, int64(max), size); ok {
			q.mu.Unlock()
			return g, nil
		}
		if p.shadow {
			g := q.through(p, int64(max), size)
			q.mu.Unlock()
			return g, nil
		}
	}
	if err := ctx.Err(); err != nil {
		q.mu.Unlock()
		return Grant{}, waitError(ctx)
	}
	w := q.limiter.waiters.Get().(*waiter)
	w.max, w.size, w.since, w.why = int64(max), size, time.Now(), q.reason(p)
	q.waiting = append(q.waiting, w)
	q.wanted += float64(max)
	q.waiters.Store(int32(len(q.waiting)))
	q.mu.Unlock()
	q.activate()

	select {
	case <-w.ready:
	case <-ctx.Done():
		if q.leave(w) {
			q.release(w)
			if p.paced != nil { // his slot goes back while it is the last
				q.activate()
			}
			return Grant{}, waitError(ctx)
		}
		<-w.ready // granted at the same moment: gives it back
		g, err := w.grant, w.err
		q.release(w)
		if err == nil {
			g.Done(0, 0)
			q.activate()
			err = waitError(ctx)
		}
		return Grant{}, err
	}
	g, err, until := w.grant, w.err, w.until
	q.release(w)
	if err == nil && until != 0 && time.Since(q.limiter.start) > until { // has woken too late
		g.waste()
		return q.acquire(ctx, max, size)
	}
	return g, err
}

// release keeps a waiter that has had its answer for the next caller.
func (q *queue) release(w *waiter) {
	w.grant, w.err, w.until = Grant{}, nil, 0
	q.limiter.waiters.Put(w)
}

// grant takes what a caller wants, if every limit has some of it. The caller holds q.mu.
func (q *queue) grant(p *plan, max, size int64) (Grant, bool) {
	if p.paused {
		return Grant{}, false
	}
	if p.inFlight > 0 {
		if max = min(max, p.inFlight-q.family.flying.Load()); max <= 0 {
			return Grant{}, false
		}
	}
	if size < 0 { // no more messages than there are bytes for
		for _, a := range p.bytes {
			max = min(max, 1+int64(float64(a.ready())/q.averageSize()))
		}
	}
	charged := q.sizeOf(p, max, size)
	n := p.take(max, charged)
	if n == 0 {
		return Grant{}, false
	}
	if n < max && size < 0 && charged > 0 { // fewer messages than their bytes were charged for
		fewer := q.sizeOf(p, n, size)
		for _, a := range p.bytes {
			a.avail.Add(charged - fewer)
		}
		charged = fewer
	}
	if p.inFlight > 0 && charged == 0 {
		charged = 1 // nobody's bytes, but Done has something to settle
	}
	g := Grant{n: int(n), plan: p, size: charged, taken: p.now()}
	if until := p.until(); until != 0 && time.Since(q.limiter.start) > until {
		g.waste()
		return Grant{}, false
	}
	return g, true
}

// through lets a caller in shadow mode through, and counts that he would have waited.
func (q *queue) through(p *plan, max, size int64) Grant {
	q.stats.shadowed += max
	for _, a := range p.messages {
		a.refused.Add(max)
		if a.reason == ReasonQuota {
			a.through.Add(max)
		}
	}
	for _, a := range p.bytes {
		a.refused.Add(q.sizeOf(p, max, size))
	}
	q.activate()
	return Grant{n: int(max)}
}

// sizeOf is the bytes to charge for n messages.
func (q *queue) sizeOf(p *plan, n, size int64) int64 {
	if len(p.bytes) == 0 {
		return 0
	}
	if size >= 0 {
		return max(1, size)
	}
	return max(1, int64(min(float64(n)*q.averageSize(), 1<<50)))
}

// averageSize is the running average that unknown sizes are charged at; 1 KiB before anything is known.
func (q *queue) averageSize() float64 {
	if bits := q.average.Load(); bits != 0 {
		return math.Float64frombits(bits)
	}
	return 1024
}

// learnSize moves the running average by a sixteenth a message.
func (q *queue) learnSize(messages int, bytes int64) {
	mean := float64(bytes) / float64(messages)
	average := mean
	if old := q.average.Load(); old != 0 {
		o := math.Float64frombits(old)
		average = o + (mean-o)*(1-math.Pow(15.0/16, float64(messages)))
	}
	q.average.Store(math.Float64bits(max(1, average)))
}

// leave takes a waiter out; false if it has its answer already.
func (q *queue) leave(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, other := range q.waiting {
		if other == w {
			q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
			q.left(w)
			return true
		}
	}
	return false
}

func (q *queue) left(w *waiter) {
	q.wanted -= float64(w.max)
	q.waiters.Store(int32(len(q.waiting)))
}

// serve gives those who wait what there is, in the order they came.
func (q *queue) serve(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.plan.Load()
	served := 0
	for _, w := range q.waiting {
		switch {
		case p == nil:
			w.grant = Grant{n: int(w.max)}
		case p.closed:
			w.err = ErrClosed
		case p.shadow:
			w.grant = q.through(p, w.max, w.size)
		default:
			g, ok := q.grant(p, w.max, w.size)
			if !ok {
				q.dequeue(served)
				return
			}
			w.grant, w.until = g, p.until()
		}
		served++
		q.stats.waited(now.Sub(w.since), w.why)
		q.wanted -= float64(w.max)
		w.ready <- struct{}{}
	}
	q.dequeue(served)
}

// dequeue drops the first n waiters.
func (q *queue) dequeue(n int) {
	if n > 0 {
		rest := copy(q.waiting, q.waiting[n:])
		clear(q.waiting[rest:])
		q.waiting = q.waiting[:rest]
		q.waiters.Store(int32(rest))
	}
}

// demand is what those who wait want of an account.
func (q *queue) demand(a *account, bytes bool) demand {
	p := q.plan.Load()
	if a.open {
		return demand{waiting: 1, anybody: true, callers: 1} // asks whether the permit store is back
	} else if p == nil || p.closed || !p.has(a) {
		return demand{}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	d := demand{anybody: len(q.waiting) > 0, callers: len(q.waiting)}
	if !d.anybody || p.paused {
		return d
	}
	if a.strict != nil { // a slot for each whom nothing else holds up
		d.callers = p.unhindered(d.callers, int(q.family.flying.Load()))
	}
	if stock := a.avail.Load(); stock <= 0 {
		d.waiting = q.wanted
		if p.inFlight > 0 {
			d.waiting = min(d.waiting, float64(q.family.free(q, p.inFlight)))
		}
		if bytes {
			d.waiting = -float64(stock)
			for _, w := range q.waiting {
				d.waiting += float64(q.sizeOf(p, w.max, w.size))
			}
		}
	}
	return d
}

// activate has the loop step the queue, soon.
func (q *queue) activate() {
	q.touched.Store(true)
	if q.active.CompareAndSwap(false, true) {
		l := q.limiter
		l.activeMu.Lock()
		l.woken = append(l.woken, q)
		l.activeMu.Unlock()
		l.wake()
		return
	}
	if !q.limiter.ticking.Load() {
		q.limiter.wake()
	}
}
