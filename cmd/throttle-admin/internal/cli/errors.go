package cli

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/dispatchthrottle/throttle/internal/printable"
)

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

// printableError returns an error's text with what is not printable escaped, and without passwords.
// It has several lines only if there are several errors in it.
func printableError(err error) string {
	text := withoutPasswords(err.Error())
	for e := err; e != nil; e = errors.Unwrap(e) {
		if _, ok := e.(interface{ Unwrap() []error }); ok {
			return printable.Text(text)
		}
	}
	return printable.Line(text)
}

// withoutPasswords hides the user and the password of each URL in a text: one that was given in
// place of another argument, or as the value of another flag. A password may contain spaces, and an
// error may have cut what it quotes before the @: of that, all is hidden.
func withoutPasswords(text string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "://")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteString("://")
		n := userInfo(after, quote.MatchString(before))
		if n > 0 {
			b.WriteString("***")
		}
		text = after[n:]
	}
}

var (
	quote  = regexp.MustCompile(`"[^"\s]*$`)        // begins a text that ends with a scheme
	quoted = regexp.MustCompile(`^(\\.|[^"\\\n])*`) // until the quote ends

	// host is a host, or several, with or without a port; or an IPv6 address.
	host = regexp.MustCompile(`^([^:/?]*(:(\d{1,5}|port)([/?,].*)?|[/?].*)?|\[.*)$`)
)

// userInfo returns the length of the user and the password at the start of text, which follows ://,
// or of more than these; 0 if there are none. inQuote says that text is inside a quote.
func userInfo(text string, inQuote bool) int {
	line, _, _ := strings.Cut(text, "\n")
	word, _, _ := strings.Cut(line, " ")
	word = strings.TrimRight(word, `:;,)"\`)
	if inQuote {
		word = quoted.FindString(line)
		line = word
	}
	isHost := host.MatchString(word)
	if isHost {
		line = word
	}
	switch at := strings.LastIndex(line, "@"); {
	case at < 0 && isHost:
		return 0
	case at < 0 || inQuote:
		return len(line)
	default:
		return at
	}
}
