// Package file keeps policies in one YAML or JSON file, for machines without etcd and for people who
// keep their policies under version control.
package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// pollEvery is how often a watched file is looked at: a stat, and a read if that differs.
const pollEvery = 20 * time.Millisecond

// A Store keeps policies in a file, which may also be edited by hand. Its revision is the file's time
// of modification in microseconds, or the end of its last temporary entry that is over. Its methods may be used by any number of
// goroutines, and the file by any number of processes of one machine.
type Store struct {
	path   string
	create bool // a file that does not exist yet is an empty store

	mu     sync.Mutex // guards the fields below
	state  state
	closed chan struct{}
}

var _ configstore.Store = (*Store)(nil)

// state is what the file said when it was last looked at.
type state struct {
	known    bool // the file has been looked at
	modified time.Time
	size     int64
	data     []byte
	entries  []policy.Entry // of the last content that could be read
	revision int64          // of that content; 0 without a file
	err      error          // what is wrong with the present content
}

// Open returns a store on a file. Until the file exists, the store cannot be listed or changed. If the file is removed
// later, its last policies stay in force where they are followed.
func Open(path string) (*Store, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("configstore/file: %w", err)
	}
	return &Store{path: abs, closed: make(chan struct{})}, nil
}

// OpenOrCreate is Open, except that a file that does not exist yet is an empty store, and Apply creates it.
func OpenOrCreate(path string) (*Store, error) {
	s, err := Open(path)
	if s != nil {
		s.create = true
	}
	return s, err
}

// List implements configstore.Store.
func (s *Store) List(ctx context.Context) (configstore.Snapshot, error) {
	if err := context.Cause(ctx); err != nil {
		return configstore.Snapshot{}, err
	}
	st, err := s.look()
	if err == nil {
		err = st.err
	}
	if err != nil {
		return configstore.Snapshot{}, err
	}
	entries, revision := st.at(time.Now())
	return configstore.Snapshot{Entries: entries, Identity: "file", Revision: revision, Applied: st.revision}, nil
}

// at returns the entries that live at now, and the revision since when that has been so.
func (st state) at(now time.Time) ([]policy.Entry, int64) {
	revision := st.revision
	entries := slices.DeleteFunc(slices.Clone(st.entries), func(e policy.Entry) bool {
		over := e.Temporary && !e.Expires.After(now)
		if over {
			revision = max(revision, e.Expires.UnixMicro())
		}
		return over
	})
	return entries, revision
}

// had tells whether this content has had a revision by now. A newer one is another content's: a copy may have an older time.
func (st state) had(revision int64, now time.Time) bool {
	return revision == max(st.revision, 1) || // Edit says 1 for 0
		revision > st.revision && slices.ContainsFunc(st.entries, func(e policy.Entry) bool {
			return e.Temporary && !e.Expires.After(now) && e.Expires.UnixMicro() == revision
		})
}

// look reads the file if it has changed. Its error is that of a store that cannot be read at all.
func (s *Store) look() (state, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		return state{}, configstore.ErrClosed
	default:
	}
	var modified time.Time
	var size int64 = -1
	info, err := os.Stat(s.path)
	switch {
	case err == nil:
		modified, size = info.ModTime(), info.Size()
	case !errors.Is(err, fs.ErrNotExist):
		return state{}, fmt.Errorf("configstore/file: %w", err)
	}
	if s.state.known && modified.Equal(s.state.modified) && size == s.state.size {
		return s.state, nil
	}
	var data []byte
	if size >= 0 && size <= MaxSize {
		if data, err = os.ReadFile(s.path); err != nil {
			return state{}, fmt.Errorf("configstore/file: %w", err)
		}
	}
	old := s.state
	s.state.known, s.state.modified, s.state.size, s.state.data = true, modified, size, data
	switch {
	case size < 0 && old.known: // it was there
		s.state.err = fmt.Errorf("configstore/file: %s: %w: the file was removed; put it back, and remove policies from it instead", s.path, fs.ErrNotExist)
		return s.state, nil
	case size < 0:
		if s.state.err = nil; !s.create {
			s.state.err = fmt.Errorf("configstore/file: %s: %w: check the name, or write file:NAME?create=true to start without policies", s.path, fs.ErrNotExist)
		}
		return s.state, nil
	case size > MaxSize:
		s.state.err = &LineError{s.path, 0, fmt.Errorf("%d bytes are more than the %d that a file may have", size, MaxSize)}
		return s.state, nil
	case old.known && old.err == nil && old.size >= 0 && bytes.Equal(old.data, data):
		s.state.revision = max(old.revision, modified.UnixMicro())
		return s.state, nil
	}
	entries, err := ParseAt(s.path, data, time.Time{})
	if s.state.err = err; err == nil {
		s.state.entries = entries
		s.state.revision = modified.UnixMicro()
		if old.revision >= s.state.revision { // a copy with an older time
			s.state.revision = old.revision + 1
		}
		for i := range entries {
			entries[i].Revision = s.state.revision
		}
	}
	return s.state, nil
}

// Watch implements configstore.Store. A content that cannot be read is a passing error, once; the last good one stays in force.
func (s *Store) Watch(ctx context.Context, after int64) iter.Seq2[configstore.Batch, error] {
	return func(yield func(configstore.Batch, error) bool) {
		ticker := time.NewTicker(pollEvery)
		defer ticker.Stop()
		var seen []policy.Entry
		var faulty bool        // a fault has been reported
		var reported time.Time // modification of the content that had it
		for first := true; ctx.Err() == nil; first = false {
			st, err := s.look()
			entries, revision := st.at(time.Now())
			switch {
			case err != nil || first && revision != after:
				if err == nil {
					err = configstore.ErrCompacted // what was before is not known
				}
				yield(configstore.Batch{}, err)
				return
			case first:
				seen = entries
			case revision != after:
				b := diff(seen, entries)
				b.Revision = revision
				seen, after = entries, revision
				if !yield(b, nil) {
					return
				}
			}
			if st.err != nil && (!faulty || !st.modified.Equal(reported)) {
				faulty, reported = true, st.modified
				if !yield(configstore.Batch{}, st.err) {
					return
				}
			}
			select {
			case <-ctx.Done():
			case <-s.closed:
			case <-ticker.C:
			}
		}
	}
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

// Apply implements configstore.Store. The file is replaced as a whole: comments in it are lost.
func (s *Store) Apply(ctx context.Context, changes []configstore.Change, ifRevision int64) (int64, error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	unlock, err := lock(s.path)
	if err != nil {
		return 0, fmt.Errorf("configstore/file: lock: %w", err)
	}
	defer unlock()
	st, err := s.look()
	if err == nil {
		err = st.err // what cannot be read is not overwritten
	}
	if err != nil {
		return 0, err
	}
	now := time.Now()
	if ifRevision != 0 && !st.had(ifRevision, now) {
		return 0, &configstore.ConflictError{Have: st.revision, Want: ifRevision}
	}
	entries, before := st.at(now)
	if err := configstore.Check(entries, changes); err != nil {
		return 0, err
	}
	for _, c := range changes {
		entries = slices.DeleteFunc(entries, func(e policy.Entry) bool { return configstore.KeyOf(e) == c.Key })
		if !c.Deletes() {
			entries = append(entries, c.Entry(now, 0))
		}
	}
	format := Format
	if filepath.Ext(s.path) == ".json" {
		format = FormatJSON
	}
	data, err := format(entries)
	if err != nil {
		return 0, fmt.Errorf("configstore/file: %w", err)
	}
	if len(data) > MaxSize {
		return 0, fmt.Errorf("configstore/file: %s would have %d bytes, more than the %d that a file may have", s.path, len(data), MaxSize)
	}
	revision := max(now.UnixMicro(), before+1)
	if err := replace(s.path, data, time.UnixMicro(revision)); err != nil {
		return 0, fmt.Errorf("configstore/file: %w", err)
	}
	return revision, nil
}

// replace puts a new file in place of the old one, at once and for good, with the old one's mode.
func replace(path string, data []byte, modified time.Time) error {
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // a link stays a link
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // fails once it has been renamed
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Chtimes(f.Name(), modified, modified)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Close implements configstore.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return nil
}
