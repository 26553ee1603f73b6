package dispatch

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// Fixed returns a source with one policy for everything, for tests and small programs. Among
// programs that share a permit store, the one that called Fixed last sets the rate.
func Fixed(p policy.Policy) PolicySource { return fixed{p, time.Now().UnixMilli()} }

type fixed struct {
	p     policy.Policy
	epoch int64
}

// Snapshots yields the policy once.
func (f fixed) Snapshots(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
	return func(yield func(policy.Snapshot, error) bool) {
		s := policy.Snapshot{
			Set: policy.Single(f.p), Epoch: f.epoch, Revision: 1, Plain: true,
		}
		if yield(s, nil) {
			<-ctx.Done()
		}
	}
}

// How long Open waits for the policies.
const (
	defaultOpenTimeout = 5 * time.Second
	cachedOpenTimeout  = time.Second // if there is a cache file
)

// checkRevision returns why a permit store would take the revision of a snapshot for damage.
func checkRevision(s policy.Snapshot) error {
	if !resolve.Revision(s).Valid() {
		return &policy.HeldError{
			Fault: policy.FaultRevision,
			Text: fmt.Sprintf("policies of epoch %d, revision %d: want 0..%g and 0..%g",
				s.Epoch, s.Revision, schedule.MaxEpoch, schedule.MaxNumber),
		}
	}
	return nil
}

// openPolicies starts to follow the policies until running ends, and waits for the first ones, or
// uses those of the cache file.
func (l *Limiter) openPolicies(ctx, running context.Context) error {
	cached, cacheErr := l.readCache()
	l.line = cached
	timeout, hint := l.cfg.OpenTimeout, ""
	switch {
	case timeout > 0:
	case cacheErr == nil:
		timeout = cachedOpenTimeout
	default:
		timeout = defaultOpenTimeout
	}
	if cacheErr != nil {
		hint = ": start the policy store or check its address, wait longer (OpenTimeout), " +
			"or keep a cache file (CacheFile) to start without it"
	}
	first := make(chan error, 1)
	l.done.Go(func() { l.followPolicies(running, first) })
	err := await(ctx, first, timeout, hint)
	switch {
	case err == nil:
		return nil
	case cacheErr == nil:
		l.useCache(running, cached.Known, err)
		return nil
	case l.cfg.CacheFile != "":
		return errors.Join(err, fmt.Errorf("dispatch: open: cache file: %w", cacheErr))
	}
	return err
}

// await returns nil when first reports that the policies are known. Otherwise it returns the error
// of their source, at once unless that is a timeout, or the end of timeout or ctx.
func await(ctx context.Context, first <-chan error, timeout time.Duration, hint string) error {
	start := time.Now()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	last := errors.New("the policy store has not answered")
	for {
		select {
		case err := <-first:
			if err == nil {
				return nil
			}
			t, ok := errors.AsType[interface {
				error
				Timeout() bool
			}](err)
			last = err
			if !ok || !t.Timeout() {
				return fmt.Errorf("dispatch: open: %w", err)
			}
		case <-ctx.Done():
			return fmt.Errorf("dispatch: open: no policies after %v: %w; last: %w",
				time.Since(start).Round(time.Millisecond), context.Cause(ctx), last)
		case <-timer.C:
			return fmt.Errorf("dispatch: open: no policies after %v: %w%s", timeout, last, hint)
		}
	}
}

// Ready returns nil if the policies in force are those of the policy store. Otherwise it returns
// why they are not: the store cannot be read, is empty, holds policies of another id, or is older
// than it was. The last policies stay in force then, so that a replica that is not ready
// still limits; a rollout should stop.
func (l *Limiter) Ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.source
}

// followPolicies puts each snapshot in force that may replace the newest one known. After a
// failure, temporary policies of the one in force end at their time. The outcomes up to the first
// one are sent to first, whose buffer keeps the last one.
func (l *Limiter) followPolicies(ctx context.Context, first chan error) {
	line := l.line
	known, warned := false, false
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
	failed := func(err error) {
		l.mu.Lock()
		was := l.source
		l.reported = l.reported || l.cfg.CacheFile == "" // else useCache reports it, or Open
		reported := l.reported
		l.source = err
		fell := l.line.Fell != line.Fell
		l.line = line
		l.age(ctx)
		l.mu.Unlock()
		if reported && policy.FaultOf(err) != policy.FaultOf(was) {
			what := "the policy store is not followed; the last policies stay in force"
			if line.Known.Set == nil {
				what = "the policy store is not followed, and no policies are known yet"
			}
			l.log.Warn(what, "error", err)
		}
		if fell {
			l.writeCache()
		}
		report(fmt.Errorf("read the policies: %w", err))
	}
	for s, err := range l.cfg.Policies.Snapshots(ctx) {
		if err == nil {
			err = checkRevision(s)
		}
		if err == nil {
			err = line.Follow(s)
		}
		if err != nil {
			failed(err)
			continue
		}
		s = line.Known
		matches := l.engine.Match(s.Set)
		l.mu.Lock()
		l.stopAging()
		was, reported := l.source, l.reported
		l.source, l.line, l.read, l.reported = nil, line, true, true
		l.putInForce(s, matches)
		l.mu.Unlock()
		if was != nil && reported {
			l.log.Warn("the policy store is followed again", "revision", s.Revision)
		}
		l.logFaults(s)
		if s.Identity == "" && !s.Plain && !warned {
			warned = true
			l.log.Warn("the policy store has no marker, so that another one in its place is not noticed: " +
				"run throttle-admin adopt, or change a policy with throttle-admin")
		}
		l.writeCache()
		report(nil)
	}
	if ctx.Err() == nil {
		failed(errors.New("the policy source has ended: restart the process to see changes"))
	}
}

// putInForce puts a snapshot in force, whose patterns match topics as given. l.mu is held.
func (l *Limiter) putInForce(s policy.Snapshot, matches engine.Matches) {
	tags := map[string]bool{}
	for id := range s.Set.Quotas() {
		if id.Kind == policy.TagKind {
			tags[id.Tag] = true
		}
	}
	l.tags.Store(&tags)
	l.snapshot, l.stored, l.invalid = s, 0, 0
	for _, e := range s.Set.Entries() {
		l.stored++
		if e.Err != nil {
			l.invalid++
		}
	}
	l.engine.ApplyPolicies(s, matches)
}

// logFaults logs each policy of a snapshot that is invalid, unless the last snapshot had the same
// fault.
func (l *Limiter) logFaults(s policy.Snapshot) {
	faults := map[string]error{}
	for _, e := range s.Set.Entries() {
		if e.Err != nil {
			faults[strings.Join([]string{e.Section().String(), e.Scope.String(), e.Field}, " ")] = e.Err
		}
	}
	l.mu.Lock()
	before := l.faults
	l.faults = faults
	l.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		if was := before[name]; was == nil || was.Error() != faults[name].Error() {
			l.log.Warn("a stored policy is invalid: its last valid settings stay in force, if they are known",
				"policy", name, "error", faults[name])
		}
	}
}

// age ends the temporary policies in force at their time, until ctx ends or the policy source
// provides others. l.mu is held.
func (l *Limiter) age(ctx context.Context) {
	l.stopAging()
	aging, stop := context.WithCancel(ctx)
	l.stopAging = stop
	s := l.snapshot
	l.done.Go(func() { l.expire(aging, s) })
}

// expire ends the temporary policies of a snapshot at their time, while it is in force.
func (l *Limiter) expire(ctx context.Context, s policy.Snapshot) {
	for end := s.Set.NextEnd(); !end.IsZero(); end = s.Set.NextEnd() {
		timer := time.NewTimer(time.Until(end))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		next := s.At(time.Now())
		matches := l.engine.Match(next.Set)
		l.mu.Lock()
		inForce := ctx.Err() == nil && l.snapshot.Set == s.Set
		if inForce {
			s = next
			l.putInForce(s, matches)
		}
		l.mu.Unlock()
		if !inForce {
			return
		}
	}
}
