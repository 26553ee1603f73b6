package configstore

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// The JSON form of a record, without what a store keeps elsewhere. Entries are named as etcd's keys
// name them.
type (
	recordJSON struct {
		Revision int64         `json:"revision,omitempty"`
		Time     time.Time     `json:"time"`
		Author   string        `json:"author,omitempty"`
		Reason   string        `json:"reason,omitempty"`
		Found    bool          `json:"found,omitempty"`
		First    bool          `json:"first,omitempty"`
		Changes  []changedJSON `json:"changes"`
	}
	changedJSON struct {
		Section string     `json:"section,omitempty"` // none: policies
		Scope   string     `json:"scope"`
		Field   string     `json:"field,omitempty"`
		Was     *valueJSON `json:"was,omitempty"` // none: there was no entry
		Is      *valueJSON `json:"is,omitempty"`
	}
	valueJSON struct {
		Settings json.RawMessage `json:"settings,omitempty"` // none: unknown
		Expires  time.Time       `json:"expires,omitzero"`
	}
)

// MarshalRecord returns a record as JSON. A store that knows the revision by other means leaves it
// out.
func MarshalRecord(r Record) ([]byte, error) {
	out := recordJSON{
		Revision: r.Revision, Time: r.Time, Author: r.Author, Reason: r.Reason, Found: r.Found,
		First: r.First, Changes: []changedJSON{},
	}
	for _, c := range r.Changes {
		item := changedJSON{Scope: c.Scope.String(), Field: c.Field}
		if c.Section != policy.PolicySection {
			item.Section = c.Section.String()
		}
		if c.Scope.Kind == policy.UnreadableKind {
			item.Scope = c.Scope.Pattern
		}
		var err error
		if item.Was, err = c.Was.json(); err != nil {
			return nil, err
		}
		if item.Is, err = c.Is.json(); err != nil {
			return nil, err
		}
		out.Changes = append(out.Changes, item)
	}
	return json.Marshal(out)
}

func (v Value) json() (*valueJSON, error) {
	switch {
	case v.Unknown:
		return &valueJSON{}, nil
	case v.Settings == nil:
		return nil, nil
	}
	settings, err := policy.Marshal(v.Settings)
	return &valueJSON{settings, v.Expires}, err
}

// UnmarshalRecord reads what MarshalRecord wrote.
func UnmarshalRecord(data []byte) (Record, error) {
	var in recordJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return Record{}, fmt.Errorf("configstore: a record of the history: %w", err)
	}
	if in.Time.IsZero() || in.Revision < 0 {
		return Record{}, fmt.Errorf("configstore: a record of the history: no time, or a negative revision")
	}
	r := Record{
		Revision: in.Revision, Time: in.Time, By: By{Author: in.Author, Reason: in.Reason},
		Found: in.Found, First: in.First,
	}
	for _, item := range in.Changes {
		c, err := item.changed()
		if err != nil {
			return Record{}, fmt.Errorf("configstore: a record of the history: %w", err)
		}
		r.Changes = append(r.Changes, c)
	}
	r.sort()
	return r, nil
}

func (item changedJSON) changed() (c Changed, err error) {
	c.Field = item.Field
	if item.Section != "" {
		var known bool
		if c.Section, known = policy.ParseSection(item.Section); !known {
			return c, fmt.Errorf("section %.40q is not known: upgrade this program", item.Section)
		}
	}
	if c.Scope, err = policy.ParseScope(item.Scope); err != nil {
		c.Scope = policy.Scope{Kind: policy.UnreadableKind, Pattern: item.Scope}
	}
	if c.Was, err = item.Was.value(c.Section); err != nil {
		return c, err
	}
	c.Is, err = item.Is.value(c.Section)
	return c, err
}

func (v *valueJSON) value(section policy.Section) (Value, error) {
	switch {
	case v == nil:
		return Value{}, nil
	case len(v.Settings) == 0:
		return Value{Unknown: true}, nil
	}
	settings, err := policy.Unmarshal(section, v.Settings)
	return Value{Settings: settings, Expires: v.Expires}, err
}
