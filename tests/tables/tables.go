// Package tables writes tables of measurements into documents, each between two marks.
package tables

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
)

// begin is the mark at the start of the table of a target of make.
func begin(target string) string { return "<!-- make " + target + " writes from here -->\n" }

const end = "<!-- to here -->\n"

// Write replaces the table of a target of make in a file.
func Write(file, target string, table []byte) error {
	doc, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, ok := bytes.Cut(doc, []byte(begin(target)))
	if !ok {
		return fmt.Errorf("%s: no line %q, which starts the table", file,
			strings.TrimSpace(begin(target)))
	}
	_, tail, ok := bytes.Cut(rest, []byte(end))
	if !ok {
		return fmt.Errorf("%s: no line %q after it, which ends the table", file,
			strings.TrimSpace(end))
	}
	doc = slices.Concat(head, []byte(begin(target)), table, []byte(end), tail)
	return os.WriteFile(file, doc, 0o600) // which keeps the mode
}
