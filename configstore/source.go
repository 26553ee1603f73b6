package configstore

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// A Follower makes a Store the source of policies of a Limiter. Use [Source].
type Follower struct{ store Store }

// Source returns a Follower of a store. The caller still closes the store.
func Source(store Store) *Follower { return &Follower{store} }

// The wait before a failed store is listed again.
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
// store is closed or the consumer stops. An error is yielded once for each outage, and is
// temporary: the policies yielded last stay in force. A store that does not answer is such an
// error too, and so is one that is empty and not adopted; see [Marker]. An entry that can no longer
// be read keeps its last valid settings, and has the reason in its Err.
//
// The end of a temporary entry is a change, whether or not the store has deleted the entry. All
// replicas list the store then, so that none has a lower revision than any had while the entry was
// in force: a permit store takes the rate of the highest revision. After an error, nothing is
// yielded at that time: the consumer ends expired entries by itself, with [policy.Snapshot.At].
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

// state is what is known on behalf of one consumer.
type state struct {
	yield    func(policy.Snapshot, error) bool
	patience time.Duration   // with a store that has not been listed yet
	stopped  bool            // by the consumer, or since the store is closed
	entries  []policy.Entry  // in the store
	marker   Marker          // likewise
	plain    bool            // the store is
	last     policy.Snapshot // that was published; its Set is nil before the first
	down     bool            // an error was reported after the last snapshot
	refused  string          // why what is in the store was not published; "" = it was
}

// follow lists and watches until the watch ends; ok is false if it could not even list.
func (s *state) follow(ctx context.Context, store Store) (ok bool) {
	listing, cancel := s.untilEnd(ctx, grace)
	list, err := store.List(listing)
	cancel()
	if err != nil {
		s.patience = min(2*s.patience, maxPatience)
		s.age()
		if !s.down || errors.Is(err, ErrClosed) {
			s.report(ctx, err)
		}
		return false
	}
	if list.Marker.ID != s.marker.ID {
		s.entries = nil // another store's last valid settings are not this one's
	}
	for i := range list.Entries {
		s.keepValid(&list.Entries[i])
	}
	s.entries, s.marker, s.plain = list.Entries, list.Marker, list.Plain
	s.publish(list.Revision)
	if s.stopped {
		return true
	}
	watching, cancel := s.untilEnd(ctx, 0)
	defer cancel()
	end := s.nextEnd()
	for b, err := range store.Watch(watching, list) {
		switch {
		case err != nil:
			s.report(ctx, err)
		default:
			b.Puts = slices.Clone(b.Puts) // others watch the same store
			for i := range b.Puts {
				s.keepValid(&b.Puts[i])
			}
			s.entries, s.marker = b.apply(s.entries), b.Marker
			s.publish(b.Revision)
		}
		if s.stopped || !s.nextEnd().Equal(end) { // list at another time
			break
		}
	}
	return true
}

// grace is how long a store may take to be listed after the end of a temporary entry.
const grace = time.Second

// untilEnd returns a context that ends some time after the next end of a temporary entry, if there
// is one, or after patience if nothing has been listed yet.
func (s *state) untilEnd(
	ctx context.Context, after time.Duration,
) (context.Context, context.CancelFunc) {
	if end := s.nextEnd(); !end.IsZero() {
		return context.WithTimeout(ctx, max(0, time.Until(end))+after)
	}
	if s.last.Set == nil && s.refused == "" {
		return context.WithTimeout(ctx, s.patience)
	}
	return context.WithCancel(ctx)
}

// nextEnd returns the next end of a temporary entry that is in force; the zero time if none is.
func (s *state) nextEnd() time.Time {
	if s.last.Set == nil {
		return time.Time{}
	}
	return s.last.Set.NextEnd()
}

// age drops the temporary entries that have expired from the last snapshot, which stays in force.
// Its consumer does the same.
func (s *state) age() {
	if s.last.Set != nil {
		s.last = s.last.At(time.Now())
	}
}

// keepValid gives an entry that cannot be read its last valid settings.
func (s *state) keepValid(e *policy.Entry) {
	if e.Err == nil {
		fault := e.Scope.Validate()
		if fault == nil {
			return
		}
		e.Err = fault
	}
	if i, ok := search(s.entries, KeyOf(*e)); ok {
		e.Settings = s.entries[i].Settings
	}
}

func (s *state) publish(revision int64) {
	if s.stopped {
		return
	}
	if err := s.marker.Check(s.entries, time.Now()); err != nil {
		if s.age(); s.refused != err.Error() {
			s.down, s.refused = false, err.Error() // an outage that follows is reported, too
			s.stopped = s.stopped || !s.yield(policy.Snapshot{}, err)
		}
		return
	}
	s.down, s.refused = false, ""
	set, _ := policy.NewSet(s.entries) // copies them; those with a fault have an Err
	s.last = policy.Snapshot{
		Set: set, Identity: s.marker.ID, Epoch: s.marker.Epoch, Serial: s.marker.Serial,
		Revision: revision, Plain: s.plain,
	}.At(time.Now())
	if s.last.Set != set {
		s.entries = s.last.Set.Entries()
	}
	s.stopped = !s.yield(s.last, nil)
}

// report yields an error that the consumer does not know yet.
func (s *state) report(ctx context.Context, err error) {
	switch {
	case s.stopped || ctx.Err() != nil || errors.Is(err, ErrCompacted):
	case errors.Is(err, ErrClosed):
		s.stopped = true
	default:
		s.down, s.refused = true, "" // what the store holds after the outage is reported again
		s.stopped = !s.yield(policy.Snapshot{}, err)
	}
}

// sleep waits, and returns false if ctx ended.
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
