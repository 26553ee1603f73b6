package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Snapshot is all policies and quotas at one revision of their store. A source that does not count
// changes has no Epoch.
type Snapshot struct {
	Set      *Set   // never nil
	Identity string // of the line of policies: the id of the store's marker; "" = it has none
	Epoch    int64  // when the line was last adopted, Unix milliseconds; 0 = never
	Serial   int64  // counts changes by Apply and Adopt, not those by other means
	Revision int64  // of the store, when this was true; those of a later epoch are newer

	// Plain means that the source has no history that could be lost, such as a file: what it holds
	// is right, whatever was known before.
	Plain bool
}

type snapshotJSON struct {
	Schema   int         `json:"schema"`
	Identity string      `json:"identity"`
	Epoch    int64       `json:"epoch"`
	Serial   int64       `json:"serial"`
	Revision int64       `json:"revision"`
	Plain    bool        `json:"plain,omitempty"`
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

// MarshalSnapshot returns the JSON form of a snapshot, for a cache file. It leaves out the settings
// of the history, which replicas do not need and earlier versions do not know.
func MarshalSnapshot(s Snapshot) ([]byte, error) {
	out := snapshotJSON{
		Schema: Schema, Identity: s.Identity, Epoch: s.Epoch, Serial: s.Serial, Revision: s.Revision,
		Plain: s.Plain,
	}
	for _, e := range s.Set.entries {
		if e.Section() == HistorySettingsSection {
			continue
		}
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
	return Snapshot{
		Set: set, Identity: in.Identity, Epoch: in.Epoch, Serial: in.Serial, Revision: in.Revision,
		Plain: in.Plain,
	}, nil
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
	if e.Scope, err = ParseScope(j.Scope); err != nil { // the other entries are still of use
		e.Scope = Scope{Kind: UnreadableKind, Pattern: j.Scope}
		if e.Err == nil {
			e.Err = err
		}
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

// Replaces returns nil if the policies of s may replace those that are known: nothing is known (its
// Set is nil), s is plain, or s is of the same line, not older, and not emptied by other means than
// Apply and Adopt. A line without an identity, and plain policies, may be followed by any line.
// Otherwise it returns a *HeldError, which says why not, and what to do.
func (s Snapshot) Replaces(known Snapshot) error {
	otherLine := s.Identity != known.Identity && known.Identity != "" && !known.Plain
	switch {
	case known.Set == nil, s.Plain:
		return nil
	case otherLine && s.Identity == "":
		return held(FaultOther, "the policy store has no marker, and the last policies were %q: check its "+
			"address and prefix; if its policies are right, run: throttle-admin adopt --id %s",
			known.Identity, known.Identity)
	case otherLine:
		return held(FaultOther, "the policy store has policies %q, and the last ones were %q: check its "+
			"address and prefix; if they are right, run: throttle-admin adopt --id %s",
			s.Identity, known.Identity, known.Identity)
	case s.Epoch < known.Epoch:
		return held(FaultOlder, "the policy store was adopted at epoch %d, and the last policies are of "+
			"epoch %d: if it was restored from a backup, run: throttle-admin adopt --after %d",
			s.Epoch, known.Epoch, known.Epoch)
	case s.olderThan(known):
		return held(FaultOlder, "the policy store is at revision %d (change %d), and was at %d (change %d): "+
			"if it was restored from a backup, run: throttle-admin adopt",
			s.Revision, s.Serial, known.Revision, known.Serial)
	case s.Epoch == 0 || CountPermanent(s.Set.entries) > 0:
		return nil
	}
	switch n := CountPermanent(known.Set.entries); {
	case n > 0 && s.Serial == 0:
		return held(FaultLost, "the policy store is empty, and nobody has emptied it; the last policies were %d: "+
			"check its address and prefix; restore them, or run: throttle-admin adopt --empty", n)
	case n > 0 && s.Epoch == known.Epoch && s.Serial == known.Serial:
		return held(FaultLost, "the policy store has lost its policies (%d): restore them, or run: "+
			"throttle-admin adopt --empty", n)
	}
	return nil
}

// olderThan reports whether s was before a snapshot of the same epoch.
func (s Snapshot) olderThan(known Snapshot) bool {
	return s.Epoch == known.Epoch && (s.Serial < known.Serial || s.Revision < known.Revision)
}

// CountPermanent counts the permanent entries. One without settings, such as the last of a
// truncated file, is none.
func CountPermanent(entries []Entry) (n int) {
	for _, e := range entries {
		if e.Section() == HistorySettingsSection { // replicas of earlier versions do not see them
			continue
		}
		if !e.Temporary && (e.Err != nil || !IsZero(e.Settings)) {
			n++
		}
	}
	return n
}
