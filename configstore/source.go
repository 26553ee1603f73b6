package configstore

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// A Follower turns a Store into the source of policies of a Limiter; Source makes one.
type Follower struct{ store Store }

// Source returns what follows a store. Closing the store stays the caller's business.
func Source(store Store) *Follower { return &Follower{store} }

// How long to wait before a failed store is listed again.
const (
	minBackoff = 10 * time.Millisecond
	maxBackoff = time.Second
)

// Snapshots yields all policies as they are now, and again after each change, until ctx ends, the
// store is closed or the consumer stops. An error is yielded once for each outage, and passes: the
// policies yielded last stay true as far as anybody knows. An entry that cannot be read any more keeps the
// last policy that could be, and says so in its Err.
func (f *Follower) Snapshots(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
	return func(yield func(policy.Snapshot, error) bool) {
		s := &state{yield: yield}
		for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
			if s.follow(ctx, f.store) {
				backoff = minBackoff
			}
			if s.stopped || !sleep(ctx, backoff/2+rand.N(backoff)) {
				return
			}
		}
	}
}

// state is what one consumer knows.
type state struct {
	yield    func(policy.Snapshot, error) bool
	stopped  bool // by the consumer or for good
	entries  []policy.Entry
	identity string
	down     bool   // an error has been reported since all was well
	setFault string // what was reported to be wrong with the policies together
}

// follow lists and watches until the watch ends; ok is false if it could not even list.
func (s *state) follow(ctx context.Context, store Store) (ok bool) {
	list, err := store.List(ctx)
	if err != nil {
		if !s.down || errors.Is(err, ErrClosed) {
			s.report(ctx, err)
		}
		return false
	}
	if list.Identity != s.identity {
		s.entries = nil // of another store: its last good policies mean nothing here
	}
	for i := range list.Entries {
		s.keepGood(&list.Entries[i])
	}
	s.entries, s.identity = list.Entries, list.Identity
	if s.publish(list.Revision); s.stopped {
		return true
	}
	for b, err := range store.Watch(ctx, list.Revision) {
		switch {
		case err != nil:
			s.report(ctx, err)
		default:
			for i := range b.Puts {
				s.keepGood(&b.Puts[i])
			}
			s.entries = b.apply(s.entries)
			s.publish(b.Revision)
		}
		if s.stopped {
			break
		}
	}
	return true
}

// keepGood gives an entry that cannot be read the last policy that could be.
func (s *state) keepGood(e *policy.Entry) {
	if e.Err == nil {
		return
	}
	if i, ok := search(s.entries, KeyOf(*e)); ok {
		e.Policy = s.entries[i].Policy
	}
}

func (s *state) publish(revision int64) {
	if s.stopped {
		return
	}
	s.down = false
	set, err := policy.NewSet(s.entries) // copies them
	s.stopped = !s.yield(policy.Snapshot{Set: set, Identity: s.identity, Revision: revision}, nil)
	if err == nil {
		s.setFault = ""
	} else if !s.stopped && s.setFault != err.Error() {
		s.setFault = err.Error()
		s.stopped = !s.yield(policy.Snapshot{}, err)
	}
}

// report yields an error that is news.
func (s *state) report(ctx context.Context, err error) {
	switch {
	case s.stopped || ctx.Err() != nil || errors.Is(err, ErrCompacted):
	case errors.Is(err, ErrClosed):
		s.stopped = true
	default:
		s.down = true
		s.stopped = !s.yield(policy.Snapshot{}, err)
	}
}

// sleep waits; it is false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
