package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// A Subscription is one reader's handle to the limits of a topic and subscription; handles of the same
// topic and name in one process share their permits. Any number of goroutines may use it at once. A nil
// *Subscription limits nothing.
type Subscription struct {
	queue   *queue
	owner   owner
	tagged  sync.Map      // of *Subscription, by the tag of its messages
	tags    int           // how many those are; guarded by limiter.mu
	parent  *Subscription // that this is a handle of a tag of; nil: it is its own
	backlog backlog       // guarded by queue.mu
}

// A SubscriptionOption changes how a Subscription is opened.
type SubscriptionOption func(*Subscription)

// Subscription opens a handle. topic is a full name such as kafka://public/default/orders, name a Pulsar
// subscription, a Kafka consumer group, a Numaflow vertex. The error is the topic's or name's fault, or ErrClosed.
func (l *Limiter) Subscription(topic, name string, opts ...SubscriptionOption) (*Subscription, error) {
	t, err := policy.ParseTopic(topic)
	s := &Subscription{}
	for _, opt := range opts {
		opt(s)
	}
	if err = errors.Join(err, policy.ValidateSubscription(name), s.owner.validate()); err != nil {
		return nil, fmt.Errorf("dispatch: open a subscription: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	l.join(s, t, name, backlog{messages: -1})
	return s, nil
}

// join makes s a handle of its queue. The caller holds l.mu.
func (l *Limiter) join(s *Subscription, t policy.Topic, name string, b backlog) {
	key := queueKey{subscriptionKey{t, name}, s.owner}
	q := l.queues[key]
	if q == nil {
		q = &queue{limiter: l, topic: t, name: name, owner: s.owner}
		l.queues[key] = q
		l.joinFamily(q)
		if old, ok := l.ended[key]; ok {
			q.takeOver(old)
			delete(l.ended, key)
		}
		q.resolve()
	}
	s.queue = q
	q.mu.Lock()
	s.backlog = b
	q.handles = append(q.handles, s)
	q.mu.Unlock()
	q.judge(time.Now())
}

func (q *queue) key() queueKey { return queueKey{subscriptionKey{q.topic, q.name}, q.owner} }

// Close ends this handle. With the last one of a subscription, those who wait get ErrClosed; allocated permits go back
// unless a new handle uses them at once. What is in flight counts until it is Done. A second call does nothing.
func (s *Subscription) Close() error {
	if s == nil || s.parent != nil {
		return nil
	}
	l := s.queue.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	s.each(l.leave)
	return nil
}

// leave ends one handle. The caller holds l.mu.
func (l *Limiter) leave(s *Subscription) {
	q := s.queue
	q.mu.Lock()
	q.handles = slices.DeleteFunc(q.handles, func(h *Subscription) bool { return h == s })
	last := len(q.handles) == 0
	q.mu.Unlock()
	if !last {
		q.judge(time.Now())
		return
	}
	if l.queues[q.key()] == q {
		q.settleBegun()
		delete(l.queues, q.key())
		l.leaveFamily(q)
		q.family.reserve()
		for _, a := range q.limits.all() {
			l.dropUser(a.limit)
			delete(l.lineups, a.waiter)
		}
		q.end()
	}
	q.plan.Store(&plan{closed: true, queue: q})
	q.serve(time.Now())
	q.activate()
}

// What the queue of a subscription without handles has is kept for a new handle, so that one opened for each message gets one
// replica's share: permits while the subscription is not idle, and for heldFor at most; its place among the replicas for endedFor;
// debts for owedFor.
const (
	heldFor  = 900 * time.Millisecond
	endedFor = time.Minute
	owedFor  = time.Hour
)

// end keeps what the queue has for a new handle. The caller holds limiter.mu.
func (q *queue) end() {
	now, keeps := time.Now(), q.owes()
	for _, a := range q.limits.all() {
		if a.batched() {
			a.dropAt, keeps = q.limiter.clock(now.Add(heldFor)), true
		}
	}
	if keeps {
		q.endedAt = now
		q.limiter.ended[q.key()] = q
	}
}

// forgetEnded forgets the queues that have been without handles for long.
func (l *Limiter) forgetEnded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, q := range l.ended {
		if age := time.Since(q.endedAt); age > endedFor && (age > owedFor || !q.owes()) {
			delete(l.ended, key)
		}
	}
}

// owes says that more was used than granted. The caller holds limiter.mu.
func (q *queue) owes() bool {
	return slices.ContainsFunc(q.accounts(), func(a *account) bool { return a.debt() > 0 })
}

// accounts are all that the queue has, those of limits that are gone included.
func (q *queue) accounts() []*account { return append(q.limits.all(), q.retired...) }

// takeOver makes the accounts of an ended queue q's own; accounts that are leaving a pool or group stay with the old queue. The caller holds limiter.mu.
func (q *queue) takeOver(old *queue) {
	var leaving []*account
	for _, a := range old.accounts() {
		switch {
		case a.batched():
		case a.debt() > 0:
			a.strict, a.split, a.groups = nil, nil, nil
			a.restart()
		default:
			leaving = append(leaving, a)
			continue
		}
		a.queue = q
		q.retired = append(q.retired, a)
	}
	old.limits, old.retired = &plan{queue: old}, leaving
	q.average.Store(old.average.Load())
}

// Acquire waits until at least one permit of every limit that applies is there, and takes up to max.
// First come is first served. If ctx ends while it waits, nothing is taken, and the error wraps context.Cause(ctx); a permit
// that is there is granted whatever ctx says. A max of 0 or less gets nothing, at once.
func (s *Subscription) Acquire(ctx context.Context, max int) (Grant, error) {
	if s == nil {
		return Grant{n: max}, nil
	}
	p := s.queue.plan.Load()
	if p == nil {
		return Grant{n: max}, nil
	}
	// One permit is taken before it is known to be there; many are not, since the counter would be far off meanwhile.
	if a := p.only; a != nil && max > 0 && max <= most && s.queue.waiters.Load() == 0 && (max == 1 || a.avail.Load() >= int64(max)) {
		if a.avail.Add(-int64(max)) >= 0 {
			return Grant{n: max, plan: p, taken: p.now()}, nil
		}
		a.avail.Add(int64(max))
	} else if p.several && max > 0 && max <= most && s.queue.waiters.Load() == 0 {
		if n := p.take(int64(max), 0); n > 0 {
			return Grant{n: int(n), plan: p, taken: p.now()}, nil
		}
	}
	return s.queue.acquire(ctx, max, -1)
}

// AcquireSized is Acquire for one message that is in memory already: its bytes are charged exactly.
func (s *Subscription) AcquireSized(ctx context.Context, bytes int64) (Grant, error) {
	if s == nil {
		return Grant{n: 1}, nil
	}
	p := s.queue.plan.Load()
	if p == nil {
		return Grant{n: 1}, nil
	}
	if a := p.only; a != nil && s.queue.waiters.Load() == 0 {
		if a.avail.Add(-1) >= 0 {
			return Grant{n: 1, plan: p, taken: p.now()}, nil
		}
		a.avail.Add(1)
	} else if p.several && s.queue.waiters.Load() == 0 && p.take(1, 0) > 0 {
		return Grant{n: 1, plan: p, taken: p.now()}, nil
	}
	return s.queue.acquire(ctx, 1, min(max(0, bytes), most))
}

// TryAcquire takes up to max permits if some are there now, and never waits; where pacing is strict, it asks the permit store
// whether a slot is free, unless it was told lately when the next one is. If it is refused, next says when to
// come back; the refusal counts as demand, so that permits are allocated for the next try.
func (s *Subscription) TryAcquire(max int) (g Grant, next time.Time, ok bool) {
	if s == nil {
		return Grant{n: max}, time.Time{}, true
	}
	p := s.queue.plan.Load()
	if p == nil {
		return Grant{n: max}, time.Time{}, true
	}
	if a := p.only; a != nil && max > 0 && a.avail.Load() <= 0 && a.refused.Load() > 0 {
		return Grant{}, *a.next.Load(), false
	}
	if p.paced != nil {
		return s.queue.tryPaced(max)
	}
	return s.queue.tryAcquire(max)
}

// Limited reports whether a limit applies now: if not, as for the caught up, Acquire returns at once and charges nothing. It costs
// one atomic load.
func (s *Subscription) Limited() bool { return s != nil && s.queue.plan.Load() != nil }

// Paced reports whether a limit with strict sharing applies now: its permits come one at a time, each to be used at once.
func (s *Subscription) Paced() bool {
	if s == nil {
		return false
	}
	p := s.queue.plan.Load()
	return p != nil && p.paced != nil
}

// most bounds what one call may ask for, so that no sum of calls overflows a counter.
const most = 1<<31 - 1

func (q *queue) tryAcquire(max int) (Grant, time.Time, bool) {
	if max <= 0 {
		return Grant{}, time.Time{}, true
	}
	max = min(max, most)
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.plan.Load()
	switch {
	case p == nil:
		return Grant{n: max}, time.Time{}, true
	case p.closed:
		return Grant{}, time.Now().Add(time.Minute), false
	case len(q.waiting) == 0:
		if g, ok := q.grant(p, int64(max), -1); ok {
			return g, time.Time{}, true
		}
	}
	if p.shadow {
		return q.through(p, int64(max), -1), time.Time{}, true
	}
	if p.paused {
		return Grant{}, time.Now().Add(time.Second), false
	}
	return Grant{}, q.refuse(p, int64(max)), false
}

// refuse counts a refusal as demand of the limits that are out, and says when to come back.
func (q *queue) refuse(p *plan, n int64) time.Time {
	next := time.Now().Add(tick)
	soon := next
	for i, a := range p.all() {
		if a.avail.Load() > 0 {
			continue
		}
		if i < len(p.messages) {
			a.refused.Store(n)
		} else {
			a.refused.Store(q.sizeOf(p, n, -1))
		}
		if at := *a.next.Load(); at.After(next) {
			next = at
		} else {
			a.next.Store(&soon) // the loop has not looked since long ago
		}
	}
	q.activate()
	return next
}

// Do waits for a permit and calls f, whose error it returns. The permit is spent, whatever f says; the message is in
// flight while f runs.
func (s *Subscription) Do(ctx context.Context, f func(context.Context) error) error {
	g, err := s.Acquire(ctx, 1)
	if err != nil {
		return err
	}
	defer g.spent()
	return f(ctx)
}

// TryDo calls f if a permit is there now, and skips it otherwise: ran says which.
func (s *Subscription) TryDo(ctx context.Context, f func(context.Context) error) (ran bool, err error) {
	g, _, ok := s.TryAcquire(1)
	if !ok {
		return false, nil
	}
	defer g.spent()
	return true, f(ctx)
}

// Throttled returns f with a wait for a permit in front of each call.
func Throttled[In, Out any](s *Subscription, f func(context.Context, In) (Out, error)) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (out Out, err error) {
		g, err := s.Acquire(ctx, 1)
		if err != nil {
			return out, err
		}
		defer g.spent()
		return f(ctx, in)
	}
}

// Reporting returns f with a report of each call's outcome: what [OutcomeOf] reads in its error, or that it has failed if it
// panics; the panic goes on. Around it belongs Throttled, as in Throttled(s, Reporting(s, f)), so that waiting for a permit is not
// reported. Let one of the two report, f or Reporting: a call that is reported twice counts twice.
func Reporting[In, Out any](s *Subscription, f func(context.Context, In) (Out, error)) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (Out, error) {
		o, retryAfter := OutcomeFailed, time.Duration(0)
		defer func() { s.ReportOutcome(o, retryAfter) }()
		out, err := f(ctx, in)
		o, retryAfter = OutcomeOf(err)
		return out, err
	}
}

func waitError(ctx context.Context) error {
	return fmt.Errorf("dispatch: wait for a permit: %w", context.Cause(ctx))
}
