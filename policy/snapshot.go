package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Snapshot is all policies and quotas at one revision of their store.
type Snapshot struct {
	Set      *Set   // never nil
	Identity string // of the store: revisions of different identities cannot be compared
	Revision int64  // of the store, when this was true; below 2^53
}

type snapshotJSON struct {
	Schema   int         `json:"schema"`
	Identity string      `json:"identity"`
	Revision int64       `json:"revision"`
	Entries  []entryJSON `json:"entries"`
}

type entryJSON struct {
	Section   string          `json:"section"`
	Scope     string          `json:"scope"`
	Settings  json.RawMessage `json:"settings"`
	Temporary bool            `json:"temporary,omitempty"`
	Field     string          `json:"field,omitempty"`
	Expires   time.Time       `json:"expires,omitzero"`
	Revision  int64           `json:"revision,omitempty"`
	Err       string          `json:"error,omitempty"`
}

// MarshalSnapshot returns the JSON form of a snapshot, for a cache file.
func MarshalSnapshot(s Snapshot) ([]byte, error) {
	out := snapshotJSON{Schema: Schema, Identity: s.Identity, Revision: s.Revision}
	for _, e := range s.Set.entries {
		settings, err := Marshal(e.Settings)
		if err != nil {
			return nil, fmt.Errorf("policy: snapshot: %s: %w", e.Scope, err)
		}
		j := entryJSON{
			Section: e.Section().String(), Scope: e.Scope.String(), Settings: settings,
			Temporary: e.Temporary, Field: e.Field, Expires: e.Expires, Revision: e.Revision,
		}
		if e.Err != nil {
			j.Err = e.Err.Error()
		}
		out.Entries = append(out.Entries, j)
	}
	return json.Marshal(out)
}

// UnmarshalSnapshot reads what MarshalSnapshot wrote. Temporary entries come back even if they have
// expired; [Snapshot.At] drops them.
func UnmarshalSnapshot(data []byte) (Snapshot, error) {
	var in snapshotJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return Snapshot{}, fmt.Errorf("policy: snapshot: %w", err)
	}
	if in.Schema != Schema {
		return Snapshot{}, &SchemaError{in.Schema, Schema}
	}
	entries := make([]Entry, 0, len(in.Entries))
	for _, j := range in.Entries {
		e, err := j.entry()
		if err != nil {
			return Snapshot{}, fmt.Errorf("policy: snapshot: %s: %w", j.Scope, err)
		}
		entries = append(entries, e)
	}
	set, _ := NewSet(entries) // usable without its faults, as when it was written
	return Snapshot{Set: set, Identity: in.Identity, Revision: in.Revision}, nil
}

func (j entryJSON) entry() (Entry, error) {
	e := Entry{Temporary: j.Temporary, Field: j.Field, Expires: j.Expires, Revision: j.Revision}
	if j.Err != "" {
		e.Err = errors.New(j.Err)
	}
	section, ok := ParseSection(j.Section)
	if !ok {
		return Entry{}, fmt.Errorf("unknown section %q", j.Section)
	}
	var err error
	if e.Settings, err = Unmarshal(section, j.Settings); err != nil {
		return Entry{}, err
	}
	if e.Scope, err = ParseScope(j.Scope); err != nil {
		if e.Err == nil {
			return Entry{}, err
		}
		e.Scope = Scope{Kind: UnreadableKind, Pattern: j.Scope}
	}
	return e, nil
}

// At returns the snapshot without the temporary entries that have expired at now. Its revision
// advances by one for each time at which some of them expired: the same revision at the same time
// is the same set on every replica.
func (s Snapshot) At(now time.Time) Snapshot {
	if end := s.Set.NextEnd(); end.IsZero() || now.Before(end) {
		return s
	}
	ends := make(map[int64]bool)
	set, _ := NewSet(slices.DeleteFunc(s.Set.Entries(), func(e Entry) bool {
		expired := e.expires() && !now.Before(e.Expires)
		if expired {
			ends[e.Expires.UnixNano()] = true
		}
		return expired
	}))
	s.Set, s.Revision = set, s.Revision+int64(len(ends))
	return s
}
