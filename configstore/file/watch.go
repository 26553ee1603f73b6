package file

import (
	"context"
	"iter"
	"time"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// checkEvery is the time between two checks of a watched file that has no events: a stat each.
// It bounds the delay where the system reports no changes: on network file systems, for
// directories that cannot be read, when the user has no inotify instances left, and when a
// directory further up is replaced.
const checkEvery = time.Second

// Watch implements configstore.Store. The system reports changes of the file, and Watch yields
// them 10 ms later; a change that is not reported is found within a second. A file that cannot be
// read is an error, yielded once for each content; its last valid policies stay in force.
func (s *Store) Watch(ctx context.Context, after configstore.Snapshot) iter.Seq2[configstore.Batch, error] {
	return func(yield func(configstore.Batch, error) bool) {
		n := newNotifier(s.path)
		defer n.close()
		var seen []policy.Entry
		at := after.Revision
		reported := "" // the fault that was reported last, and its content, while it lasts
		for first := true; ctx.Err() == nil; first = false {
			n.arm() // before the file is read, so that no change falls between
			st, err := s.look()
			entries, revision := st.at(time.Now())
			switch {
			case err != nil || first && revision != at:
				if err == nil {
					err = configstore.ErrCompacted // the changes up to here are unknown
				}
				yield(configstore.Batch{}, err)
				return
			case first:
				seen = entries
			case revision != at:
				b := diff(seen, entries)
				b.Revision, b.Marker = revision, st.marker()
				seen, at = entries, revision
				if !yield(b, nil) {
					return
				}
			}
			fault := ""
			if st.err != nil {
				fault = st.err.Error() + string(st.data)
			}
			if reported != fault {
				reported = fault
				if fault != "" && !yield(configstore.Batch{}, st.err) {
					return
				}
			}
			n.wait(ctx, s.closed, min(s.checkEvery, untilEnd(entries)))
		}
	}
}

// untilEnd returns the time until the first temporary entry ends.
func untilEnd(entries []policy.Entry) time.Duration {
	wait := time.Duration(1<<63 - 1)
	for _, e := range entries {
		if e.Temporary {
			wait = min(wait, time.Until(e.Expires))
		}
	}
	return wait
}

// diff returns what turns one list into the other.
func diff(from, to []policy.Entry) (b configstore.Batch) {
	old := make(map[configstore.Key]policy.Entry)
	for _, e := range from {
		old[configstore.KeyOf(e)] = e
	}
	for _, e := range to {
		was, ok := old[configstore.KeyOf(e)]
		if !ok || !configstore.Same(was, e) {
			b.Puts = append(b.Puts, e)
		}
		delete(old, configstore.KeyOf(e))
	}
	for _, e := range from {
		if _, gone := old[configstore.KeyOf(e)]; gone {
			b.Deletes = append(b.Deletes, configstore.KeyOf(e))
		}
	}
	return b
}
