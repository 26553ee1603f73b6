// Package configstore keeps policies and quotas. It declares [Store], has one in memory, and makes
// any Store the source of policies that a Limiter follows. The other stores are in its subfolders.
package configstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// A Store keeps policies and quotas. Any number of goroutines may use it at once.
type Store interface {
	// List returns all entries at one revision. An entry that cannot be read has its Err set.
	List(ctx context.Context) (Snapshot, error)

	// Watch yields the changes after a List, in order and without gaps, until ctx ends. An error
	// after which the sequence continues is temporary. If the sequence ends before ctx does, its
	// last error is the reason, and the caller lists again: ErrCompacted if the store no longer
	// knows the revision or has another history; ErrClosed if the store has been closed.
	Watch(ctx context.Context, after Snapshot) iter.Seq2[Batch, error]

	// Apply makes all changes of a commit or none, and returns the store's revision after them. If
	// its IfRevision is not 0 and there was another Apply after that revision, Apply returns a
	// *ConflictError. Faults of the changes are returned as policy's *FieldError and *TieError,
	// joined. The first Apply adopts the store; one to a store that has lost its policies fails with
	// what Marker.Check returns. One whose record cannot be kept fails with a *HistoryError.
	Apply(ctx context.Context, c Commit) (revision int64, err error)

	// History yields the records of all changes that the store remembers, the newest first. If the
	// store holds what no record explains, the first one is what the next Apply will record of it.
	// It yields each Record that cannot be read with its Err. An error ends the sequence.
	History(ctx context.Context) iter.Seq2[Record, error]

	// Adopt declares that the policies in the store, as they are now, are those to follow.
	// Replicas that know policies of the same id and an earlier epoch replace them by these,
	// whatever their revision. The error is what Adoption.Check returns, or the store's;
	// errors.ErrUnsupported of a plain store, which replicas follow without a marker.
	Adopt(ctx context.Context, a Adoption) (Marker, error)

	// Close ends the watches and releases the store's resources. A second call does nothing.
	Close() error
}

// A Snapshot is all entries at one revision.
type Snapshot struct {
	Entries  []policy.Entry // in the order of policy.Entry.Compare
	Marker   Marker
	Plain    bool // the store has no history that could be lost; its marker has no serial
	Revision int64
	Applied  int64 // of the last Apply by any process; IfRevision is compared with it
}

// A Key names an entry of a store. The zero Section is the section of policies.
type Key struct {
	Section policy.Section
	Scope   policy.Scope
	Field   string // of the temporary entry for this field; "" = the permanent entry
}

// KeyOf returns the key of an entry.
func KeyOf(e policy.Entry) Key { return Key{e.Section(), e.Scope, e.Field} }

// Whole returns the key of the permanent entry, which stands for all entries of the scope.
func (k Key) Whole() Key {
	k.Field = ""
	return k
}

// A Batch has the changes of one or several revisions. No key is in it twice.
type Batch struct {
	Revision int64  // after the changes
	Marker   Marker // likewise
	Puts     []policy.Entry
	Deletes  []Key
}

// A Change puts or deletes one entry.
type Change struct {
	Key
	Settings policy.Settings // of the key's section; nil or empty deletes the entry
	TTL      time.Duration   // how long a temporary entry lives, from MinTTL to MaxTTL

	// Expires is the exact time at which a temporary entry expires, if it is known. TTL is then
	// the time until Expires. If Expires is zero, the entry expires a TTL after it was stored.
	Expires time.Time
}

// Deletes reports whether the change deletes its entry.
func (c Change) Deletes() bool { return policy.IsZero(c.Settings) }

// Entry returns the entry that a change puts at now.
func (c Change) Entry(now time.Time, revision int64) policy.Entry {
	e := policy.Entry{Scope: c.Scope, Settings: c.Settings, Revision: revision}
	if c.Field != "" {
		e.Temporary, e.Field, e.Expires = true, c.Field, c.Expires
		if e.Expires.IsZero() {
			e.Expires = now.Add(c.TTL)
		}
		e.Expires = e.Expires.UTC().Round(0)
	}
	return e
}

// How long temporary entries may live.
const (
	MinTTL = time.Second
	MaxTTL = 365 * 24 * time.Hour
)

var (
	// ErrCompacted ends a watch that cannot say what changed: list again.
	ErrCompacted = errors.New("configstore: the revision is no longer known")

	// ErrClosed reports the use of a closed store.
	ErrClosed = errors.New("configstore: closed")
)

// A ConflictError reports an Apply that came too late.
type ConflictError struct {
	Have, Want int64 // the revision of the last Apply; the one that the caller had seen
}

func (e *ConflictError) Error() string {
	if e.Have < e.Want { // of a file: a copy with an older time
		return fmt.Sprintf("configstore: policies have changed: they are at revision %d, not %d; "+
			"review them and try again", e.Have, e.Want)
	}
	return fmt.Sprintf("configstore: policies have changed: revision %d is newer than %d; "+
		"review the newer ones and try again", e.Have, e.Want)
}

// Check returns every fault that a commit would have in a store that holds entries. Every Store
// calls it before it stores anything.
func (c Commit) Check(entries []policy.Entry) error {
	errs := []error{c.By.validate(entries)}
	changes := c.Changes
	seen := make(map[Key]bool)
	for _, c := range changes {
		if seen[c.Key] {
			errs = append(errs, fmt.Errorf("%s: %w", c.Scope, &policy.FieldError{
				Field: "scope", Value: c.Scope.String(),
				Reason: "duplicate change: keep one of them"}))
		}
		seen[c.Key] = true
		if err := c.validate(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.Scope, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return errors.Join(checkPatterns(entries, changes), checkReserved(entries, changes))
}

// validate returns the faults of a change by itself.
func (c Change) validate() error {
	if c.Deletes() {
		return nil // any entry may be deleted
	}
	if c.Settings.Section() != c.Section {
		return fmt.Errorf("configstore: %s under a key of %s", c.Settings.Section(), c.Section)
	}
	errs := []error{c.Settings.Validate(c.Scope)}
	fault := func(field, value, reason string) {
		errs = append(errs, &policy.FieldError{Field: field, Value: value, Reason: reason})
	}
	switch {
	case c.Field == "" && c.TTL != 0:
		fault("ttl", c.TTL.String(), "not allowed for a permanent entry")
	case c.Field != "" && (c.TTL < MinTTL || c.TTL > MaxTTL):
		fault("ttl", c.TTL.String(), fmt.Sprintf("out of range: want %s..%s", MinTTL, MaxTTL))
	}
	if c.Field != "" && !slices.Equal(policy.Fields(c.Settings), []string{c.Field}) {
		fault(c.Field, "", "not the only field of the temporary entry")
	}
	return errors.Join(errs...)
}

// After returns the entries as they are once the changes have been made at now, in order.
func After(entries []policy.Entry, changes []Change, now time.Time) []policy.Entry {
	changed := make(map[Key]bool)
	for _, c := range changes {
		changed[c.Key] = true
	}
	left := slices.DeleteFunc(slices.Clone(entries), func(e policy.Entry) bool { return changed[KeyOf(e)] })
	for _, c := range changes {
		if !c.Deletes() {
			left = append(left, c.Entry(now, 0))
		}
	}
	slices.SortFunc(left, policy.Entry.Compare)
	return left
}

// those returns the entries that f accepts.
func those(entries []policy.Entry, f func(policy.Entry) bool) (some []policy.Entry) {
	for _, e := range entries {
		if f(e) {
			some = append(some, e)
		}
	}
	return some
}

// checkReserved refuses changes by which quotas reserve more than the cluster's capacity, unless
// they did before and the changes make it no worse.
func checkReserved(entries []policy.Entry, changes []Change) error {
	ofQuotas := func(c Change) bool {
		return c.Section == policy.QuotaSection || c.Section == policy.QuotaSettingsSection
	}
	if !slices.ContainsFunc(changes, ofQuotas) {
		return nil
	}
	reserved, capacity := Reserved(After(entries, changes, time.Time{}))
	if capacity == 0 || reserved <= capacity {
		return nil
	}
	was, capacityWas := Reserved(entries)
	if capacityWas > 0 && was-capacityWas >= reserved-capacity {
		return nil
	}
	if capacity != capacityWas {
		reason := fmt.Sprintf(
			"below what all quotas reserve together, %d: raise it, or reserve less first", reserved)
		return &policy.FieldError{Field: "capacity", Value: fmt.Sprint(capacity), Reason: reason}
	}
	reason := fmt.Sprintf("all quotas together reserve more than the cluster's capacity, %d: "+
		"reserve less, or raise the capacity", capacity)
	return &policy.FieldError{Field: "reserved", Value: fmt.Sprint(reserved), Reason: reason}
}

// Reserved returns what the quotas among entries reserve together, and the capacity, 0 if unknown;
// both in bytes of cost a second.
func Reserved(entries []policy.Entry) (reserved, capacity int64) {
	set, _ := policy.NewSet(those(entries, func(e policy.Entry) bool {
		return e.Section() != policy.PolicySection // which may have faults
	}))
	for _, q := range set.Quotas() {
		reserved = min(reserved+q.Reserved, policy.MaxThroughput) // the bound of each
	}
	return reserved, *set.QuotaSettings().Capacity
}

// checkPatterns refuses changes by which there are too many patterns, or two that tie. It looks at
// what would be stored, so that changes may resolve each other's ties.
func checkPatterns(entries []policy.Entry, changes []Change) error {
	set := patterns(After(entries, changes, time.Time{}))
	if err := set.CheckPatterns(patterns(entries)); err != nil {
		return err // to look for ties may take long
	}
	var errs []error
	for _, tie := range ties(set, changes) {
		if tie.Topic != "" {
			errs = append(errs, tie)
		}
	}
	return errors.Join(errs...)
}

// Ties returns the ties of patterns that changes would make in a store that holds entries. Check
// refuses those that name a topic; the others are undecided.
func Ties(entries []policy.Entry, changes []Change) []*policy.TieError {
	return ties(patterns(After(entries, changes, time.Time{})), changes)
}

// patterns returns the set of the patterns among entries.
func patterns(entries []policy.Entry) *policy.Set {
	set, _ := policy.NewSet(those(entries, func(e policy.Entry) bool {
		return e.Section() == policy.PolicySection && e.Scope.Kind == policy.PatternKind &&
			!policy.IsZero(e.Settings)
	})) // other faults are found elsewhere
	return set
}

// ties returns the ties of the patterns of a set that changes set.
func ties(set *policy.Set, changes []Change) []*policy.TieError {
	changed := make(map[policy.Scope]bool)
	for _, c := range changes {
		if c.Scope.Kind == policy.PatternKind {
			changed[c.Scope] = true
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return set.Ties(func(s policy.Scope) bool { return changed[s] })
}
