// Package configstore keeps policies: it declares [Store], has one in memory, and turns any
// Store into the source of policies that a Limiter follows. The real stores are in its subfolders.
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

// A Store keeps policies. Its methods may be used by any number of goroutines.
type Store interface {
	// List returns all policies at one revision. Entries that cannot be read come with their Err.
	List(ctx context.Context) (Snapshot, error)

	// Watch yields what changed after a revision, in order, missing nothing, until ctx ends. An error
	// after which the sequence goes on is passing. If the sequence ends before ctx does, its last
	// error says why, and the caller lists again: ErrCompacted, if the revision is not known any
	// more; ErrClosed, if the store has been closed.
	Watch(ctx context.Context, after int64) iter.Seq2[Batch, error]

	// Apply makes all changes, or none, and returns the store's revision with them. If ifRevision is
	// not 0 and any Apply, by anybody, was made after that revision, it returns a *ConflictError.
	// Faults of the changes come as policy's *FieldError and *TieError, joined.
	Apply(ctx context.Context, changes []Change, ifRevision int64) (revision int64, err error)

	// Close ends the watches and releases what the store holds; a second call does nothing.
	Close() error
}

// A Snapshot is all policies at one revision.
type Snapshot struct {
	Entries  []policy.Entry // in the order of policy.Entry.Compare
	Identity string         // of the store: revisions of different identities cannot be compared
	Revision int64
	Applied  int64 // of the last Apply by anybody: what ifRevision is held against
}

// A Key names an entry of a store.
type Key struct {
	Scope policy.Scope
	Field string // of the temporary entry for this field; "" = the permanent entry
}

// KeyOf returns the key of an entry.
func KeyOf(e policy.Entry) Key { return Key{e.Scope, e.Field} }

// A Batch is what changed at one revision or several; no key is in it twice.
type Batch struct {
	Revision int64 // after the changes
	Puts     []policy.Entry
	Deletes  []Key
}

// A Change puts or deletes one entry.
type Change struct {
	Key
	Policy policy.Policy // of the entry; the zero Policy deletes it
	TTL    time.Duration // how long a temporary entry lives, from MinTTL to MaxTTL

	// Expires is when exactly a temporary entry ends, if that was said; TTL is then how far off that
	// is. Zero: it ends a TTL after it was stored.
	Expires time.Time
}

// How long temporary entries may live.
const (
	MinTTL = time.Second
	MaxTTL = 365 * 24 * time.Hour
)

var (
	// ErrCompacted ends a watch that cannot say what changed: list again.
	ErrCompacted = errors.New("configstore: the revision is not known any more")

	// ErrClosed reports the use of a closed store.
	ErrClosed = errors.New("configstore: closed")
)

// A ConflictError reports an Apply that came too late.
type ConflictError struct {
	Have, Want int64 // the revision of the last Apply; the one that the caller had seen
}

func (e *ConflictError) Error() string {
	if e.Have < e.Want { // of a file: a copy with an older time
		return fmt.Sprintf("configstore: policies have changed: they are at revision %d, not %d; review them and try again", e.Have, e.Want)
	}
	return fmt.Sprintf("configstore: policies have changed: revision %d is newer than %d; review the newer ones and try again", e.Have, e.Want)
}

// Check returns every fault that changes would have in a store that holds entries. Every Store calls it before it stores anything.
func Check(entries []policy.Entry, changes []Change) error {
	var errs []error
	seen := make(map[Key]bool)
	for _, c := range changes {
		fault := func(field, value, reason string) {
			errs = append(errs, fmt.Errorf("%s: %w", c.Scope, &policy.FieldError{Field: field, Value: value, Reason: reason}))
		}
		if seen[c.Key] {
			fault("scope", c.Scope.String(), "is changed twice: keep one of them")
		}
		seen[c.Key] = true
		if c.Policy.IsZero() {
			continue // whatever it is, it may go
		}
		if err := c.Policy.Validate(c.Scope); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.Scope, err))
		}
		switch {
		case c.Field == "" && c.TTL != 0:
			fault("ttl", c.TTL.String(), "is for temporary entries, which name their field")
		case c.Field != "" && (c.TTL < MinTTL || c.TTL > MaxTTL):
			fault("ttl", c.TTL.String(), fmt.Sprintf("is outside %s..%s", MinTTL, MaxTTL))
		}
		if c.Field != "" && (!c.Policy.Has(c.Field) || !c.Policy.Without(c.Field).IsZero()) {
			fault(c.Field, "", "is not the only field of the temporary entry")
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return errors.Join(checkTies(entries, changes), checkReserved(entries, changes))
}

// after returns what is stored once the changes to scopes of these kinds are made, of entries of these kinds.
func after(entries []policy.Entry, changes []Change, kinds ...policy.Kind) []policy.Entry {
	changed := make(map[Key]bool)
	for _, c := range changes {
		changed[c.Key] = true
	}
	var left []policy.Entry
	for _, e := range entries {
		if slices.Contains(kinds, e.Scope.Kind) && !changed[KeyOf(e)] {
			left = append(left, e)
		}
	}
	for _, c := range changes {
		if slices.Contains(kinds, c.Scope.Kind) && !c.Policy.IsZero() {
			left = append(left, policy.Entry{Scope: c.Scope, Policy: c.Policy, Temporary: c.Field != "", Field: c.Field})
		}
	}
	return left
}

// checkReserved refuses changes by which quotas reserve more than the cluster declares as its capacity, unless they did before and the changes make it
// no worse.
func checkReserved(entries []policy.Entry, changes []Change) error {
	kinds := []policy.Kind{policy.ClusterKind, policy.TenantKind, policy.TagKind}
	if !slices.ContainsFunc(changes, func(c Change) bool { return slices.Contains(kinds, c.Scope.Kind) }) {
		return nil
	}
	excess := func(entries []policy.Entry) (reserved, capacity int64) {
		set, _ := policy.NewSet(entries) // of patterns there are none
		for _, q := range set.Quotas() {
			reserved = min(reserved+q.Reserved, policy.MaxThroughput) // which each is at most
		}
		return reserved, set.Ratekeeping().Capacity
	}
	reserved, capacity := excess(after(entries, changes, kinds...))
	if capacity == 0 || reserved <= capacity {
		return nil
	}
	was, of := excess(after(entries, nil, kinds...))
	if of > 0 && was-of >= reserved-capacity {
		return nil
	}
	if capacity != of {
		return &policy.FieldError{Field: "capacity", Value: fmt.Sprint(capacity), Reason: fmt.Sprintf(
			"is below what all quotas reserve together, %d: raise it, or reserve less first", reserved)}
	}
	return &policy.FieldError{Field: "reservedThroughput", Value: fmt.Sprint(reserved), Reason: fmt.Sprintf(
		"is what all quotas reserve together, and above the cluster's capacity, %d: reserve less, or set cluster capacity", capacity)}
}

// checkTies looks at what would be stored, so that changes may untie each other.
func checkTies(entries []policy.Entry, changes []Change) error {
	var errs []error
	for _, tie := range Ties(entries, changes) {
		if tie.Topic != "" {
			errs = append(errs, tie)
		}
	}
	return errors.Join(errs...)
}

// Ties returns the ties of patterns that changes would make in a store that holds entries. Check refuses those that name a topic;
// of the others it could not be decided whether they are any.
func Ties(entries []policy.Entry, changes []Change) []*policy.TieError {
	changed := make(map[policy.Scope]bool)
	for _, c := range changes {
		if c.Scope.Kind == policy.PatternKind {
			changed[c.Scope] = true
		}
	}
	if len(changed) == 0 {
		return nil
	}
	patterns := slices.DeleteFunc(after(entries, changes, policy.PatternKind), func(e policy.Entry) bool { return e.Policy.IsZero() })
	set, _ := policy.NewSet(patterns) // what else is wrong is found elsewhere
	return set.Ties(func(s policy.Scope) bool { return changed[s] })
}
