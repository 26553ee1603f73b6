// Package printable makes text that others wrote safe to show on a terminal, which would act on
// escape sequences, and show what follows a bidirectional override in another order.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Line returns s with each character that is not printable as a string literal of Go has it, such
// as \n, \x1b and \u202e.
func Line(s string) string { return escape(s, strconv.IsPrint) }

// Text is Line for a text of several lines, whose ends it keeps.
func Text(s string) string {
	return escape(s, func(r rune) bool { return r == '\n' || strconv.IsPrint(r) })
}

// JSON returns a JSON text with each character that is not printable escaped, such as \u202e. Its
// values stay the same.
func JSON(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || strconv.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func escape(s string, keep func(rune) bool) string {
	escaped := func(r rune) bool { return r == utf8.RuneError || !keep(r) }
	if !strings.ContainsFunc(s, escaped) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, s[i]) // a byte that is not UTF-8
		case keep(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}
