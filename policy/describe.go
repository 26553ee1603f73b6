package policy

import (
	"encoding/json"
	"maps"
	"strings"
)

// A Field describes one field, for help and documentation.
type Field struct {
	Name    string // as on the command line: sharing.mode
	Want    string // what is valid: "fair, strict, split or groups"; "10ms..10s"
	Default string // "" if there is none, or Help says it
	Help    string // one or two sentences
	Scopes  []Kind // where it may be set
	List    bool   // it is a list, with commas between its items on the command line
}

func (t *table[T]) describe() []Field {
	var all []Field
	for _, r := range t.rows {
		all = append(all, Field{
			Name: r.name, Want: r.value.wants(), Default: r.byDefault, Help: r.help,
			Scopes: r.scopes, List: r.value.form().list,
		})
	}
	return all
}

// JSONSchema returns the JSON Schema of an object with the section's fields, to be marshaled.
func (s Section) JSONSchema() map[string]any { return s.table().schema() }

func (t *table[T]) schema() map[string]any {
	object := func() map[string]any {
		return map[string]any{
			"type": "object", "additionalProperties": false, "properties": map[string]any{},
		}
	}
	root := object()
	for _, r := range t.rows {
		in, name := root, r.name
		if group, field, ok := strings.Cut(r.name, "."); ok {
			properties := root["properties"].(map[string]any)
			if properties[group] == nil {
				properties[group] = object()
			}
			in, name = properties[group].(map[string]any), field
		}
		in["properties"].(map[string]any)[name] = t.schemaOf(r)
	}
	return root
}

// schemaOf returns the JSON Schema of one field.
func (t *table[T]) schemaOf(r row[T]) map[string]any {
	schema := maps.Clone(r.value.form().schema)
	schema["description"] = r.help
	if r.byDefault != "" {
		schema["default"] = json.RawMessage(r.json(&t.defaults))
	}
	return schema
}
