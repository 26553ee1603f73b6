package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestInFile(t *testing.T) {
	long := strings.Repeat("long ", 25)
	for _, c := range []struct {
		file, text string
		want       []string // of each finding, its start
	}{
		{"a.go", "package a\n\nvar theLedger int // a Booking\n", []string{
			`a.go:3: "Ledger": write permit store`, `a.go:3: "Booking": write allocate`,
		}},
		{"a.go", "package a\n\nvar he = 1\n", nil}, // not prose
		{"a.go", "package a\n\nvar s = \"who waits has his turn\" // and he knows\n",
			[]string{`a.go:3: "his"`, `a.go:3: "he"`}},
		{"a.go", "package a\n\n/* anew\nlest */\n", []string{`a.go:3: "anew"`, `a.go:4: "lest"`}},
		{"a.go", "package a\n\n// " + long + "\n//go:generate " + long + "\nvar s = `" + long + "`\n",
			[]string{"a.go:3: a comment ends in column 128"}},
		{"a.go", "package a\n\n\t\t// elapsed, another, bookkeeper, facebook, a round trip, round-trips\n", nil},
		{"adapters/pulsar/a.go", "package a\n\nvar p = id.LedgerID() // of a ledger\n", nil},
		{"tests/services/conf", "managedLedgerCacheSizeMB=64\n", nil},
		{"conf", "managedLedgerCacheSizeMB=64\n", []string{`conf:1: "Ledger"`}},
		{"a.md", long + "\n| " + long + "|\n```\n" + long + "\n```\n" + long + "\n",
			[]string{"a.md:1: the line has 125", "a.md:6: the line has 125"}},
		{"a.txtar", "throttle-admin --store x\n# his\n", []string{`a.txtar:1: "--store"`, `a.txtar:2: "his"`}},
	} {
		var got []string
		for i, f := range inFile(c.file, c.text) {
			text := f.String()
			if i < len(c.want) {
				text = text[:min(len(text), len(c.want[i]))]
			}
			got = append(got, text)
		}
		assert.Equal(t, c.want, got, "%q", c.text)
	}
}
