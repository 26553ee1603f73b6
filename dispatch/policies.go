package dispatch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// Fixed is one policy for everything: for tests and small programs.
func Fixed(p policy.Policy) PolicySource { return fixed{p} }

type fixed struct{ p policy.Policy }

// Snapshots yields the policy once; its identity is its content, so that a changed one counts as newer.
func (f fixed) Snapshots(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
	return func(yield func(policy.Snapshot, error) bool) {
		text, err := policy.Marshal(f.p)
		if err != nil {
			yield(policy.Snapshot{}, err)
			return
		}
		identity := fmt.Sprintf("fixed:%x", sha256.Sum256(text))[:22]
		if yield(policy.Snapshot{Set: policy.Single(f.p), Identity: identity, Revision: 1}, nil) {
			<-ctx.Done()
		}
	}
}

// follow puts each snapshot in force. The outcomes up to the first snapshot go to first, whose
// buffer keeps the last one.
func (l *Limiter) follow(ctx context.Context, first chan error) {
	known := false
	report := func(err error) {
		if known {
			return
		}
		known = err == nil
		select {
		case <-first: //nolint:errcheck // an older outcome
		default:
		}
		first <- err
	}
	failed := func(message string, err error) {
		l.log.Warn(message, "error", err)
		l.mu.Lock()
		l.source = err
		l.mu.Unlock()
	}
	for s, err := range l.cfg.Policies.Snapshots(ctx) {
		if err != nil {
			failed("policies cannot be read; the last ones stay in force", err)
			report(fmt.Errorf("read the policies: %w", err))
			continue
		}
		l.mu.Lock()
		l.source = nil
		l.adopt(s)
		l.mu.Unlock()
		l.keepCache()
		report(nil)
	}
	err := errors.New("the policy source ended")
	if ctx.Err() == nil { // else the Limiter has ended it
		failed("policies are no longer followed; the last ones stay in force: restart the process", err)
	}
	report(err)
}

// adopt puts a snapshot in force. The caller holds l.mu.
func (l *Limiter) adopt(s policy.Snapshot) {
	l.snapshot = s
	l.bad = 0
	tags := map[string]bool{}
	for id := range s.Set.Quotas() {
		if id.Kind == policy.TagKind {
			tags[id.Tag] = true
		}
	}
	l.tags.Store(&tags)
	for _, e := range s.Set.Entries() {
		if e.Err != nil {
			l.bad++
		}
	}
	for _, q := range l.queues {
		q.resolve()
	}
	l.reserve()
	l.wake()
}

// readCache returns the policies last seen, or an error if there are none.
func (l *Limiter) readCache() (s policy.Snapshot, err error) {
	text, err := os.ReadFile(l.cfg.CacheFile)
	if err == nil {
		s, err = policy.UnmarshalSnapshot(text)
		l.replicas.Store(replicasIn(text))
	}
	return s, err
}

// useCache starts from the policies last seen. Until ctx ends or the store answers, temporary ones end when their time comes.
func (l *Limiter) useCache(ctx context.Context, s policy.Snapshot, reason error) {
	l.log.Warn("policies are those of the cache file until their store is back", "file", l.cfg.CacheFile, "revision", s.Revision, "error", reason)
	l.mu.Lock()
	defer l.mu.Unlock()
	if s = s.At(time.Now()); l.snapshot.Identity == "" { // else the store has answered by now
		if l.source == nil {
			l.source = reason // the store has not said anything
		}
		l.adopt(s)
		l.done.Go(func() { l.age(ctx, s) })
	}
}

// age ends the temporary policies of a snapshot while it is in force.
func (l *Limiter) age(ctx context.Context, s policy.Snapshot) {
	for end := s.Set.NextEnd(); !end.IsZero(); end = s.Set.NextEnd() {
		timer := time.NewTimer(time.Until(end))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		l.mu.Lock()
		mine := ctx.Err() == nil && l.snapshot.Set == s.Set
		if mine {
			s = s.At(time.Now())
			l.adopt(s)
		}
		l.mu.Unlock()
		if !mine {
			return
		}
	}
}

// keepCache writes the cache file; a failure is logged and harmless.
func (l *Limiter) keepCache() {
	if l.cfg.CacheFile == "" {
		return
	}
	l.cacheMu.Lock() // an older snapshot must not follow a newer one
	defer l.cacheMu.Unlock()
	l.mu.Lock()
	s := l.snapshot
	l.mu.Unlock()
	text, err := policy.MarshalSnapshot(s)
	if err == nil {
		err = replaceFile(l.cfg.CacheFile, withReplicas(text, l.replicas.Load()))
	}
	if err != nil && !errors.Is(err, fs.ErrClosed) {
		l.log.Warn("the cache file of policies could not be written", "file", l.cfg.CacheFile, "error", err)
	}
}

// replaceFile writes a file so that a reader sees the old text or the new, never a part.
func replaceFile(name string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".policies-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already if all went well
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// resolve brings the queue's limits in line with the policies. The caller holds limiter.mu.
func (q *queue) resolve() {
	l := q.limiter
	e := l.snapshot.Set.Resolve(l.cfg.Cluster, q.topic, q.name)
	for _, tie := range e.Ties {
		if pair := [2]policy.Scope{tie.A, tie.B}; !l.ties[pair] {
			l.ties[pair] = true
			l.log.Warn("two patterns tie; the one that sorts first wins", "wins", tie.A, "loses", tie.B, "topic", tie.Topic, "priority", tie.Priority)
		}
	}
	q.threshold, q.throttlesCaughtUp = e.Subscription.CaughtUpThreshold(), e.Subscription.ThrottlesCaughtUp()
	old := q.limits
	p := &plan{
		queue: q, shadow: e.Subscription.IsShadow() && !e.Subscription.IsPaused(), paused: e.Subscription.IsPaused(),
		inFlight: e.Subscription.InFlight(),
	}
	own := policy.SubscriptionScope(q.topic, q.name)
	shares := sharer{q.name, e.Subscription.ShareWeight(), e.Subscription.Reserved.PerSec(), e.Subscription.ReservedBytes.PerSec()}
	topic := e.Topic
	topic.OnOutage = e.Subscription.OnOutage
	q.addLimits(p, policy.TopicScope(q.topic), topic, shares)
	q.addLimits(p, own, e.Subscription, sharer{name: q.name, weight: policy.DefaultWeight})
	q.addBusyLimit(p, e.Subscription)
	shares.name = own.String()
	q.addQuota(p, shares)
	for _, g := range e.Aggregates {
		q.addLimits(p, g.Scope, g.Policy, shares)
	}
	p.join()
	p.pace()
	for _, a := range p.messages {
		q.lineUp(a)
	}
	p.shorten()
	q.limits = p
	for _, a := range old.all() {
		if !p.has(a) {
			l.dropUser(a.limit)
			delete(l.lineups, a.waiter) // it still leaves under this name
			q.retired = append(q.retired, a)
		}
	}
	q.obey()
}

// A sharer is how a queue shares a limit.
type sharer struct {
	name                    string // of whom the schedule shares by
	weight                  float64
	reserved, reservedBytes float64 // a second
}

// addLimits adds the limits of a scope to a plan.
func (q *queue) addLimits(p *plan, scope policy.Scope, of policy.Policy, by sharer) {
	if of.MessageRate.Limited() {
		a := q.account(permits.LimitKey(q.limiter.cfg.Cluster, scope, false), by.name, ReasonOf(scope.Kind, false))
		a.set(of.MessageRate, of.RampFrom, of.MessageBurst(), of, by.weight, by.reserved, of.IsStrict(), q.limiter.snapshot)
		q.split(a, of)
		q.group(a, of)
		p.messages = append(p.messages, a)
	}
	if of.ByteRate.Limited() {
		a := q.account(permits.LimitKey(q.limiter.cfg.Cluster, scope, true), by.name, ReasonOf(scope.Kind, true))
		a.set(of.ByteRate, of.RampFromBytes, of.BytesBurst(), of, by.weight, by.reservedBytes, false, q.limiter.snapshot)
		p.bytes = append(p.bytes, a)
	}
}

// account returns the queue's account of a limit: the one it has, or had lately, or a new one.
func (q *queue) account(key, sharer string, reason Reason) *account {
	l := q.limiter
	m := l.limits[key]
	if m == nil {
		m = &limit{key: key}
		l.limits[key] = m
	}
	for _, a := range q.limits.all() {
		if a.limit == m {
			return a
		}
	}
	m.users++
	for i, a := range q.retired {
		if a.limit.key == key {
			q.retired = slices.Delete(q.retired, i, i+1)
			a.limit = m
			a.queue, a.dropAt = q, 0
			return a
		}
	}
	a := newAccount(m, sharer, reason, l.clock(time.Now()))
	a.queue = q
	return a
}

// set takes over what the policies say.
func (a *account) set(rate, from policy.Rate, burst int64, p policy.Policy, weight, reserved float64, strict bool, s policy.Snapshot) {
	was := a.limit.rev
	a.limit.set(rate, from, burst, p, strict, revision{s.Identity, s.Revision})
	if a.limit.rev != was && was != (revision{}) {
		a.askAgain()
	}
	a.loss, a.weight, a.reserved = p.Outage(), weight, reserved
	a.plain = a.reason.plain() && !strict
}

// set takes over what the policies say; the revision moves on only when that has changed.
func (m *limit) set(rate, from policy.Rate, burst int64, p policy.Policy, strict bool, rev revision) {
	changed := *m
	changed.rate, changed.burst, changed.ramp = rate.PerSec(), float64(burst), rampTo(rate.PerSec(), from.PerSec(), p)
	changed.round = p.RoundDuration().Seconds()
	changed.strict, changed.queue, changed.ahead, changed.expiry = strict, strict && p.Queues(), 0, 0
	if strict {
		changed.burst, changed.ahead, changed.expiry = 0, float64(p.ReservedAhead()), p.ExpiryDuration().Seconds()
	}
	if changed != *m || m.rev.identity != rev.identity {
		changed.rev = rev
		*m = changed
	}
}

// rampTo is the ramp to a rate, if the policy has one: from the smallest step unless it says otherwise.
func rampTo(rate, from float64, p policy.Policy) schedule.Ramp {
	over := p.RampDuration().Seconds()
	if over == 0 {
		return schedule.Ramp{}
	}
	if from == 0 {
		from = rate / over
	}
	return schedule.Ramp{From: from, Over: over, TTL: p.RampTTLDuration().Seconds(), Relaxed: p.Ramp == policy.RampRelaxed}
}

func (l *Limiter) dropUser(m *limit) {
	if m.users--; m.users == 0 {
		delete(l.limits, m.key)
	}
}

// obey sets what callers obey: the limits that apply now, or nothing if there is none.
// The caller holds limiter.mu.
func (q *queue) obey() {
	if old := q.plan.Load(); old != nil && old.closed {
		return
	}
	p := q.limits
	if !p.paused {
		exempt := q.caughtUp && !q.throttlesCaughtUp
		p = p.without(func(a *account) bool { return a.open || exempt && a.plain })
	}
	if q.plan.Load() == p {
		if q.caughtUp || slices.ContainsFunc(q.limits.all(), func(a *account) bool { return a.open }) {
			q.activate() // for the loop to see when the exemption ends
		}
		if len(q.retired) > 0 {
			q.activate() // what they hold goes back
		}
		return
	}
	q.plan.Store(p)
	q.serve(time.Now())
	q.activate() // what is allocated goes back, or those who wait are served
}

// followLedger opens limits when the permit store is away and their policies say so, and closes them again.
// The caller holds limiter.mu.
func (q *queue) followPermits() {
	changed := false
	for _, a := range q.limits.all() {
		open := a.loss == policy.OutageOpen && a.outage() && (a.open || a.away())
		changed = changed || open != a.open
		a.open = open
	}
	if changed {
		q.obey()
	}
}
