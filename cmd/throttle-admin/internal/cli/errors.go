package cli

import "fmt"

// A usageError is an error in the command line; the exit status is ExitUsage.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// Usage marks an error as one in the command line; nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// ArgError returns an error in one argument or flag.
func ArgError(name, value, reason string) error {
	return fmt.Errorf("%.50s %.200q: %s", name, value, reason)
}

// A hintError is an error with a hint, which is printed on a line of its own.
type hintError struct {
	error
	hint string
}

func (e *hintError) Unwrap() error { return e.error }

// Hint adds to an error what the user can do next.
func Hint(err error, hint string) error { return &hintError{err, hint} }
