package configstore

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dispatchthrottle/throttle/policy"
)

// How many changes the history of a store has room for, and how long it keeps one. A file, which
// counts bytes, forgets old changes at other times.
const (
	MaxHistory    = 10_000
	MaxHistoryAge = 400 * 24 * time.Hour
)

// By says who changes policies, and why. The zero value is an unknown author without a reason.
type By struct {
	Author, Reason string

	// WithoutHistory stores a change without a record of it. The history then shows its effect as
	// the change of an unknown author, as it does with changes past the tools.
	WithoutHistory bool
}

// The longest texts that a By may have, in bytes.
const (
	MaxAuthor = 256
	MaxReason = 4096
)

// validate returns the faults of a By in a store that holds entries, a *policy.FieldError each.
func (b By) validate(entries []policy.Entry) error {
	var errs []error
	visible := func(r rune) bool { return unicode.IsGraphic(r) && !unicode.IsSpace(r) }
	if !strings.ContainsFunc(b.Reason, visible) && !b.WithoutHistory && reasonRequired(entries) {
		errs = append(errs, &policy.FieldError{
			Field: "reason", Reason: "missing: the settings of the history require one: " +
				"--reason 'why', or -m",
		})
	}
	for _, text := range []struct {
		field, value string
		longest      int
	}{{"author", b.Author, MaxAuthor}, {"reason", b.Reason, MaxReason}} {
		if len(text.value) > text.longest {
			errs = append(errs, &policy.FieldError{
				Field: text.field, Value: text.value[:20] + "...",
				Reason: fmt.Sprintf("%d bytes: want at most %d", len(text.value), text.longest),
			})
		}
	}
	return errors.Join(errs...)
}

// reasonRequired reports whether the settings of the history require a reason.
func reasonRequired(entries []policy.Entry) bool {
	set, _ := policy.NewSet(those(entries, func(e policy.Entry) bool {
		return e.Section() == policy.HistorySettingsSection
	}))
	return *set.HistorySettings().ReasonRequired
}

// A Commit is what Apply makes: all of its changes or none.
type Commit struct {
	By
	Changes    []Change
	IfRevision int64 // the last Apply that the caller has seen; 0 = whatever it was
}

// A Record is one change of a store, as its history has it.
type Record struct {
	Revision int64 // of the store after it
	Time     time.Time
	By

	// Found says that the change was made past the tools: at some time before Time, by an unknown
	// author, and perhaps in several steps, of which the last one is known.
	Found bool

	// First says that the history begins with this change.
	First bool

	Changes []Changed // in the order of Key.Compare

	// Err says why the record cannot be read; only its revision is known then.
	Err error
}

// A Changed is what a change did to one entry.
type Changed struct {
	Key
	Was, Is Value
}

// A Value is what an entry holds. The zero value is no entry.
type Value struct {
	Settings policy.Settings
	Expires  time.Time // of a temporary entry
	Unknown  bool      // it could not be read, or nothing is left of it
}

// valueOf returns what an entry holds.
func valueOf(e policy.Entry) Value {
	if e.Err != nil {
		return Value{Unknown: true}
	}
	return Value{Settings: e.Settings, Expires: e.Expires}
}

// Exists reports whether there is an entry.
func (v Value) Exists() bool { return v.Unknown || v.Settings != nil }

// at returns what is left of a value at now.
func (v Value) at(now time.Time) Value {
	if !v.Expires.IsZero() && v.Expires.Before(now.Add(MinTTL)) {
		return Value{}
	}
	return v
}

func (v Value) same(w Value) bool {
	if v.Unknown || w.Unknown {
		return v.Unknown == w.Unknown
	}
	return Same(policy.Entry{Settings: v.Settings, Expires: v.Expires},
		policy.Entry{Settings: w.Settings, Expires: w.Expires})
}

// entry returns the entry of a key that holds this value.
func (v Value) entry(k Key) policy.Entry {
	e := policy.Entry{
		Scope: k.Scope, Settings: v.Settings, Temporary: k.Field != "", Field: k.Field, Expires: v.Expires,
	}
	if v.Unknown {
		e.Settings, e.Err = k.Section.Zero(), errors.New("configstore: the value is not known")
	}
	return e
}

// Compare orders keys as stores order their entries.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Section, other.Section), k.Scope.Compare(other.Scope),
		cmp.Compare(k.Field, other.Field))
}

// A HistoryError says that a change was not made, since its record could not be kept.
type HistoryError struct{ Err error }

func (e *HistoryError) Error() string {
	return fmt.Sprintf("configstore: nothing was changed, since the history cannot be written: %v", e.Err)
}

func (e *HistoryError) Unwrap() error { return e.Err }

// Record returns the record of a commit to a store that holds entries. Every Store keeps it in one
// transaction with the changes. Its times of temporary entries are those that Change.Entry gives
// at the same now.
func (c Commit) Record(entries []policy.Entry, now time.Time) Record {
	r := Record{Time: now.UTC(), By: c.By}
	before := values(entries)
	for _, change := range c.Changes {
		var is Value
		if !change.Deletes() {
			is = valueOf(change.Entry(now, 0))
		}
		if was := before[change.Key]; !was.same(is) {
			r.Changes = append(r.Changes, Changed{change.Key, was, is})
		}
	}
	r.sort()
	return r
}

func (r *Record) sort() {
	slices.SortFunc(r.Changes, func(a, b Changed) int { return a.Key.Compare(b.Key) })
}

func values(entries []policy.Entry) map[Key]Value {
	all := make(map[Key]Value, len(entries))
	for _, e := range entries {
		all[KeyOf(e)] = valueOf(e)
	}
	return all
}

// Found returns what a snapshot has that its history does not explain, as a change of an unknown
// author. It has no changes if there is nothing. The history is complete up to the revision since,
// so that an entry without a record has changed only if it is newer. A history may be cut short,
// and ends at a record that cannot be read: what older ones say is unknown.
func (s Snapshot) Found(history iter.Seq2[Record, error], since int64, now time.Time) (Record, error) {
	found := Record{Time: now.UTC(), Found: true, First: true}
	expected := make(map[Key]Value)
	complete := false
	for r, err := range history {
		if err != nil {
			return Record{}, err
		}
		if found.First {
			found.First, found.Revision = false, r.Revision+1 // at least
		}
		if r.Err != nil {
			break // it may have changed any entry that no newer record has
		}
		complete = complete || r.First
		for _, c := range r.Changes {
			if _, newer := expected[c.Key]; !newer {
				expected[c.Key] = c.Is
			}
		}
	}
	for _, e := range s.Entries {
		k, is := KeyOf(e), valueOf(e)
		was, known := expected[k]
		delete(expected, k)
		if !known {
			was.Unknown = !complete
		}
		if known && was.same(is) || !known && e.Revision <= since {
			continue
		}
		found.Changes = append(found.Changes, Changed{k, was, is})
		found.Revision = max(found.Revision, e.Revision)
	}
	for k, was := range expected {
		if was.Exists() && (was.Expires.IsZero() || was.Expires.After(now)) {
			found.Changes = append(found.Changes, Changed{Key: k, Was: was})
		}
	}
	if found.Revision == 0 {
		found.Revision = s.Revision
	}
	found.sort()
	return found, nil
}

// Keeps reports whether an entry still holds at now what a change has made of it.
func (s Snapshot) Keeps(c Changed, now time.Time) bool {
	e, ok := s.find(c.Key)
	if !ok {
		return !c.Is.at(now).Exists()
	}
	return valueOf(e).same(c.Is)
}

// Before returns what the store held before some records, the newest of which is first. An entry
// whose value is not known has its Err set.
func (s Snapshot) Before(records []Record) []policy.Entry {
	held := values(s.Entries)
	for _, r := range records {
		for _, c := range r.Changes {
			held[c.Key] = c.Was
		}
	}
	var entries []policy.Entry
	for k, v := range held {
		if v.Exists() {
			entries = append(entries, v.entry(k))
		}
	}
	slices.SortFunc(entries, policy.Entry.Compare)
	return entries
}

// Baseline returns what a store held before some records, the newest of which is first, as the
// record with which a history begins that has forgotten older ones. If one of them cannot be read,
// the history is not complete from there on, and so has no First record.
func (s Snapshot) Baseline(records []Record, now time.Time) Record {
	base := Record{Found: true, First: true, Revision: s.Revision, Time: now.UTC()}
	for _, r := range records {
		if r.Err != nil {
			base.First = false
		} else if r.Revision > 0 {
			base.Time, base.Revision = r.Time, r.Revision-1
		}
	}
	for _, e := range s.Before(records) {
		base.Changes = append(base.Changes, Changed{KeyOf(e), Value{Unknown: true}, valueOf(e)})
	}
	return base
}

// Undo plans to have back what the entries that records changed held before. The newest record is
// first. A temporary value comes back until the end that it had; after its end, what was below it
// is in force. The error names values that are not known.
func (s Snapshot) Undo(records []Record, now time.Time) ([]Change, error) {
	wanted := make(map[Key]Value)
	var errs []error
	for _, r := range records {
		if r.Err != nil {
			errs = append(errs, r.Err)
		}
		for _, c := range r.Changes {
			wanted[c.Key] = c.Was
		}
	}
	present := values(s.Entries)
	var changes []Change
	for _, k := range slices.SortedFunc(maps.Keys(wanted), Key.Compare) {
		v := wanted[k].at(now)
		switch {
		case v.Unknown:
			errs = append(errs, fmt.Errorf("%s: what it had before is not known: set it by hand", k.Scope))
		case v.same(present[k]):
		default:
			c := Change{Key: k, Settings: v.Settings, Expires: v.Expires}
			if !v.Expires.IsZero() {
				c.TTL = v.Expires.Sub(now)
			}
			changes = append(changes, c)
		}
	}
	return changes, errors.Join(errs...)
}
