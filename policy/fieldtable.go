package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A row of a table is all there is to know of one field of objects of type T.
type row[T any] struct {
	name      string   // with a dot between a group and its field, as on the command line
	scopes    []Kind   // where the field may be set
	byDefault string   // the default, as value reads it; "" = none, or help says it
	value     value[T] // where the field is in T, and what its values are
	help      string   // one or two sentences
	isLimit   bool     // it is a limit by itself; the other fields say how limits are treated
}

// A value is a field of T, of any type.
type value[T any] interface {
	isSet(settings *T) bool
	clear(settings *T)
	copy(to, from *T)
	read(settings *T, text string) error // its error is the reason
	text(settings *T) string
	check(settings *T) error // the reason why the value is out of range
	wants() string           // what is valid
	form() jsonForm
}

// at returns the field that a function finds in T.
func at[T, V any](f format[V], in func(*T) *V) value[T] { return field[T, V]{f, in} }

type field[T, V any] struct {
	format format[V]
	in     func(*T) *V
}

func (f field[T, V]) isSet(settings *T) bool  { return f.format.isSet(*f.in(settings)) }
func (f field[T, V]) clear(settings *T)       { *f.in(settings) = *new(V) }
func (f field[T, V]) copy(to, from *T)        { *f.in(to) = *f.in(from) }
func (f field[T, V]) text(settings *T) string { return f.format.text(*f.in(settings)) }
func (f field[T, V]) check(settings *T) error { return f.format.check(*f.in(settings)) }
func (f field[T, V]) wants() string           { return f.format.want }
func (f field[T, V]) form() jsonForm          { return f.format.json }

func (f field[T, V]) read(settings *T, text string) error {
	if text == "" {
		return errors.New("empty: leave it out to inherit it")
	}
	v, err := f.format.parse(text)
	if err == nil {
		err = f.format.check(v)
	}
	if err == nil {
		*f.in(settings) = v
	}
	return err
}

// A table has a row for each field of objects of type T.
type table[T Settings] struct {
	rows     []row[T]
	named    map[string]*row[T]
	groups   map[string]bool
	defaults T
}

func newTable[T Settings](rows []row[T]) *table[T] {
	t := &table[T]{rows: rows, named: map[string]*row[T]{}, groups: map[string]bool{}}
	for i := range rows {
		r := &rows[i]
		t.named[r.name] = r
		if group, _, ok := strings.Cut(r.name, "."); ok {
			t.groups[group] = true
		}
		if r.byDefault == "" {
			continue
		}
		if err := r.value.read(&t.defaults, r.byDefault); err != nil {
			panic(fmt.Sprintf("policy: default of %s: %v", r.name, err)) // a slip in fields.go
		}
	}
	return t
}

// set returns the rows of the fields that v sets.
func (t *table[T]) set(v *T) (rows []*row[T]) {
	for i := range t.rows {
		if r := &t.rows[i]; r.value.isSet(v) {
			rows = append(rows, r)
		}
	}
	return rows
}

// overlay replaces every field that over sets.
func (t *table[T]) overlay(under, over *T) {
	for _, r := range t.set(over) {
		r.value.copy(under, over)
	}
}

// validate returns the faults of each field by itself.
func (t *table[T]) validate(v *T, scope Scope) (errs []error) {
	for _, r := range t.set(v) {
		if err := r.value.check(v); err != nil {
			errs = append(errs, &FieldError{r.name, r.value.text(v), err.Error()})
		}
		if !slices.Contains(r.scopes, scope.Kind) {
			reason := fmt.Sprintf("not allowed for a %s: set it for a %s",
				scope.Kind, enumerate(kindNames(r.scopes), "or"))
			errs = append(errs, &FieldError{r.name, r.value.text(v), reason})
		}
	}
	return errs
}

// anyTable is a table of any section, whose settings are of the table's type.
type anyTable interface {
	zero() Settings
	isZero(s Settings) bool
	fields(s Settings) []string
	text(s Settings, field string) string
	only(s Settings, fields []string) Settings
	without(s Settings, fields []string) Settings
	overlaid(under, over Settings) Settings
	parse(field, text string) (Settings, error)
	unmarshal(raw map[string]json.RawMessage) (Settings, error)
	describe() []Field
	schema() map[string]any
}

func (t *table[T]) zero() Settings { return *new(T) }

func (t *table[T]) isZero(s Settings) bool {
	v := s.(T)
	for i := range t.rows {
		if t.rows[i].value.isSet(&v) {
			return false
		}
	}
	return true
}

func (t *table[T]) fields(s Settings) []string {
	v := s.(T)
	var names []string
	for _, r := range t.set(&v) {
		names = append(names, r.name)
	}
	return names
}

func (t *table[T]) text(s Settings, field string) string {
	v := s.(T)
	if r := t.named[field]; r != nil && r.value.isSet(&v) {
		return r.value.text(&v)
	}
	return ""
}

func (t *table[T]) only(s Settings, fields []string) Settings {
	v, result := s.(T), *new(T)
	for _, name := range fields {
		if r := t.named[name]; r != nil {
			r.value.copy(&result, &v)
		}
	}
	return result
}

func (t *table[T]) without(s Settings, fields []string) Settings {
	v := s.(T)
	for _, name := range fields {
		if r := t.named[name]; r != nil {
			r.value.clear(&v)
		}
	}
	return v
}

func (t *table[T]) overlaid(under, over Settings) Settings {
	v, o := under.(T), over.(T)
	t.overlay(&v, &o)
	return v
}

func (t *table[T]) parse(field, text string) (Settings, error) {
	var v T
	if err := t.read(&v, field, text); err != nil {
		return v, &FieldError{field, text, err.Error()}
	}
	return v, nil
}

// unmarshal reads each field by itself, so that every fault is found, with its field.
func (t *table[T]) unmarshal(raw map[string]json.RawMessage) (Settings, error) {
	var v T
	var errs []error
	var read func(prefix string, raw map[string]json.RawMessage)
	read = func(prefix string, raw map[string]json.RawMessage) {
		for _, key := range slices.Sorted(maps.Keys(raw)) {
			name, value := prefix+key, raw[key]
			var group map[string]json.RawMessage
			if t.groups[name] && json.Unmarshal(value, &group) == nil && group != nil {
				read(name+".", group)
			} else if err := t.readJSON(&v, name, value); err != nil {
				errs = append(errs,
					&FieldError{name, strings.Trim(string(value), `"`), err.Error()})
			}
		}
	}
	read("", raw)
	return v, errors.Join(errs...)
}

// readJSON reads one field; its error is the reason.
func (t *table[T]) readJSON(v *T, name string, raw json.RawMessage) error {
	text, isList, ok := textOf(raw)
	r := t.named[name]
	if r != nil && (!ok || isList && !r.value.form().list) {
		return errors.New("invalid value: want " + r.value.wants())
	}
	return t.read(v, name, text)
}

// read reads one field; its error is the reason.
func (t *table[T]) read(v *T, name, text string) error {
	if r := t.named[name]; r != nil {
		return r.value.read(v, text)
	}
	return t.unknown(name, text)
}

// json returns the fields that v sets as an object, with an object in it for each group.
func (t *table[T]) json(v *T) []byte {
	b := []byte("{")
	open := "" // the group whose object is open
	for _, r := range t.set(v) {
		group, name, ok := strings.Cut(r.name, ".")
		if !ok {
			group, name = "", r.name
		}
		if open != "" && group != open {
			b = append(b, '}')
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		if group != open && group != "" {
			b = append(b, `"`+group+`":{`...)
		}
		open = group
		b = append(b, `"`+name+`":`...)
		b = append(b, r.json(v)...)
	}
	if open != "" {
		b = append(b, '}')
	}
	return append(b, '}')
}

func (r *row[T]) json(v *T) []byte {
	text, form := r.value.text(v), r.value.form()
	var encoded []byte
	switch {
	case form.list:
		encoded, _ = json.Marshal(strings.Split(text, ",")) // strings cannot fail
	case form.quote:
		encoded, _ = json.Marshal(text)
	default:
		encoded = []byte(text)
	}
	return encoded
}
