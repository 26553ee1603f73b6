package engine

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// MaxPermits bounds what one call may ask for, so that no sum of calls overflows a counter.
const MaxPermits = 1<<31 - 1

// A Lane is the callers of one subscription in this process, of those messages that have one
// owner.
type Lane struct {
	engine *Engine
	of     *subscription

	admission atomic.Pointer[Admission] // the limits that apply now; nil = none
	quota     atomic.Pointer[quota.ID]  // whose quota applies; nil = none
	waiters   atomic.Int32              // callers in the line: newcomers go behind them
	touched   atomic.Bool               // the loop steps the lane soon
	covered   atomic.Bool               // the next step is soon enough for a caller that comes now
	active    atomic.Bool               // permits are held, wanted or on their way
	sizes     averageSize

	beyondInFlight atomic.Int64 // messages beyond a maxInFlight in shadow mode, all time

	// Engine.mu guards these, which each step reads.
	limits   *Admission       // what the policies say, before caught up and outages; never nil
	retired  []*sharing.Share // of limits that no longer apply: what they hold goes back
	caughtUp bool
	due      float64   // when the next step is; the loop's own, as
	place    int       // in the heap, -1 = in none, and
	heap     *dueLanes // the heap

	mu      sync.Mutex // guards these; Engine.mu is locked before it, if both are
	line    []*caller  // that wait, in the order they came
	entered uint64     // callers that have ever entered the line
	wanted  float64    // messages that they ask for, in all
	waits   waitStats
	handles []*Handle

	// Engine.mu guards the rest, but for the id, which does not change.
	id               resolve.Lane
	matches          policy.Matches   // of the topic, by the policies in force when it was found
	caughtUpBacklog  int64            // messages; caught up at this backlog or under
	throttleCaughtUp bool             // throttled when caught up, too
	debts            map[string]int64 // of limits that no longer apply, by their keys
	validUntil       time.Time        // of caughtUp
	endedAt          time.Time        // when the last handle was closed
	successor        *Lane            // has taken over the shares
}

// A caller waits in the line of a lane.
type caller struct {
	number uint64 // of the lane's callers, in the order they came
	max    int64
	size   int64 // bytes; -1 = unknown
	try    bool  // does not wait for permits, only for the answer whether a strict slot is free
	since  time.Time
	why    string
	ready  chan struct{} // gets one value when the answer is there

	grant Grant
	until time.Duration // that a strict slot may be used, since the engine's start; 0 = without end
	next  time.Time     // of a try that was refused: when to come back
	err   error
}

func newCaller() any { return &caller{ready: make(chan struct{}, 1)} }

// Admission returns the limits that apply now; nil = none. It is one atomic load.
func (l *Lane) Admission() *Admission { return l.admission.Load() }

// Waited reports whether callers wait.
func (l *Lane) Waited() bool { return l.waiters.Load() > 0 }

// Quota is the throttling id whose quota applies, nil if none does. It is one atomic load.
func (l *Lane) Quota() *quota.ID { return l.quota.Load() }

// Acquire waits for up to max messages' permits: for when the fast path did not get them. size is
// the bytes of the message, -1 = unknown.
func (l *Lane) Acquire(ctx context.Context, max int, size int64) (Grant, error) {
	if max <= 0 {
		return Grant{}, nil
	}
	max = min(max, MaxPermits)
	l.mu.Lock()
	a := l.admission.Load()
	switch {
	case a == nil:
		l.mu.Unlock()
		return Grant{N: max}, nil
	case a.closed:
		l.mu.Unlock()
		return Grant{}, ErrClosed
	case len(l.line) == 0:
		if g, ok := l.grant(a, int64(max), size); ok {
			l.mu.Unlock()
			return g, nil
		}
	}
	if ctx.Err() != nil {
		l.mu.Unlock()
		return Grant{}, waitError(ctx)
	}
	c := l.enter(a, int64(max), size)
	l.mu.Unlock()
	defer l.engine.callers.Put(c)
	// This is read after the caller has entered: a step that does not see the caller clears it
	// first.
	if !l.covered.Load() {
		l.engine.touch(l, false)
	}
	for {
		select {
		case <-c.ready:
		case <-ctx.Done():
			return Grant{}, l.cancel(c, waitError(ctx))
		}
		if c.err != nil || c.until == 0 || time.Since(l.engine.start) <= c.until {
			return c.grant, c.err
		}
		c.grant.waste() // the caller has woken too late for its slot
		l.enterAgain(c)
		l.engine.touch(l, false)
	}
}

// cancel ends the wait of a caller with an error. What it was granted at the same moment goes
// back. No lock is needed.
func (l *Lane) cancel(c *caller, err error) error {
	if !l.leave(c) {
		if <-c.ready; c.err == nil && c.grant.Admission != nil {
			c.grant.Settle(0, 0)
		}
	}
	l.engine.touch(l, false) // a strict slot goes back while it is the last
	return err
}

func waitError(ctx context.Context) error {
	return fmt.Errorf("dispatch: wait for a permit: %w", context.Cause(ctx))
}

// enter puts a new caller at the end of the line. The lane's lock is held.
func (l *Lane) enter(a *Admission, max, size int64) *caller {
	c := l.engine.callers.Get().(*caller)
	l.entered++
	*c = caller{
		number: l.entered, max: max, size: size, since: time.Now(), why: l.reason(a), ready: c.ready,
	}
	l.line = append(l.line, c)
	l.wanted += float64(max)
	l.waiters.Store(int32(len(l.line)))
	return c
}

// enterAgain puts a caller that came too late for its slot back at its place in the line, or
// answers it if there is nothing to wait for any more. No lock is needed.
func (l *Lane) enterAgain(c *caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.grant, c.err, c.until = Grant{}, nil, 0
	switch a := l.admission.Load(); {
	case a == nil:
		c.grant = Grant{N: int(c.max)}
		c.ready <- struct{}{}
		return
	case a.closed: // the loop may have served the line for the last time
		c.err = ErrClosed
		c.ready <- struct{}{}
		return
	}
	place := slices.IndexFunc(l.line, func(other *caller) bool { return other.number > c.number })
	if place < 0 {
		place = len(l.line)
	}
	l.line = slices.Insert(l.line, place, c)
	l.wanted += float64(c.max)
	l.waiters.Store(int32(len(l.line)))
}

// leave takes a caller out of the line; false if it has its answer already. No lock is needed.
func (l *Lane) leave(c *caller) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.line, c)
	if i < 0 {
		return false
	}
	l.line = slices.Delete(l.line, i, i+1)
	l.wanted -= float64(c.max)
	l.waiters.Store(int32(len(l.line)))
	return true
}

// step brings the lane to now: it releases what is due, serves callers, adds the requests that are
// wanted then to out, and schedules the next step.
func (l *Lane) step(t time.Time, now float64, out []sending) []sending {
	l.covered.Store(false)
	l.expireCaughtUp(t)
	step := sharing.Time{Now: now, Step: l.engine.steps.Load(), Late: now - l.due}
	limits, messages := l.limits.all, l.limits.bytesFrom
	a := l.admission.Load()
	waiting := l.look(a)
	for i, s := range limits {
		s.Mode.Advance(step, l.demand(a, waiting, s, i >= messages))
	}
	for _, s := range l.retired {
		s.Mode.Advance(step, sharing.Demand{})
	}
	l.followOutage()
	if a = l.admission.Load(); waiting.callers > 0 || l.Waited() {
		l.serve(t)
		waiting = l.look(a)
	}

	at := math.Inf(1)
	idle, covered := true, len(limits) > 0
	add := func(s *sharing.Share, r *permits.Request) {
		if r != nil {
			if s.Limit.Rule.Mode != busy.None {
				s.AddAnswers(r, l.of.outcomes.take())
			}
			out = append(out, sending{lane: l, share: s, request: r})
		}
		at = min(at, s.Mode.WakeAt(now))
		idle, covered = idle && s.Mode.Idle(), covered && s.Mode.Covered(now)
	}
	for i, s := range limits {
		if a != nil && a.closed && !s.Kept() {
			add(s, s.Mode.Drain(now))
			continue
		}
		var d sharing.Demand
		if waiting.callers > 0 || s.Open() { // those not served may wait for another limit now
			d = l.demand(a, waiting, s, i >= messages)
		}
		refusing := s.Refusing()
		add(s, s.Mode.Next(now, d))
		back := l.engine.time(s.Mode.NextPermit(now))
		if refusing && back.Sub(s.Bucket.Next()).Abs() > tick/4 {
			s.SetNext(back)
		}
	}
	for _, s := range l.retired {
		add(s, s.Mode.Drain(now))
	}
	l.dropRetired()
	if waiting.try { // not one that has come during this step, which requested nothing for it
		l.refuseTries(t, now)
	}
	if l.caughtUp {
		at = min(at, now+l.validUntil.Sub(t).Seconds())
	}
	l.active.Store(!idle || waiting.callers > 0)
	l.covered.Store(covered && !l.caughtUp)
	l.engine.setDue(l, max(at, math.Nextafter(now, math.Inf(1))))
	return out
}

// dropRetired forgets the shares that have given back what they held. A debt waits for the limit
// to apply again.
func (l *Lane) dropRetired() {
	l.retired = slices.DeleteFunc(l.retired, func(s *sharing.Share) bool {
		if !s.Mode.Idle() {
			return false
		}
		if debt := s.ForgiveDebt(); debt > 0 {
			l.owe(s.Limit.Key, debt)
		}
		return true
	})
}

// owe notes a debt of a limit that does not apply.
func (l *Lane) owe(key string, debt int64) {
	if l.debts == nil {
		l.debts = map[string]int64{}
	}
	l.debts[key] += debt
}

// shares are all shares of the lane, those of limits that no longer apply included.
func (l *Lane) shares() []*sharing.Share { return slices.Concat(l.limits.all, l.retired) }

// A waiting is what the callers in the line want, at one moment.
type waiting struct {
	callers  int
	messages float64
	bytes    float64 // 0 if no limit is of bytes
	try      bool    // the first caller does not wait for permits
}

// look returns what the callers in the line want.
func (l *Lane) look(a *Admission) waiting {
	if !l.Waited() {
		return waiting{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w := waiting{callers: len(l.line), messages: l.wanted}
	if w.callers > 0 {
		w.try = l.line[0].try
	}
	if a != nil && a.limitsBytes() {
		for _, c := range l.line {
			w.bytes += float64(l.charge(a, c.max, c.size))
		}
	}
	return w
}

// demand is what the callers in the line want of a share.
func (l *Lane) demand(a *Admission, w waiting, s *sharing.Share, bytes bool) sharing.Demand {
	if s.Open() { // asks whether the permit store is available
		return sharing.Demand{Waiting: 1, Anybody: true, Callers: 1}
	} else if a == nil || a.closed || !a.has(s) {
		return sharing.Demand{}
	}
	d := sharing.Demand{Anybody: w.callers > 0, Callers: w.callers}
	if !d.Anybody || a.paused {
		return d
	}
	if s == a.paced {
		if d.Try = w.try; d.Try {
			d.Callers = 0
			return d
		}
		d.Callers = a.startable(w.callers)
		d.Hindered, d.Lacks = a.hindered(d.Callers), a.lacksOther()
	}
	if s.Empty() {
		d.Waiting = w.messages
		if a.boundsInFlight() {
			d.Waiting = min(d.Waiting, float64(l.of.inFlight.free(l, a.maxInFlight)))
		}
		if bytes {
			d.Waiting = float64(s.Debt()) + w.bytes
		}
	}
	return d
}

// serve grants callers what there is, in the order they came. No lock is needed.
func (l *Lane) serve(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.admission.Load()
	served := 0
	for _, c := range l.line {
		switch {
		case a == nil:
			c.grant = Grant{N: int(c.max)}
		case a.closed:
			c.err = ErrClosed
		default:
			g, ok := l.grant(a, c.max, c.size)
			if !ok {
				l.served(served)
				return
			}
			c.grant, c.until = g, a.usableUntil()
		}
		served++
		l.waits.add(now.Sub(c.since), c.why)
		l.wanted -= float64(c.max)
		c.ready <- struct{}{}
	}
	l.served(served)
}

// served drops the first n callers of the line. The lane's lock is held.
func (l *Lane) served(n int) {
	if n > 0 {
		rest := copy(l.line, l.line[n:])
		clear(l.line[rest:])
		l.line = l.line[:rest]
		l.waiters.Store(int32(rest))
	}
}

// grant takes what a caller wants, if every limit has some of it. The lane's lock is held.
func (l *Lane) grant(a *Admission, max, size int64) (Grant, bool) {
	if a.paused {
		return Grant{}, false
	}
	if a.boundsInFlight() {
		if max = min(max, a.maxInFlight-l.of.inFlight.n.Load()); max <= 0 {
			return Grant{}, false
		}
	}
	if size < 0 { // no more messages than there are bytes for
		for _, s := range a.bytes {
			max = min(max, 1+int64(float64(s.Available())/l.sizes.average()))
		}
	}
	charged := l.charge(a, max, size)
	n := a.take(max, charged)
	if n == 0 {
		return Grant{}, false
	}
	if n < max && size < 0 && charged > 0 { // fewer messages than their bytes were charged for
		fewer := l.charge(a, n, size)
		for _, s := range a.bytes {
			s.Untake(charged - fewer)
		}
		charged = fewer
	}
	if a = a.pass(n, charged); a.maxInFlight > 0 && charged == 0 {
		charged = 1 // of no limit, but Done has something to settle
	}
	g := Grant{N: int(n), Admission: a, Size: charged, Taken: a.Step()}
	if until := a.usableUntil(); until != 0 && time.Since(l.engine.start) > until {
		g.waste()
		return Grant{}, false
	}
	return g, true
}

// charge is the bytes to charge for n messages.
func (l *Lane) charge(a *Admission, n, size int64) int64 {
	switch {
	case !a.limitsBytes():
		return 0
	case size >= 0:
		return max(1, size)
	}
	return max(1, int64(min(float64(n)*l.sizes.average(), 1<<50)))
}

// An averageSize is the running average of messages' sizes, which unknown ones are charged at. Any
// goroutine may use it.
type averageSize struct{ bits atomic.Uint64 }

// average is in bytes; 1 KiB before anything is known.
func (s *averageSize) average() float64 {
	if bits := s.bits.Load(); bits != 0 {
		return math.Float64frombits(bits)
	}
	return 1024
}

// learn moves the average by a sixteenth a message.
func (s *averageSize) learn(messages int, bytes int64) {
	mean := float64(bytes) / float64(messages)
	average := mean
	if old := s.bits.Load(); old != 0 {
		o := math.Float64frombits(old)
		average = o + (mean-o)*(1-math.Pow(15.0/16, float64(messages)))
	}
	s.bits.Store(math.Float64bits(max(1, average)))
}
