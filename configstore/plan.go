package configstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// Permanent returns the permanent policy of a scope; ok is false if there is none.
func (s Snapshot) Permanent(scope policy.Scope) (p policy.Policy, ok bool) {
	e, ok := s.find(Key{Scope: scope})
	return e.Policy, ok
}

func (s Snapshot) find(k Key) (policy.Entry, bool) {
	i, ok := search(s.Entries, k)
	if !ok {
		return policy.Entry{}, false
	}
	return s.Entries[i], true
}

// search finds a key in sorted entries, or where it belongs.
func search(entries []policy.Entry, k Key) (int, bool) {
	return slices.BinarySearchFunc(entries, k, func(e policy.Entry, k Key) int {
		return policy.Entry{Scope: e.Scope, Field: e.Field, Temporary: e.Field != ""}.Compare(
			policy.Entry{Scope: k.Scope, Field: k.Field, Temporary: k.Field != ""})
	})
}

// Set plans to set the fields that p sets, for good: the other fields of the scope stay, and
// temporary entries of these fields end.
func (s Snapshot) Set(scope policy.Scope, p policy.Policy) []Change {
	old, _ := s.Permanent(scope)
	changes := []Change{{Key: Key{Scope: scope}, Policy: old.Overlay(p)}}
	for field := range policy.Fields() {
		if p.Has(field) {
			changes = s.appendEnd(changes, scope, field)
		}
	}
	return changes
}

// SetFor plans to set the fields that p sets for a while; then what was there before comes back.
func (s Snapshot) SetFor(scope policy.Scope, p policy.Policy, ttl time.Duration) []Change {
	var changes []Change
	for field := range policy.Fields() {
		if p.Has(field) {
			changes = append(changes, Change{Key: Key{scope, field}, Policy: p.Only(field), TTL: ttl})
		}
	}
	return changes
}

// Unset plans to have fields of a scope inherited again; temporary entries of them end, too.
func (s Snapshot) Unset(scope policy.Scope, fields ...string) []Change {
	var changes []Change
	old, ok := s.Permanent(scope)
	p := old
	for _, field := range fields {
		p = p.Without(field)
		changes = s.appendEnd(changes, scope, field)
	}
	if ok && !p.Equal(old) {
		changes = append(changes, Change{Key: Key{Scope: scope}, Policy: p})
	}
	return changes
}

// Remove plans to delete every entry of a scope. It plans nothing if there is none.
func (s Snapshot) Remove(scope policy.Scope) []Change {
	var changes []Change
	for _, e := range s.Entries {
		if e.Scope == scope {
			changes = append(changes, Change{Key: KeyOf(e)})
		}
	}
	return changes
}

// Replace plans to have these entries and no others at now. What is the same already stays untouched.
func (s Snapshot) Replace(entries []policy.Entry, now time.Time) []Change {
	var changes []Change
	keep := make(map[Key]bool)
	for _, e := range entries {
		if e.Temporary && !e.Expires.After(now) {
			continue
		}
		keep[KeyOf(e)] = true
		old, ok := s.find(KeyOf(e))
		if ok && old.Err == nil && old.Policy.Equal(e.Policy) && old.Expires.Equal(e.Expires) {
			continue
		}
		c := Change{Key: KeyOf(e), Policy: e.Policy}
		if e.Temporary {
			c.TTL, c.Expires = max(MinTTL, e.Expires.Sub(now)), e.Expires
		}
		changes = append(changes, c)
	}
	for _, e := range s.Entries {
		if !keep[KeyOf(e)] {
			changes = append(changes, Change{Key: KeyOf(e)})
		}
	}
	return changes
}

// appendEnd appends the end of a temporary entry, if there is one.
func (s Snapshot) appendEnd(changes []Change, scope policy.Scope, field string) []Change {
	if _, ok := s.find(Key{scope, field}); ok {
		changes = append(changes, Change{Key: Key{scope, field}})
	}
	return changes
}

// Edit lists, asks plan what to change, and applies that if nobody else applied anything in the
// meantime; else it begins again, so that no update is lost. It returns the store's revision. A plan
// without changes applies nothing.
func Edit(ctx context.Context, store Store, plan func(Snapshot) ([]Change, error)) (int64, error) {
	for {
		s, err := store.List(ctx)
		if err != nil {
			return 0, err
		}
		changes, err := plan(s)
		if err != nil || len(changes) == 0 {
			return s.Revision, err
		}
		// An empty store may have revision 0, which would mean "whatever happened".
		revision, err := store.Apply(ctx, changes, max(s.Revision, 1))
		if _, conflict := errors.AsType[*ConflictError](err); !conflict {
			return revision, err
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
	}
}
