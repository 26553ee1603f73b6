package file

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/configstore"
)

// A historyLine is a line of the history, as JSON: one change. The history is in NAME.history,
// beside the file NAME. A line is written before the file is, so that no change can be without one.
// It names the content of the file before and after the change; if the process ended before it
// wrote the file, the line is void.
type historyLine struct {
	From   string          `json:"from"` // the file before the change, as digest has it
	To     string          `json:"to"`   // and after it
	Change json.RawMessage `json:"change"`
}

// maxHistorySize is the size from which on the older half of a history is dropped, in bytes.
var maxHistorySize = 8 << 20 // a variable for tests

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}

func (s *Store) historyPath() string { return s.path + ".history" }

// size is how many bytes the line has in the file, about.
func (l historyLine) size() int {
	return len(l.Change) + 2*len(l.To) + len(`{"from":"","to":"","change":}`)
}

// tailSize is how much of a history a change reads, from its end, if that explains the file.
const tailSize = 64 << 10

// A journal is a history as it was read together with the file, or the newest part of it.
type journal struct {
	lines []historyLine // those that are not void
	now   string        // the digest of the file

	revision int64 // of the file
	end      int64 // where complete lines end; the process ended while it wrote what follows
}

// readJournal reads the history beside a file in that state.
func (s *Store) readJournal(st state) (journal, error) { return s.readJournalFrom(st, 0) }

// readNewest reads as much of the history as a change has to know.
func (s *Store) readNewest(st state) (journal, error) {
	if info, err := os.Stat(s.historyPath()); err == nil && info.Size() < int64(maxHistorySize) {
		j, err := s.readJournalFrom(st, info.Size()-tailSize)
		if err == nil && j.explains() {
			return j, nil
		}
	}
	return s.readJournal(st)
}

// readJournalFrom reads the lines of the history that begin after an offset; all if there is none.
func (s *Store) readJournalFrom(st state, from int64) (journal, error) {
	j := journal{now: digest(st.data), revision: st.revision}
	f, err := os.Open(s.historyPath())
	if errors.Is(err, fs.ErrNotExist) {
		return j, nil
	}
	if err != nil {
		return j, err
	}
	defer func() { _ = f.Close() }() // it was only read
	from = max(0, from)
	data, err := io.ReadAll(io.NewSectionReader(f, from, math.MaxInt64-from))
	if err != nil {
		return j, err
	}
	if from > 0 {
		begin := bytes.IndexByte(data, '\n') + 1
		from, data = from+int64(begin), data[begin:]
	}
	complete := bytes.LastIndexByte(data, '\n') + 1
	j.end = from + int64(complete)
	for text := range bytes.Lines(data[:complete]) {
		var l historyLine
		if err := json.Unmarshal(text, &l); err != nil || l.To == "" {
			l = historyLine{Change: bytes.TrimSpace(text)}
		}
		if n := len(j.lines); n > 0 && j.lines[n-1].voidBefore(l.From) {
			j.lines = j.lines[:n-1]
		}
		j.lines = append(j.lines, l)
	}
	// If the file is newer than the last line, somebody has put the old content back.
	if n := len(j.lines); n > 0 && j.lines[n-1].voidBefore(j.now) && j.lines[n-1].revision() > st.revision {
		j.lines = j.lines[:n-1]
	}
	return j, nil
}

// voidBefore reports whether a line is void that is followed by a file with that digest.
func (l historyLine) voidBefore(next string) bool { return l.From == next && l.To != next }

func (l historyLine) revision() int64 {
	r, _ := configstore.UnmarshalRecord(l.Change) // a damaged one has no revision
	return r.Revision
}

// explains reports whether the file is as the last change has left it.
func (j journal) explains() bool {
	n := len(j.lines)
	return n > 0 && j.lines[n-1].To == j.now
}

// records yields the records, the newest first.
func (j journal) records() iter.Seq2[configstore.Record, error] {
	return func(yield func(configstore.Record, error) bool) {
		newer := j.revision + 1
		for _, l := range slices.Backward(j.lines) {
			r, err := configstore.UnmarshalRecord(l.Change)
			if r.Err = err; err != nil {
				r.Revision = newer - 1 // at most: what it has is not known
			}
			newer = r.Revision
			if r.Found && len(r.Changes) == 0 && err == nil {
				continue // it says that an old content was put back, which is as the history has it
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

// found returns what the history does not explain; a record without changes if there is nothing.
func (j journal) found(snap configstore.Snapshot, now time.Time) (configstore.Record, error) {
	if j.explains() {
		return configstore.Record{}, nil
	}
	return snap.Found(j.records(), -1, now)
}

// record writes the line of a commit that makes the file have that content, after what was found.
func (s *Store) record(
	st state, snap configstore.Snapshot, c configstore.Commit, content []byte, revision int64, now time.Time,
) error {
	j, err := s.readNewest(st)
	if err != nil {
		return err
	}
	found, err := j.found(snap, now)
	if err != nil {
		return err
	}
	if err := s.shorten(&j, snap, found); err != nil {
		return err
	}
	var b bytes.Buffer
	n := len(j.lines) // the next line must not make void the last one, whose change was made
	if len(found.Changes) > 0 || n > 0 && j.lines[n-1].voidBefore(j.now) {
		if err := j.append(&b, j.now, found); err != nil {
			return err
		}
	}
	made := c.Record(snap.Entries, now)
	made.Revision = revision
	if err := j.append(&b, digest(content), made); err != nil {
		return err
	}
	return s.appendHistory(st, j.end, b.Bytes())
}

// append adds the line of a change after which the file has that digest, and writes it to b.
func (j *journal) append(b *bytes.Buffer, to string, r configstore.Record) error {
	from := j.now
	if n := len(j.lines); n == 0 {
		r.First = true
	} else if r.Found {
		from = j.lines[n-1].To
	}
	change, err := configstore.MarshalRecord(r)
	if err != nil {
		return err
	}
	l := historyLine{from, to, change}
	j.lines = append(j.lines, l)
	return l.write(b)
}

func (l historyLine) write(b *bytes.Buffer) error {
	text, err := json.Marshal(l)
	b.Write(append(text, '\n'))
	return err
}

// appendHistory writes lines after the complete ones, so that they survive a power failure. A new
// history has the mode of the file.
func (s *Store) appendHistory(st state, end int64, data []byte) error {
	_, err := os.Stat(s.historyPath())
	isNew := errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(s.historyPath(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if isNew {
		mode := fs.FileMode(0o644)
		if st.info != nil {
			mode = st.info.Mode().Perm() | 0o200 // each change writes to it
		}
		if err := f.Chmod(mode); err != nil { // whatever the umask
			return errors.Join(err, f.Close())
		}
	}
	if err = f.Truncate(end); err == nil {
		_, err = f.WriteAt(data, end)
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// takeBack removes the line of a change that was not made.
func (s *Store) takeBack(st state) error {
	data, err := os.ReadFile(s.historyPath())
	if err != nil {
		return err
	}
	data = bytes.TrimSuffix(data, []byte("\n"))
	end := bytes.LastIndexByte(data, '\n') + 1
	var last historyLine
	if json.Unmarshal(data[end:], &last) == nil && last.voidBefore(digest(st.data)) {
		return os.Truncate(s.historyPath(), int64(end))
	}
	return nil
}

// shorten drops the older part of a history that has become too long, and puts first what the file
// held before the rest.
func (s *Store) shorten(j *journal, snap configstore.Snapshot, found configstore.Record) error {
	size, keep := 0, len(j.lines)
	for keep > 0 && size < maxHistorySize {
		keep--
		size += j.lines[keep].size()
	}
	if keep == 0 {
		return nil
	}
	for size > maxHistorySize/2 && keep < len(j.lines)-1 {
		size -= j.lines[keep].size()
		keep++
	}
	kept := journal{now: j.now, revision: j.revision, lines: j.lines[keep:]}
	records := []configstore.Record{found}
	for r, err := range kept.records() {
		if err != nil {
			return err
		}
		records = append(records, r)
	}
	base, err := configstore.MarshalRecord(snap.Baseline(records, time.Now()))
	if err != nil {
		return err
	}
	kept.lines = slices.DeleteFunc(kept.lines, func(l historyLine) bool { return l.To == "" })
	to := j.now
	if len(kept.lines) > 0 {
		to = kept.lines[0].From
	}
	kept.lines = slices.Insert(kept.lines, 0, historyLine{To: to, Change: base})
	var b bytes.Buffer
	for _, l := range kept.lines {
		if err := l.write(&b); err != nil {
			return err
		}
	}
	kept.end = int64(b.Len())
	*j = kept
	return replace(s.historyPath(), b.Bytes(), time.Now())
}

// History implements configstore.Store.
func (s *Store) History(ctx context.Context) iter.Seq2[configstore.Record, error] {
	return func(yield func(configstore.Record, error) bool) {
		found, j, err := s.past(ctx)
		if err != nil {
			yield(configstore.Record{}, fmt.Errorf("configstore/file: history: %w", err))
			return
		}
		if len(found.Changes) > 0 && !yield(found, nil) {
			return
		}
		for r, err := range j.records() {
			if ctx.Err() != nil {
				yield(configstore.Record{}, context.Cause(ctx))
				return
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// past returns the history, and what it does not explain of the file, if the file is valid.
func (s *Store) past(ctx context.Context) (found configstore.Record, j journal, err error) {
	if err := context.Cause(ctx); err != nil {
		return found, j, err
	}
	st, err := s.look()
	for range 10 { // until no other process has written in between
		if err != nil {
			return found, j, err
		}
		before := st.revision
		if j, err = s.readJournal(st); err != nil || st.err != nil {
			return found, j, err
		}
		if st, err = s.look(); err == nil && st.revision == before {
			break
		}
	}
	if err != nil {
		return found, j, err
	}
	now := time.Now()
	entries, revision := st.at(now)
	found, err = j.found(configstore.Snapshot{Entries: entries, Revision: revision}, now)
	return found, j, err
}
