package printable_test

import (
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/internal/printable"
)

func Test(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "",
		"kafka://a/b/c 漢字 é ·":  "kafka://a/b/c 漢字 é ·",
		`C:\n "quoted"`:         `C:\n "quoted"`,
		"a\x1b[31mb\x07":        `a\x1b[31mb\a`,
		"a\u009b31m":            `a\u009b31m`,
		"a\u202eb\u2066c\u200f": `a\u202eb\u2066c\u200f`,
		"a\r\tb\x00\x7f":        `a\r\tb\x00\x7f`,
		"a\u2028b\u00a0c\ufeff": `a\u2028b\u00a0c\ufeff`,
		"a\xffb\xc3":            `a\xffb\xc3`,
		"\ufffd":                "\ufffd",
		"\U000e0041":            `\U000e0041`,
	} {
		assert.Equal(t, want, printable.Line(text))
		assert.Equal(t, want, printable.Text(text))
	}
	assert.Equal(t, `a\nb`, printable.Line("a\nb"))
	assert.Equal(t, "a\nb\\r\n", printable.Text("a\nb\r\n"))
}

func Fuzz(f *testing.F) {
	f.Add("a\x1b\xff\u202e\nb")
	f.Fuzz(func(t *testing.T, s string) {
		got := printable.Line(s)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !strconv.IsPrint(r) }) {
			t.Errorf("Line(%q) = %q", s, got)
		}
		if printable.Line(got) != got {
			t.Errorf("Line(%q) is not stable", got)
		}
		if utf8.ValidString(s) && strings.ReplaceAll(printable.Text(s), "\n", `\n`) != got {
			t.Errorf("Text(%q) is not Line by line", s)
		}
	})
}
