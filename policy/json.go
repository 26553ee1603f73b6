package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"
)

// Schema is the version of the JSON form of policies. A change that an older version would
// misunderstand raises it.
const Schema = 1

// MaxJSON is the most bytes that one policy may have as JSON.
const MaxJSON = 64 << 10

// Marshal returns the JSON form of a policy: {"schema":1,"messageRate":"1000/s"}.
func Marshal(p Policy) ([]byte, error) {
	return json.Marshal(struct {
		Schema int `json:"schema"`
		Policy
	}{Schema, p})
}

// Unmarshal reads what Marshal wrote. Its error is a *[SchemaError] if a newer version wrote it, else it
// joins a *[FieldError] for each field that is unknown or makes no sense by itself; what a scope
// allows is for [Policy.Validate] to say.
func Unmarshal(data []byte) (Policy, error) {
	if len(data) > MaxJSON {
		return Policy{}, fmt.Errorf("policy: %d bytes are more than the %d that a policy may have", len(data), MaxJSON)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return Policy{}, fmt.Errorf("policy: no JSON object: %w", err)
	}
	if err := checkSchema(raw["schema"]); err != nil {
		return Policy{}, err
	}
	delete(raw, "schema")
	return fromFields(raw)
}

func checkSchema(raw json.RawMessage) error {
	var schema int
	if err := json.Unmarshal(raw, &schema); err != nil || schema < 1 {
		return &FieldError{"schema", string(raw), fmt.Sprintf("is no version: write %d", Schema)}
	}
	if schema > Schema {
		return &SchemaError{schema, Schema}
	}
	return nil
}

// fromFields reads each field by itself, so that every fault is found, with its field.
func fromFields(raw map[string]json.RawMessage) (Policy, error) {
	var p Policy
	var errs []error
	names := make([]string, 0, len(raw))
	for name := range raw {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		i, ok := fieldIndex[name]
		if !ok {
			errs = append(errs, &FieldError{name, string(raw[name]), "is an unknown field"})
			continue
		}
		field := reflect.ValueOf(&p).Elem().Field(i)
		err := json.Unmarshal(raw[name], field.Addr().Interface())
		if err == nil && field.IsZero() {
			err = errors.New("is empty: leave it out to inherit it")
		}
		if err != nil {
			reason := err.Error()
			if fault, ok := errors.AsType[*FieldError](err); ok {
				reason = fault.Reason
			} else if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
				reason = fmt.Sprintf("is a %s, not %s", wrong.Value, typeName(field.Type()))
			}
			errs = append(errs, &FieldError{name, string(bytes.Trim(raw[name], `"`)), reason})
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Policy{}, err
	}
	return p, nil
}

// ParseField reads one field, by its JSON name, as people write it: messageRate and byteRate as [ParseRate] and
// [ParseByteRate] do, other text without quotes, and whole numbers, true and false. Its error is a
// *[FieldError]; what a scope allows is for [Policy.Validate] to say.
func ParseField(name, text string) (Policy, error) {
	var p Policy
	var err error
	switch name {
	case "messageRate":
		p.MessageRate, err = ParseRate(text)
	case "byteRate":
		p.ByteRate, err = ParseByteRate(text)
	case "rampFrom":
		p.RampFrom, err = ParseRate(text)
	case "rampFromBytes":
		p.RampFromBytes, err = ParseByteRate(text)
	case "reserved":
		p.Reserved, err = ParseRate(text)
	case "reservedBytes":
		p.ReservedBytes, err = ParseByteRate(text)
	case "reservedThroughput":
		p.ReservedThroughput, err = parseThroughput(text)
	case "totalThroughput":
		p.TotalThroughput, err = parseThroughput(text)
	case "capacity":
		p.Capacity, err = parseThroughput(text)
	default:
		raw := json.RawMessage(text)
		if !json.Valid(raw) || isText(name) {
			raw, _ = json.Marshal(text) // cannot fail
		}
		p, err = fromFields(map[string]json.RawMessage{name: raw})
	}
	if fault, ok := errors.AsType[*FieldError](err); ok {
		return Policy{}, &FieldError{name, text, fault.Reason}
	}
	return p, err
}

func parseThroughput(text string) (*int64, error) {
	n, err := ParseThroughput(text)
	return &n, err
}

// isText tells the fields that are text in JSON.
func isText(name string) bool {
	i, ok := fieldIndex[name]
	return ok && reflect.TypeFor[Policy]().Field(i).Type.Kind() != reflect.Pointer
}

func typeName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[Rate]():
		return `a rate such as "1000/s"`
	case reflect.TypeFor[Duration]():
		return `a duration such as "100ms"`
	case reflect.TypeFor[*bool]():
		return "true or false"
	case reflect.TypeFor[*float64]():
		return "a number"
	case reflect.TypeFor[*int](), reflect.TypeFor[*int64]():
		return "a whole number within bounds"
	}
	return "text"
}

type snapshotJSON struct {
	Schema   int         `json:"schema"`
	Identity string      `json:"identity"`
	Revision int64       `json:"revision"`
	Entries  []entryJSON `json:"entries"`
}

type entryJSON struct {
	Scope     string          `json:"scope"`
	Policy    json.RawMessage `json:"policy"`
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
		p, err := Marshal(e.Policy)
		if err != nil {
			return nil, fmt.Errorf("policy: snapshot: %s: %w", e.Scope, err)
		}
		j := entryJSON{Scope: e.Scope.String(), Policy: p, Temporary: e.Temporary, Field: e.Field, Expires: e.Expires, Revision: e.Revision}
		if e.Err != nil {
			j.Err = e.Err.Error()
		}
		out.Entries = append(out.Entries, j)
	}
	return json.Marshal(out)
}

// UnmarshalSnapshot reads what MarshalSnapshot wrote. Temporary entries come back even if they are
// over; [Snapshot.At] drops them.
func UnmarshalSnapshot(data []byte) (Snapshot, error) {
	var in snapshotJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return Snapshot{}, fmt.Errorf("policy: snapshot: %w", err)
	}
	if in.Schema > Schema {
		return Snapshot{}, &SchemaError{in.Schema, Schema}
	}
	if in.Schema < 1 {
		return Snapshot{}, errors.New("policy: snapshot: has no schema")
	}
	entries := make([]Entry, 0, len(in.Entries))
	for _, j := range in.Entries {
		e := Entry{Temporary: j.Temporary, Field: j.Field, Expires: j.Expires, Revision: j.Revision}
		if j.Err != "" {
			e.Err = errors.New(j.Err)
		}
		var err error
		if e.Scope, err = ParseScope(j.Scope); err != nil {
			if e.Err == nil {
				return Snapshot{}, fmt.Errorf("policy: snapshot: %w", err)
			}
			e.Scope = Scope{Kind: UnreadableKind, Pattern: j.Scope}
		}
		if e.Policy, err = Unmarshal(j.Policy); err != nil {
			return Snapshot{}, fmt.Errorf("policy: snapshot: %s: %w", j.Scope, err)
		}
		entries = append(entries, e)
	}
	set, _ := NewSet(entries) // usable without what is wrong, as it was when it was written
	return Snapshot{Set: set, Identity: in.Identity, Revision: in.Revision}, nil
}

// At returns the snapshot without the temporary entries that are over at now. Its revision moves on by one
// for each time at which some of them ended; the same revision at the same time is the same set, wherever it is asked for.
func (s Snapshot) At(now time.Time) Snapshot {
	if end := s.Set.NextEnd(); end.IsZero() || now.Before(end) {
		return s
	}
	ends := make(map[int64]bool)
	set, _ := NewSet(slices.DeleteFunc(s.Set.Entries(), func(e Entry) bool {
		over := e.ends() && !now.Before(e.Expires)
		if over {
			ends[e.Expires.UnixNano()] = true
		}
		return over
	}))
	s.Set, s.Revision = set, s.Revision+int64(len(ends))
	return s
}
