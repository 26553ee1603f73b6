package cli

// A misuseError is a fault of the command line.
type misuseError struct{ error }

func (e *misuseError) Unwrap() error { return e.error }

// Misuse makes a fault of the command line of an error; nil stays nil.
func Misuse(err error) error {
	if err == nil {
		return nil
	}
	return &misuseError{err}
}

// A hintError says what to do next.
type hintError struct {
	error
	hint string
}

func (e *hintError) Unwrap() error { return e.error }

// Hint adds to an error what to do next.
func Hint(err error, hint string) error { return &hintError{err, hint} }
