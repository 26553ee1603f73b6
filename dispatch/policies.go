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

// follow puts each snapshot in force. The first outcome goes to first.
func (l *Limiter) follow(ctx context.Context, first chan<- error) {
	report := func(err error) {
		select {
		case first <- err:
		default:
		}
	}
	for s, err := range l.cfg.Policies.Snapshots(ctx) {
		if err != nil {
			l.log.Warn("policies cannot be read; the last ones stay in force", "error", err)
			l.mu.Lock()
			l.source = err
			l.mu.Unlock()
			report(fmt.Errorf("dispatch: read the policies: %w", err))
			continue
		}
		l.mu.Lock()
		l.source = nil
		l.adopt(s)
		l.mu.Unlock()
		l.keepCache(s)
		report(nil)
	}
	report(errors.New("dispatch: the policy source ended"))
}

// adopt puts a snapshot in force. The caller holds l.mu.
func (l *Limiter) adopt(s policy.Snapshot) {
	l.snapshot = s
	l.bad = 0
	for _, e := range s.Set.Entries() {
		if e.Err != nil {
			l.bad++
		}
	}
	for _, q := range l.queues {
		q.resolve()
	}
	l.wake()
}

// useCache starts from the policies last seen; it returns an error if there are none. Until ctx ends or the store answers,
// temporary ones end when their time comes.
func (l *Limiter) useCache(ctx context.Context, reason error) error {
	if l.cfg.CacheFile == "" {
		return reason
	}
	text, err := os.ReadFile(l.cfg.CacheFile)
	var s policy.Snapshot
	if err == nil {
		s, err = policy.UnmarshalSnapshot(text)
	}
	if err != nil {
		return errors.Join(reason, fmt.Errorf("dispatch: nor from the cache file: %w", err))
	}
	l.log.Warn("policies are those of the cache file until their store is back", "file", l.cfg.CacheFile, "revision", s.Revision, "error", reason)
	l.mu.Lock()
	defer l.mu.Unlock()
	if s = s.At(time.Now()); l.snapshot.Identity == "" { // else the store has answered by now
		l.adopt(s)
		l.done.Go(func() { l.age(ctx, s) })
	}
	return nil
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
func (l *Limiter) keepCache(s policy.Snapshot) {
	if l.cfg.CacheFile == "" {
		return
	}
	text, err := policy.MarshalSnapshot(s)
	if err == nil {
		err = replaceFile(l.cfg.CacheFile, text)
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
	s := l.snapshot
	e := s.Set.Resolve(l.cfg.Cluster, q.topic, q.name)
	q.threshold, q.throttlesCaughtUp = e.Subscription.CaughtUpThreshold(), e.Subscription.ThrottlesCaughtUp()
	old := q.limits
	p := &plan{queue: q, shadow: e.Subscription.IsShadow() && !e.Subscription.IsPaused(), paused: e.Subscription.IsPaused()}
	add := func(list []*account, rate policy.Rate, burst int64, behave policy.Policy, reason Reason) []*account {
		if !rate.Limited() {
			return list
		}
		key := limitKey(l.cfg.Cluster, q, reason)
		lim := l.limits[key]
		if lim == nil {
			lim = &limit{key: key}
			l.limits[key] = lim
		}
		lim.set(rate, burst, behave, revision{s.Identity, s.Revision})
		for _, a := range old.all() {
			if a.limit == lim {
				return append(list, a)
			}
		}
		lim.users++
		for i, a := range q.retired {
			if a.limit.key == key {
				q.retired = slices.Delete(q.retired, i, i+1)
				a.limit = lim
				return append(list, a)
			}
		}
		return append(list, newAccount(lim, q.name, reason, l.clock(time.Now())))
	}
	t, u := e.Topic, e.Subscription
	p.messages = add(p.messages, t.MessageRate, t.MessageBurst(), t, ReasonMessages)
	p.messages = add(p.messages, u.MessageRate, u.MessageBurst(), u, ReasonSubscriptionMessages)
	p.bytes = add(p.bytes, t.ByteRate, t.BytesBurst(), t, ReasonBytes)
	p.bytes = add(p.bytes, u.ByteRate, u.BytesBurst(), u, ReasonSubscriptionBytes)
	if len(p.messages) == 1 && len(p.bytes) == 0 && !p.shadow && !p.paused {
		p.only = p.messages[0]
	}
	q.limits = p
	for _, a := range old.all() {
		if !p.has(a) {
			l.dropUser(a.limit)
			q.retired = append(q.retired, a)
		}
	}
	for _, a := range p.all() {
		a.loss = e.Subscription.LedgerLoss()
	}
	q.obey()
}

// set takes over what the policies say; the revision moves on only when that has changed.
func (m *limit) set(rate policy.Rate, burst int64, p policy.Policy, rev revision) {
	changed := *m
	changed.rate, changed.burst = rate.PerSec(), float64(burst)
	changed.round = p.RoundDuration().Seconds()
	if changed != *m || m.rev.identity != rev.identity {
		changed.rev = rev
		*m = changed
	}
}

func limitKey(cluster string, q *queue, reason Reason) string {
	subscription := ""
	if reason == ReasonSubscriptionMessages || reason == ReasonSubscriptionBytes {
		subscription = q.name
	}
	return LimitKey(cluster, q.topic, subscription, reason == ReasonBytes || reason == ReasonSubscriptionBytes)
}

func (l *Limiter) dropUser(m *limit) {
	if m.users--; m.users == 0 {
		delete(l.limits, m.key)
	}
}

func (p *plan) all() []*account {
	if p == nil {
		return nil
	}
	return append(append(make([]*account, 0, 4), p.messages...), p.bytes...)
}

func (p *plan) has(a *account) bool {
	return slices.Contains(p.all(), a)
}

// obey sets what callers obey: the limits, or nothing if none is set or none applies now.
// The caller holds limiter.mu.
func (q *queue) obey() {
	p := q.limits
	if old := q.plan.Load(); old != nil && old.closed {
		return
	}
	switch {
	case p.paused:
	case len(p.messages)+len(p.bytes) == 0, q.open, q.caughtUp && !q.throttlesCaughtUp:
		p = nil
	}
	if q.plan.Load() == p {
		if q.caughtUp {
			q.activate() // for the loop to see when the exemption ends
		}
		return
	}
	q.plan.Store(p)
	q.serve(time.Now())
	q.activate() // what is booked goes back, or those who wait are served
}

// followLedger opens the queue when the ledger is away and its policy says so, and closes it again.
// The caller holds limiter.mu.
func (q *queue) followLedger() {
	open := false
	for _, a := range q.limits.all() {
		open = open || a.loss == policy.LossOpen && a.failures > 0 && (q.open || a.away())
	}
	if open != q.open {
		q.open = open
		q.obey()
	}
}
