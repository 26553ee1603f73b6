package policy

import (
	"encoding/json"
	"fmt"
)

// Schema is the version of the JSON form of settings. A change that another version would
// misunderstand raises it.
const Schema = 2

// maxJSON is the most bytes that the settings of one entry may have as JSON.
const maxJSON = 64 << 10

// MarshalJSON returns the fields that are set, each group as an object:
// {"messageRate":"1000/s","ramp":{"from":"100/s","over":"1m"}}.
func (p Policy) MarshalJSON() ([]byte, error) { return policyTable.json(&p), nil }

// MarshalJSON returns the fields that are set.
func (q Quota) MarshalJSON() ([]byte, error) { return quotaTable.json(&q), nil }

// MarshalJSON returns the fields that are set.
func (s QuotaSettings) MarshalJSON() ([]byte, error) { return quotaSettingsTable.json(&s), nil }

// MarshalJSON returns the fields that are set.
func (s HistorySettings) MarshalJSON() ([]byte, error) { return historySettingsTable.json(&s), nil }

// Marshal returns settings as stores keep them: their JSON form with its version,
// {"schema":2,"messageRate":"1000/s"}.
func Marshal(s Settings) ([]byte, error) {
	fields, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	if string(fields) == "{}" {
		return fmt.Appendf(nil, `{"schema":%d}`, Schema), nil
	}
	return fmt.Appendf(nil, `{"schema":%d,%s`, Schema, fields[1:]), nil
}

// Unmarshal reads what Marshal wrote of a section. Its error is a *[SchemaError] if another version
// wrote it in a form that this one does not read; else it joins a *[FieldError] for each field that
// is unknown or out of range. What a scope allows is for Validate to say.
func Unmarshal(section Section, data []byte) (Settings, error) {
	if len(data) > maxJSON {
		return nil, fmt.Errorf("policy: %d bytes: want at most %d", len(data), maxJSON)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, fmt.Errorf("policy: invalid JSON object: %w", err)
	}
	var schema int
	if err := json.Unmarshal(raw["schema"], &schema); err != nil || schema < 1 {
		reason := fmt.Sprintf("invalid version: want %d", Schema)
		return nil, &FieldError{"schema", string(raw["schema"]), reason}
	}
	if schema != Schema {
		return nil, &SchemaError{schema, Schema}
	}
	delete(raw, "schema")
	return section.table().unmarshal(raw)
}
