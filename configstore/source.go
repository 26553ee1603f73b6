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

// How long a store may take to be listed for the first time: more after each failure. It starts
// below the second that a Limiter with a cache file waits, so that the log has the reason.
const (
	minPatience = 700 * time.Millisecond
	maxPatience = 10 * time.Second
)

// Snapshots yields all policies as they are now, and again after each change, until ctx ends, the
// store is closed or the consumer stops. An error is yielded once for each outage, and passes: the
// policies yielded last stay true as far as anybody knows. A store that does not answer is such an error, too. An entry that cannot be read any more keeps the
// last policy that could be, and says so in its Err.
//
// The end of a temporary policy is a change, whether or not the store has deleted it. All replicas list the store
// then, so that none of them has a lower revision than any had while the policy was in force: a permit store takes the rate of the
// highest. While the store is away, a replica ends what is over by itself, at the next revision after
// the one it had, and yields the error again.
func (f *Follower) Snapshots(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
	return func(yield func(policy.Snapshot, error) bool) {
		s := &state{yield: yield, patience: minPatience}
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
	patience time.Duration // with a store that has not been listed yet
	stopped  bool          // by the consumer or for good
	entries  []policy.Entry
	identity string
	last     policy.Snapshot // that was published; its Set is nil before
	down     bool            // an error has been reported since all was well
	setFault string          // what was reported to be wrong with the policies together
}

// follow lists and watches until the watch ends; ok is false if it could not even list.
func (s *state) follow(ctx context.Context, store Store) (ok bool) {
	listing, cancel := s.untilEnd(ctx, grace)
	list, err := store.List(listing)
	cancel()
	if err != nil {
		s.patience = min(2*s.patience, maxPatience)
		if s.age() || !s.down || errors.Is(err, ErrClosed) {
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
	watching, cancel := s.untilEnd(ctx, 0)
	defer cancel()
	end := s.last.Set.NextEnd()
	for b, err := range store.Watch(watching, list.Revision) {
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
		if s.stopped || !s.last.Set.NextEnd().Equal(end) { // another time to list
			break
		}
	}
	return true
}

// grace is how long a store may take to say what there is after the end of a temporary policy.
const grace = time.Second

// untilEnd returns a context that ends some time after the next end of a temporary policy, if there is
// one, or as patience says if nothing has been listed yet.
func (s *state) untilEnd(ctx context.Context, after time.Duration) (context.Context, context.CancelFunc) {
	if s.last.Set == nil {
		return context.WithTimeout(ctx, s.patience)
	}
	if end := s.last.Set.NextEnd(); !end.IsZero() {
		return context.WithTimeout(ctx, max(0, time.Until(end))+after)
	}
	return context.WithCancel(ctx)
}

// age publishes what is left if something has ended.
func (s *state) age() bool {
	if s.last.Set == nil {
		return false
	}
	end := s.last.Set.NextEnd()
	over := !end.IsZero() && !time.Now().Before(end)
	if over {
		s.publish(s.last.Revision)
	}
	return over
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
	s.last = policy.Snapshot{Set: set, Identity: s.identity, Revision: revision}.At(time.Now())
	if s.last.Set != set {
		s.entries = s.last.Set.Entries()
	}
	s.stopped = !s.yield(s.last, nil)
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
