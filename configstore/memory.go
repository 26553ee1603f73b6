package configstore

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// Memory is a Store that lives as long as the process; NewMemory makes one, which has a marker.
type Memory struct {
	mu       sync.Mutex // guards the fields below
	marker   Marker
	entries  []policy.Entry
	revision int64         // starts at 1, so that no revision is 0
	applied  int64         // revision of the last Apply
	log      []Batch       // the last maxLog, one for each revision up to the present one
	history  []Record      // the last MaxHistory
	changed  chan struct{} // closed by the next batch
	closed   bool
}

var _ Store = (*Memory)(nil)

const maxLog = 1024 // batches

// NewMemory returns an empty store.
func NewMemory() *Memory {
	marker, _ := Marker{}.Adopted(Adoption{ID: "memory"}, nil, time.Now()) // no error without an epoch
	return &Memory{
		marker:   marker,
		revision: 1, applied: 1, changed: make(chan struct{}),
	}
}

// List implements Store.
func (m *Memory) List(ctx context.Context) (Snapshot, error) {
	if err := context.Cause(ctx); err != nil {
		return Snapshot{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return Snapshot{}, ErrClosed
	}
	m.expire(time.Now())
	return Snapshot{
		Entries: slices.Clone(m.entries), Marker: m.marker, Revision: m.revision,
		Applied: m.applied,
	}, nil
}

// Apply implements Store.
func (m *Memory) Apply(ctx context.Context, c Commit) (int64, error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.expire(now)
	switch {
	case m.closed:
		return 0, ErrClosed
	case c.IfRevision != 0 && m.applied > c.IfRevision:
		return 0, &ConflictError{Have: m.applied, Want: c.IfRevision}
	}
	if err := c.Check(m.entries); err != nil {
		return 0, err
	}
	marker, err := m.marker.Applied(m.entries, c.Changes, now)
	if err != nil {
		return 0, err
	}
	m.record(c, now)
	b := Batch{Revision: m.revision + 1, Marker: marker}
	for _, c := range c.Changes {
		if c.Deletes() {
			b.Deletes = append(b.Deletes, c.Key)
			continue
		}
		b.Puts = append(b.Puts, c.Entry(now, b.Revision))
	}
	m.commit(b)
	m.applied = m.revision
	return m.revision, nil
}

// record keeps the record of a commit that is about to be made.
func (m *Memory) record(c Commit, now time.Time) {
	r := c.Record(m.entries, now)
	r.Revision, r.First = m.revision+1, len(m.history) == 0
	if c.WithoutHistory {
		r.By, r.Found = By{}, true
	}
	if len(m.history) == MaxHistory {
		m.history = slices.Delete(m.history, 0, MaxHistory/10)
	}
	m.history = append(m.history, r)
}

// History implements Store.
func (m *Memory) History(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		m.mu.Lock()
		history, closed := slices.Clone(m.history), m.closed
		m.mu.Unlock()
		err := context.Cause(ctx)
		if closed {
			err = ErrClosed
		}
		if err != nil {
			yield(Record{}, err)
			return
		}
		for _, r := range slices.Backward(history) {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// Adopt implements Store.
func (m *Memory) Adopt(ctx context.Context, a Adoption) (Marker, error) {
	if err := context.Cause(ctx); err != nil {
		return Marker{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return Marker{}, ErrClosed
	}
	now := time.Now()
	m.expire(now)
	marker, err := m.marker.Adopted(a, m.entries, now)
	if err != nil {
		return Marker{}, err
	}
	m.commit(Batch{Revision: m.revision + 1, Marker: marker})
	return marker, nil
}

// Watch implements Store.
func (m *Memory) Watch(ctx context.Context, after Snapshot) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		seen := after.Revision
		for ctx.Err() == nil {
			batches, changed, wait, err := m.since(seen)
			if err != nil {
				yield(Batch{}, err)
				return
			}
			for _, b := range batches {
				if !yield(b, nil) {
					return
				}
				seen = b.Revision
			}
			if len(batches) > 0 {
				continue
			}
			due := time.NewTimer(wait)
			select {
			case <-ctx.Done():
			case <-changed:
			case <-due.C:
			}
			due.Stop()
		}
	}
}

// since returns the batches after a revision, a channel that the next batch closes, and the time
// until an entry expires.
func (m *Memory) since(after int64) (
	_ []Batch, changed <-chan struct{}, wait time.Duration, err error,
) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, 0, ErrClosed
	}
	now := time.Now()
	m.expire(now)
	wait = time.Hour
	for _, e := range m.entries {
		if e.Temporary {
			wait = min(wait, e.Expires.Sub(now))
		}
	}
	missing := m.revision - after
	if missing < 0 || missing > int64(len(m.log)) {
		return nil, nil, 0, ErrCompacted
	}
	return slices.Clone(m.log[len(m.log)-int(missing):]), m.changed, wait, nil
}

// expire deletes temporary entries that have expired.
func (m *Memory) expire(now time.Time) {
	var expired []Key
	for _, e := range m.entries {
		if e.Temporary && !now.Before(e.Expires) {
			expired = append(expired, KeyOf(e))
		}
	}
	if expired != nil {
		m.commit(Batch{Revision: m.revision + 1, Marker: m.marker, Deletes: expired})
	}
}

func (m *Memory) commit(b Batch) {
	m.entries = b.apply(m.entries)
	m.revision, m.marker = b.Revision, b.Marker
	if len(m.log) == maxLog {
		m.log = slices.Delete(m.log, 0, maxLog/2)
	}
	m.log = append(m.log, b)
	close(m.changed)
	m.changed = make(chan struct{})
}

// apply returns sorted entries with the changes of the batch. It may reuse the slice.
func (b Batch) apply(entries []policy.Entry) []policy.Entry {
	if len(b.Puts)+len(b.Deletes) > 100 { // moving entries for each change would take long
		gone := make(map[Key]bool)
		for _, k := range b.Deletes {
			gone[k] = true
		}
		for _, e := range b.Puts {
			gone[KeyOf(e)] = true
		}
		entries = slices.DeleteFunc(entries, func(e policy.Entry) bool { return gone[KeyOf(e)] })
		entries = append(entries, b.Puts...)
		slices.SortFunc(entries, policy.Entry.Compare)
		return entries
	}
	for _, k := range b.Deletes {
		if i, ok := search(entries, k); ok {
			entries = slices.Delete(entries, i, i+1)
		}
	}
	for _, e := range b.Puts {
		if i, ok := search(entries, KeyOf(e)); ok {
			entries[i] = e
		} else {
			entries = slices.Insert(entries, i, e)
		}
	}
	return entries
}

// Close implements Store.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.closed = true
		close(m.changed)
	}
	return nil
}
