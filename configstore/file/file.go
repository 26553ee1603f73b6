// Package file keeps policies in one YAML or JSON file, for machines without etcd and for policies
// under version control.
package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Store keeps policies in a file, which may also be edited by hand. Its revision is the file's
// modification time or, if that is later, the end of its last expired entry, in milliseconds. Any
// number of goroutines may use a Store, and any number of processes of one machine the file.
type Store struct {
	path     string
	create   bool // a missing file is an empty store
	expected bool // a missing file was there before

	// The constant and the function of these names, but in tests.
	checkEvery time.Duration
	replace    func(path string, content []byte, modified time.Time) error

	mu     sync.Mutex // guards the fields below
	state  state
	closed chan struct{}
}

var _ configstore.Store = (*Store)(nil)

// A state is the file as it was when it was last checked.
type state struct {
	known    bool        // the file has been checked
	info     fs.FileInfo // nil: there is no file
	read     time.Time   // when data was read
	data     []byte
	entries  []policy.Entry // of the last valid content
	revision int64          // of that content; 0 without a file
	err      error          // why the present content is invalid
}

// Open returns a store on a file. While the file does not exist, the store can be neither listed
// nor changed. If the file is removed later, a Limiter keeps its last policies in force.
func Open(path string) (*Store, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("configstore/file: %w", err)
	}
	return &Store{path: abs, checkEvery: checkEvery, replace: replace, closed: make(chan struct{})}, nil
}

// OpenOrCreate is Open, except that a missing file is an empty store. Apply creates it, and so does
// Create.
func OpenOrCreate(path string) (*Store, error) {
	s, err := Open(path)
	if s != nil {
		s.create = true
	}
	return s, err
}

// Expect is for a program that has had policies before, from a cache file for example: a missing
// file is not an empty store then, but one that was removed. Call it first.
func (s *Store) Expect() { s.create, s.expected = false, true }

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
	return configstore.Snapshot{
		Entries: entries, Marker: st.marker(), Plain: true, Revision: revision, Applied: st.revision,
	}, nil
}

// marker orders files by the time of their content, beside those of other stores. A time over a day
// ahead of the clock is no epoch; see [configstore.Marker].
func (st state) marker() configstore.Marker {
	m := configstore.Marker{ID: "file", Epoch: max(0, st.revision)}
	if m.Check(st.entries, time.Now()) != nil {
		m.Epoch = 0
	}
	return m
}

// at returns the entries that have not expired at now, and the revision at which the last of the
// others did.
func (st state) at(now time.Time) ([]policy.Entry, int64) {
	revision := st.revision
	entries := slices.DeleteFunc(slices.Clone(st.entries), func(e policy.Entry) bool {
		expired := e.Temporary && !e.Expires.After(now)
		if expired {
			revision = max(revision, e.Expires.UnixMilli())
		}
		return expired
	})
	return entries, revision
}

// had reports whether this content has had a revision by now. A newer revision may belong to other
// content, since a file may be replaced by a copy with an older modification time.
func (st state) had(revision int64, now time.Time) bool {
	return revision == max(st.revision, 1) || // configstore.Edit writes 1 for 0
		revision > st.revision && slices.ContainsFunc(st.entries, func(e policy.Entry) bool {
			return e.Temporary && !e.Expires.After(now) && e.Expires.UnixMilli() == revision
		})
}

// modified is the file's modification time, or the zero value without one.
func (st state) modified() (t time.Time) {
	if st.info != nil {
		t = st.info.ModTime()
	}
	return t
}

// settled is the age at which a change of a file is sure to give it another modification time: file
// systems count in milliseconds, and some in steps of two seconds.
const settled = 2 * time.Second

// changed reports whether the content may have changed since it was read; info is nil if there is
// no file.
func (st state) changed(info fs.FileInfo) bool {
	if !st.known || (info == nil) != (st.info == nil) {
		return true
	}
	return info != nil && (!os.SameFile(info, st.info) || info.Size() != st.info.Size() ||
		!info.ModTime().Equal(st.modified()) || st.read.Sub(st.modified()) < settled)
}

// look checks the file, and reads it if it may have changed. It fails if the store is closed or the
// file cannot be read; what is wrong with the content is in the state.
func (s *Store) look() (state, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		return state{}, configstore.ErrClosed
	default:
	}
	info, err := os.Stat(s.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return state{}, fmt.Errorf("configstore/file: %w", err)
	}
	if !s.state.changed(info) {
		return s.state, nil
	}
	read := time.Now()
	var data []byte
	if info != nil && info.Size() <= MaxSize {
		if data, err = os.ReadFile(s.path); err != nil {
			return state{}, fmt.Errorf("configstore/file: %w", err)
		}
	}
	old := s.state
	s.state.known, s.state.info, s.state.read, s.state.data = true, info, read, data
	modified := s.state.modified()
	switch {
	case info == nil && (old.known || s.expected): // it was there before
		s.state.err = fmt.Errorf("configstore/file: %s: %w: the file was removed, and its last "+
			"policies stay in force: restore it, and remove policies from it instead",
			s.path, fs.ErrNotExist)
		return s.state, nil
	case info == nil:
		s.state.err = nil
		if !s.create {
			s.state.err = fmt.Errorf("configstore/file: %s: %w: check the name, "+
				"or use file:NAME?create=true to start without policies", s.path, fs.ErrNotExist)
		}
		return s.state, nil
	case info.Size() > MaxSize:
		s.state.err = &LineError{s.path, 0, fmt.Errorf("%d bytes: want at most %d", info.Size(), MaxSize)}
		return s.state, nil
	case old.info != nil && old.err == nil && bytes.Equal(old.data, data):
		s.state.revision = max(old.revision, modified.UnixMilli())
		return s.state, nil
	}
	entries, err := parseAt(s.path, data, time.Time{})
	s.state.err = err
	if err == nil {
		s.state.entries = entries
		s.state.revision = modified.UnixMilli()
		if old.revision >= s.state.revision { // a copy with an older time
			s.state.revision = old.revision + 1
		}
		for i := range entries {
			entries[i].Revision = s.state.revision
		}
	}
	return s.state, nil
}

// Apply implements configstore.Store. It replaces the whole file, so that comments in it are lost.
func (s *Store) Apply(ctx context.Context, c configstore.Commit) (int64, error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	unlock, err := lock(ctx, s.path)
	if err != nil {
		return 0, fmt.Errorf("configstore/file: lock: %w", err)
	}
	defer unlock()
	st, err := s.look()
	if err == nil {
		err = st.err // invalid content is not overwritten
	}
	if err != nil {
		return 0, err
	}
	now := time.Now()
	if c.IfRevision != 0 && !st.had(c.IfRevision, now) {
		return 0, &configstore.ConflictError{Have: st.revision, Want: c.IfRevision}
	}
	entries, before := st.at(now)
	if err := c.Check(entries); err != nil {
		return 0, err
	}
	data, err := s.format(configstore.After(entries, c.Changes, now))
	if err == nil {
		err = s.checkSize(data)
	}
	if err != nil {
		return 0, fmt.Errorf("configstore/file: %w", err)
	}
	revision := max(now.UnixMilli(), before+1)
	if !c.WithoutHistory {
		snap := configstore.Snapshot{Entries: entries, Revision: before}
		if err := s.record(st, snap, c, data, revision, now); err != nil {
			return 0, &configstore.HistoryError{Err: err}
		}
	}
	written, err := s.write(data, revision)
	if err != nil && !c.WithoutHistory {
		err = errors.Join(err, s.takeBack(st))
	}
	return written, err
}

func (s *Store) format(entries []policy.Entry) ([]byte, error) {
	if filepath.Ext(s.path) == ".json" {
		return FormatJSON(entries)
	}
	return Format(entries)
}

func (s *Store) checkSize(data []byte) error {
	if len(data) > MaxSize {
		return fmt.Errorf("%s: it would have %d bytes: want at most %d", s.path, len(data), MaxSize)
	}
	return nil
}

// write replaces the file, and returns its revision.
func (s *Store) write(data []byte, revision int64) (int64, error) {
	if err := s.replace(s.path, data, time.UnixMilli(revision)); err != nil {
		return 0, fmt.Errorf("configstore/file: %w", err)
	}
	return revision, nil
}

// Adopt implements configstore.Store: it returns errors.ErrUnsupported.
func (s *Store) Adopt(context.Context, configstore.Adoption) (configstore.Marker, error) {
	return configstore.Marker{}, fmt.Errorf("configstore/file: adopt: %w: what a file holds is "+
		"followed without it", errors.ErrUnsupported)
}

// Create creates the file of a store that OpenOrCreate has opened, without policies, if there is
// none.
func (s *Store) Create(ctx context.Context) error {
	if st, err := s.look(); err != nil || !s.create || st.info != nil {
		return err
	}
	unlock, err := lock(ctx, s.path)
	if err != nil {
		return fmt.Errorf("configstore/file: lock: %w", err)
	}
	defer unlock()
	st, err := s.look()
	if err != nil || st.err != nil || st.info != nil {
		return errors.Join(err, st.err)
	}
	data, err := s.format(nil)
	if err == nil {
		_, err = s.write(data, time.Now().UnixMilli())
	}
	return err
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
