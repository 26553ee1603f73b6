package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// A FieldError is one fault of one field. Several faults come joined by [errors.Join].
type FieldError struct {
	Field  string // as on the command line: messageRate, sharing.mode, scope, topic.name
	Value  string // as it was given
	Reason string // the fault, and what is expected instead
}

func (e *FieldError) Error() string {
	field := e.Field
	if strings.ContainsFunc(field, func(r rune) bool { return !strconv.IsPrint(r) }) {
		field = strconv.Quote(field) // an unknown one may have any text
	}
	return fmt.Sprintf("policy: %s %.200q: %s", field, e.Value, e.Reason)
}

// A SchemaError reports settings that another version of this library wrote in a form that this
// version does not read.
type SchemaError struct {
	Have, Want int // the schema of the settings; the one that this version reads
}

// Newer reports whether a newer version wrote the settings.
func (e *SchemaError) Newer() bool { return e.Have > e.Want }

func (e *SchemaError) Error() string {
	if e.Newer() {
		return fmt.Sprintf("policy: schema %d: written by a newer version: upgrade this program, "+
			"which reads schema %d", e.Have, e.Want)
	}
	return fmt.Sprintf("policy: schema %d: written by an older version: set the fields again "+
		"in the form of schema %d, see docs/reference/policy.md", e.Have, e.Want)
}
