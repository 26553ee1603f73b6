package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
)

// An Outcome is how the system that a handler protects has answered.
type Outcome int

// The outcomes. Only busy answers slow down, and what the policy's field `busyOutcomes` counts as busy.
const (
	OutcomeOK      Outcome = iota
	OutcomeBusy            // an HTTP 429 or 503, a gRPC RESOURCE_EXHAUSTED, backpressure
	OutcomeFailed          // for another reason; may count as busy
	OutcomeTimeout         // no answer in time; may count as busy
	OutcomeIgnored         // says nothing about the system
)

// A BusyError says that a protected system was busy. RetryAfter is when it may be asked again, 0 if it did not say; Err is what went wrong, or nil.
type BusyError struct {
	RetryAfter time.Duration
	Err        error
}

func (e *BusyError) Error() string {
	text := "busy"
	if e.RetryAfter > 0 {
		text += fmt.Sprintf(", to be asked again after %v", e.RetryAfter)
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns Err.
func (e *BusyError) Unwrap() error { return e.Err }

// OutcomeOf is the outcome that a handler's error tells: busy if there is a *[BusyError] in it, ok if it is nil, a time-out if a deadline was
// exceeded or its Timeout method says so, as net.Error has one, ignored if the handler was canceled, else failed.
func OutcomeOf(err error) (o Outcome, retryAfter time.Duration) {
	if e, ok := errors.AsType[*BusyError](err); ok {
		return OutcomeBusy, e.RetryAfter
	}
	switch {
	case err == nil:
		return OutcomeOK, 0
	case errors.Is(err, context.DeadlineExceeded):
		return OutcomeTimeout, 0
	case errors.Is(err, context.Canceled):
		return OutcomeIgnored, 0
	}
	if e, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && e.Timeout() {
		return OutcomeTimeout, 0
	}
	return OutcomeFailed, 0
}

// outcomes are what handlers of a subscription have reported since the last allocation.
type outcomes struct {
	least    float64       // messages a second, by the policy, and
	reserved float64       // by the quotas of its messages: it never slows down to less. Guarded by limiter.mu
	matter   atomic.Uint32 // by the policy: a bit for each Outcome; 0 = nobody slows down
	reported atomic.Bool   // ever
	ok, busy atomic.Int64
	retry    atomic.Int64 // the longest retry-after, nanoseconds
}

// ReportOutcome says how the protected system answered a message of this subscription, and when it may be asked again, if it said so. Busy
// answers lower a limit of the subscription's own, in all processes, until they cease: see the policy's fields `busy` and `busyOutcomes`, and
// docs/slowing-down.md. The first report that is good or counts as busy makes that limit; who reports nothing has none. It needs a permit store: while
// there is none, messages go on. A report costs some nanoseconds; any number of goroutines may report at once.
func (s *Subscription) ReportOutcome(o Outcome, retryAfter time.Duration) {
	if s == nil {
		return
	}
	q := s.queue
	if q.family.outcomes.matter.Load()>>uint(o)&1 == 0 {
		return
	}
	if o == OutcomeOK {
		q.family.outcomes.ok.Add(1)
	} else {
		q.family.outcomes.busy.Add(1)
		for longest := q.family.outcomes.retry.Load(); int64(retryAfter) > longest && !q.family.outcomes.retry.CompareAndSwap(longest, int64(retryAfter)); {
			longest = q.family.outcomes.retry.Load()
		}
	}
	if !q.family.outcomes.reported.Load() {
		q.slowDown()
	}
}

// slowDown makes the limit by which the subscription slows down, whosever its messages are.
func (q *queue) slowDown() {
	l := q.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if open := !l.closed && l.queues[q.key()] == q; open && !q.family.outcomes.reported.Swap(true) {
		q.family.reserve()
		for _, of := range q.family.all() {
			of.resolve()
		}
	}
}

// heard moves what was reported to the account that tells the permit store.
func (o *outcomes) heard(a *account) {
	a.unheard.OK += float64(o.ok.Swap(0))
	a.unheard.Busy += float64(o.busy.Swap(0))
	a.unheard.RetryAfter = max(a.unheard.RetryAfter, time.Duration(o.retry.Swap(0)).Seconds())
}

// reserve has the limits of all subscriptions that slow down obey what quotas reserve. The caller holds l.mu.
func (l *Limiter) reserve() {
	for _, f := range l.families {
		f.reserve()
	}
}

// reserve finds what quotas reserve for messages of the subscription, as far as this process has handles for them, and has its limit obey that.
// The caller holds limiter.mu.
func (f *family) reserve() {
	o, queues := &f.outcomes, f.all()
	if len(queues) == 0 || !o.reported.Load() {
		return
	}
	o.reserved = 0
	l, of := queues[0].limiter, map[policy.Scope]bool{}
	for _, q := range queues {
		id := q.owner.id(q.topic, l.snapshot.Set)
		if found, ok := l.snapshot.Set.Quota(id); ok && !of[id] {
			of[id] = true
			o.reserved += l.rates.Reserved(id, found)
		}
	}
	if m := l.limits[permits.BusyKey(l.cfg.Cluster, queues[0].topic, queues[0].name)]; m != nil {
		m.rule.MinRate = max(o.least, o.reserved)
	}
}

// addBusyLimit adds the limit by which the queue slows down, if its handlers report.
func (q *queue) addBusyLimit(p *plan, of policy.Policy) {
	rule := busyRule(of)
	q.family.outcomes.matter.Store(outcomesThatMatter(of))
	if rule.Mode == busy.None || !q.family.outcomes.reported.Load() {
		return
	}
	l := q.limiter
	q.family.outcomes.least = rule.MinRate
	rule.MinRate = max(rule.MinRate, q.family.outcomes.reserved)
	a := q.account(permits.BusyKey(l.cfg.Cluster, q.topic, q.name), q.name, ReasonBusy)
	a.limit.slow(rule, of, revision{l.snapshot.Identity, l.snapshot.Revision})
	a.loss, a.weight, a.plain = policy.OutageShare, policy.DefaultWeight, false // it is no budget: without the permit store, nothing is known
	p.messages = append(p.messages, a)
}

// slow takes over what the policies say of a limit that slows down for others.
func (m *limit) slow(rule busy.Rule, p policy.Policy, rev revision) {
	changed := *m
	changed.rate, changed.round, changed.rule = busy.Max, p.RoundDuration().Seconds(), rule
	if changed != *m || m.rev.identity != rev.identity {
		changed.rev = rev
		*m = changed
	}
}

// grace is how late permits may be released, seconds. After a pause, a bunch of them would make a busy service busier.
func (m *limit) grace() float64 {
	if m.rule.Mode != busy.None {
		return m.round / 5
	}
	return m.round
}

var outcomeNamed = map[string]Outcome{policy.OutcomeBusy: OutcomeBusy, policy.OutcomeFailed: OutcomeFailed, policy.OutcomeTimeout: OutcomeTimeout}

// outcomesThatMatter are the good ones and those that count as busy, a bit each.
func outcomesThatMatter(p policy.Policy) uint32 {
	if p.BusyRule() == policy.BusyNone {
		return 0
	}
	bits := uint32(1) << OutcomeOK
	for _, name := range p.BusyOutcomeNames() {
		bits |= 1 << outcomeNamed[name]
	}
	return bits
}

func busyRule(p policy.Policy) busy.Rule {
	switch p.BusyRule() {
	case policy.BusyFraction:
		return busy.Rule{Mode: busy.ByFraction, MinRate: p.BusyLeast(), Tolerance: p.BusyShare()}
	case policy.BusyTChannel:
		return busy.Rule{Mode: busy.ByCount, MinRate: p.BusyLeast(), RecoverRate: p.RecoverRate(), RecoverValue: p.RecoverValue()}
	}
	return busy.Rule{}
}
