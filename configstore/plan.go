package configstore

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// Find returns the settings of an entry; ok is false if there is none, and the settings are empty.
func (s Snapshot) Find(k Key) (settings policy.Settings, ok bool) {
	if e, ok := s.find(k); ok && e.Settings != nil {
		return e.Settings, true
	}
	return k.Section.Zero(), false
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
	wanted := policy.Entry{
		Settings: k.Section.Zero(), Scope: k.Scope, Field: k.Field, Temporary: k.Field != "",
	}
	return slices.BinarySearchFunc(entries, k, func(e policy.Entry, k Key) int {
		e.Revision, e.Temporary = 0, e.Field != ""
		return e.Compare(wanted)
	})
}

// Set plans to set the fields that settings set, permanently: the other fields of the scope stay,
// and temporary entries of these fields end.
func (s Snapshot) Set(scope policy.Scope, settings policy.Settings) []Change {
	key := Key{Section: settings.Section(), Scope: scope}
	old, _ := s.Find(key)
	changes := []Change{{Key: key, Settings: policy.Overlay(old, settings)}}
	return s.appendEnds(changes, key, policy.Fields(settings))
}

// SetAndUnset plans to set the fields that settings set, and to unset others, permanently.
func (s Snapshot) SetAndUnset(
	scope policy.Scope, settings policy.Settings, unset ...string,
) []Change {
	changes := s.Set(scope, settings)
	changes[0].Settings = policy.Without(changes[0].Settings, unset...)
	return s.appendEnds(changes, changes[0].Key, unset)
}

// SetFor plans to set the fields that settings set for a while; then what was there before is in
// force again.
func (s Snapshot) SetFor(scope policy.Scope, settings policy.Settings, ttl time.Duration) []Change {
	var changes []Change
	for _, field := range policy.Fields(settings) {
		key := Key{settings.Section(), scope, field}
		changes = append(changes, Change{
			Key: key, Settings: policy.Only(settings, field), TTL: ttl,
		})
	}
	return changes
}

// Remove plans to delete every entry of a section and a scope. It plans nothing if there is none.
func (s Snapshot) Remove(section policy.Section, scope policy.Scope) []Change {
	var changes []Change
	for _, e := range s.Entries {
		if e.Section() == section && e.Scope == scope {
			changes = append(changes, Change{Key: KeyOf(e)})
		}
	}
	return changes
}

// Replace plans to have these entries and no others at now. Entries that are the same already stay
// untouched.
func (s Snapshot) Replace(entries []policy.Entry, now time.Time) []Change {
	var changes []Change
	keep := make(map[Key]bool)
	for _, e := range entries {
		if e.Temporary && !e.Expires.After(now) {
			continue
		}
		keep[KeyOf(e)] = true
		old, ok := s.find(KeyOf(e))
		if ok && old.Err == nil && Same(old, e) {
			continue
		}
		c := Change{Key: KeyOf(e), Settings: e.Settings}
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

// appendEnds appends the ends of the temporary entries of fields, as far as there are any.
func (s Snapshot) appendEnds(changes []Change, key Key, fields []string) []Change {
	for _, key.Field = range fields {
		if _, ok := s.find(key); ok {
			changes = append(changes, Change{Key: key})
		}
	}
	return changes
}

// Same reports whether two entries of one key have the same settings and end.
func Same(a, b policy.Entry) bool {
	return reflect.DeepEqual(a.Settings, b.Settings) && a.Expires.Equal(b.Expires)
}

// Edit lists the entries, and applies the changes that plan returns for them. If there was another
// Apply in between, it starts again, so that no update is lost. It returns the store's revision. A
// plan without changes applies nothing.
func Edit(
	ctx context.Context, store Store, by By, plan func(Snapshot) ([]Change, error),
) (int64, error) {
	for {
		s, err := store.List(ctx)
		if err != nil {
			return 0, err
		}
		changes, err := plan(s)
		if err != nil || len(changes) == 0 {
			return s.Revision, err
		}
		// An empty store may have revision 0, which would mean "in any case".
		revision, err := store.Apply(ctx, Commit{by, changes, max(s.Revision, 1)})
		if _, conflict := errors.AsType[*ConflictError](err); !conflict {
			return revision, err
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
	}
}
