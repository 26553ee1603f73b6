package dispatch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// Fixed returns a source with one policy for everything, for tests and small programs.
func Fixed(p policy.Policy) PolicySource { return fixed{p} }

type fixed struct{ p policy.Policy }

// Snapshots yields the policy once. Its identity is a hash of the policy, so that a changed one
// counts as newer.
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

// How long Open waits for the policies.
const (
	defaultOpenTimeout = 5 * time.Second
	cachedOpenTimeout  = time.Second // if there is a cache file
)

// openPolicies starts to follow the policies until running ends, and waits for the first ones, or
// uses those of the cache file.
func (l *Limiter) openPolicies(ctx, running context.Context) error {
	cached, cacheErr := l.readCache()
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
		l.useCache(running, cached, err)
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
			if last = err; !ok || !t.Timeout() {
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

// followPolicies puts each snapshot in force. The outcomes up to the first snapshot are sent to
// first, whose buffer keeps the last one.
func (l *Limiter) followPolicies(ctx context.Context, first chan error) {
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
	failed := func(err error) {
		l.log.Warn("the policies cannot be read; the last ones stay in force", "error", err)
		l.mu.Lock()
		l.source = err
		l.mu.Unlock()
		report(fmt.Errorf("read the policies: %w", err))
	}
	for s, err := range l.cfg.Policies.Snapshots(ctx) {
		if err != nil {
			failed(err)
			continue
		}
		l.mu.Lock()
		l.source = nil
		l.putInForce(s)
		l.mu.Unlock()
		l.writeCache()
		report(nil)
	}
	if ctx.Err() == nil {
		failed(errors.New("the policy source has ended: restart the process to see changes"))
	}
}

// putInForce puts a snapshot in force. l.mu is held.
func (l *Limiter) putInForce(s policy.Snapshot) {
	tags := map[string]bool{}
	for id := range s.Set.Quotas() {
		if id.Kind == policy.TagKind {
			tags[id.Tag] = true
		}
	}
	l.tags.Store(&tags)
	l.snapshot, l.invalid = s, 0
	for _, e := range s.Set.Entries() {
		if e.Err != nil {
			l.invalid++
		}
	}
	l.engine.ApplyPolicies(s)
}

// expire ends the temporary policies of a snapshot at their time, while it is in force.
func (l *Limiter) expire(ctx context.Context, s policy.Snapshot) {
	for end := s.Set.NextEnd(); !end.IsZero(); end = s.Set.NextEnd() {
		timer := time.NewTimer(time.Until(end))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		l.mu.Lock()
		inForce := ctx.Err() == nil && l.snapshot.Set == s.Set
		if inForce {
			s = s.At(time.Now())
			l.putInForce(s)
		}
		l.mu.Unlock()
		if !inForce {
			return
		}
	}
}
