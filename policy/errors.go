package policy

import "fmt"

// A FieldError is one fault of one field; several come joined by [errors.Join].
type FieldError struct {
	Field  string // as in JSON: messageRate, scope, topic.namespace
	Value  string // as it was given
	Reason string // what is wrong, and what to write instead
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s %.200q: %s", e.Field, e.Value, e.Reason)
}

// A SchemaError reports a policy that was written by a newer version of this library.
type SchemaError struct {
	Have, Newest int // the schema of the policy; the newest that is understood here
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("policy: schema %d is newer than %d, the newest this version understands: upgrade this program to read it", e.Have, e.Newest)
}
