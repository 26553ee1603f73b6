package policy

import (
	"reflect"
	"slices"
)

// A Line decides which snapshots replace the newest one that is known; see [Snapshot.Replaces]. The
// zero value knows none.
type Line struct {
	Known Snapshot // the newest one; its Set is nil if there is none
	Fell  string   // why an older one did not replace it; "": none has come
}

// Follow makes s the newest snapshot, or returns a *HeldError, which says why it must not be.
// Entries that cannot be read keep the settings that are known.
//
// A store that was restored from a backup counts on from there, and its revision passes the newest
// known one in time. So once an older snapshot has come, others of its epoch are refused too. An
// older snapshot that holds the known policies is none of these: it is followed, and the known
// revision stays. So is one that has temporary entries beside them which have ended. Plain
// snapshots are followed in any case, as newer than what is known.
func (l *Line) Follow(s Snapshot) error {
	known, err := l.Known, s.Replaces(l.Known)
	if known.Set != nil && s.Plain {
		s = s.laterThan(known)
	} else if known.Set != nil && s.Identity == known.Identity && s.Epoch == known.Epoch &&
		(err != nil || l.Fell != "") {
		switch {
		case slices.EqualFunc(s.Set.entries, known.Set.entries, same):
			s.Revision, err = max(s.Revision, known.Revision), nil
		case s.Serial == known.Serial && s.Revision < known.Revision && s.onlyNotEnded(known):
			s, err = known, nil
		case s.olderThan(known):
			l.Fell = err.Error()
		case err == nil:
			err = &HeldError{FaultOlder, l.Fell}
		}
	}
	if err != nil {
		return err
	}
	if known.Set != nil {
		s.Set = s.Set.keepValid(known.Set)
	}
	l.Known, l.Fell = s, ""
	return nil
}

// laterThan returns s with an epoch and revision after those of known; with the same ones if it has
// what is known.
func (s Snapshot) laterThan(known Snapshot) Snapshot {
	if s.Epoch > known.Epoch || s.Epoch == known.Epoch && s.Revision > known.Revision {
		return s
	}
	s.Epoch, s.Revision = known.Epoch, known.Revision
	if !slices.EqualFunc(s.Set.entries, known.Set.entries, same) {
		s.Revision++
	}
	return s
}

// onlyNotEnded reports whether s has what is known, and temporary entries that have ended there:
// the clock has stepped back across their end, or is that of a machine whose clock is behind.
func (s Snapshot) onlyNotEnded(known Snapshot) bool {
	entries := slices.DeleteFunc(s.Set.Entries(), func(e Entry) bool {
		return e.Temporary && !slices.ContainsFunc(known.Set.entries, func(k Entry) bool { return same(e, k) })
	})
	return slices.EqualFunc(entries, known.Set.entries, same)
}

// same reports whether two entries have the same effect.
func same(a, b Entry) bool {
	return a.Scope == b.Scope && a.Field == b.Field && a.Expires.Equal(b.Expires) &&
		reflect.DeepEqual(a.Settings, b.Settings)
}

// keepValid returns the set with the settings that known has of entries that cannot be read: the
// program that read the last valid ones may have ended since.
func (s *Set) keepValid(known *Set) *Set {
	entries, found := s.Entries(), false
	for i := range entries {
		e := &entries[i]
		if e.Err == nil || !IsZero(e.Settings) {
			continue
		}
		valid := slices.IndexFunc(known.entries, func(k Entry) bool {
			return k.Section() == e.Section() && k.Scope == e.Scope && k.Field == e.Field
		})
		if valid >= 0 {
			e.Settings, found = known.entries[valid].Settings, true
			if e.Expires.IsZero() {
				e.Expires = known.entries[valid].Expires
			}
		}
	}
	if !found {
		return s
	}
	kept, _ := NewSet(entries) // usable without its faults
	return kept
}
