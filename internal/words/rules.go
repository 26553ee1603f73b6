package main

import "regexp"

// A rule is one word that is not used. Its pattern is matched against each line, without regard to
// case, so that it also finds a word within an identifier.
type rule struct {
	pattern string
	use     string // the term to write instead
	in      part   // of the files
	except  []exception
}

// A part is where a rule applies.
type part int

const (
	everywhere part = iota
	prose           // comments and string literals of Go, all text of other files
)

// An exception is a text that is right as it is, where a rule would match a part of it.
type exception struct {
	folder  string // the name of a file starts so; "" for all files
	pattern string
	reason  string
}

var rules = []rule{
	{`ledger`, "permit store", everywhere, []exception{
		{"tests/services/", `managedLedger`, "settings of Pulsar"},
		{"adapters/pulsar/", `ledgers?`, "the ID of a message has that of a ledger of BookKeeper"},
		{"docs/pulsar.md", `ledgers?`, "of BookKeeper"},
		{"tests/chaos/hour/", `ledger(id)?`, "the ID of a message has that of a ledger of BookKeeper"},
	}},
	{
		`\bbook(s|ed|ing|ings)?\b|(?-i:[a-z]Book(s|ed|ings?)?\b|\bBook[A-Z])`,
		"allocate, allocation, allocated", everywhere, []exception{
			{"", `BookKeeper`, "Pulsar's storage"},
		},
	},
	{`onLedgerLoss`, "onOutage", everywhere, nil},
	{`THROTTLE_LEDGER|--ledger\b`, "THROTTLE_PERMITS, --permits", everywhere, nil},
	{`THROTTLE_STORE|--store\b`, "THROTTLE_POLICIES, --policies", everywhere, nil},
	{`\btrips?\b`, "requests", everywhere, []exception{
		{"", `round[ -]trips?`, "of a network"},
	}},
	{`head ?counts?`, "membership, pool size", everywhere, nil},
	{`begun`, "started", everywhere, nil},
	{`\blapsed?\b`, "expired", everywhere, nil},
	{`outstanding`, "unacknowledged", everywhere, nil},
	{`budget`, "limit; aggregate limit", everywhere, nil},
	{`\b(he|his|him|himself)\b`, "the name of the thing, or it, its", prose, nil},
	{`\bwhosever\b`, "of any", prose, nil},
	{`\blest\b`, "so that ... not", prose, nil},
	{`\banew\b`, "again", prose, nil},
	{`flying|takeoff`, "in flight", everywhere, nil},
	{`farewell|goodbye`, "the last request; drain", everywhere, nil},
	{`\bobey(s|ed|ing)?\b`, "follow, apply; what is limited by", everywhere, nil},
	{`on whose account`, "what ... is charged to", prose, nil},
	{`head of the line`, "the first caller", prose, nil},
	{`\bof so many\b`, "of n", prose, nil},
	{`\blet(s|ting)? through\b`, "allow; not throttle", prose, nil},
}

// The longest lines, in characters.
const (
	maxComment = 100 // that hold a comment of Go
	maxDocs    = 120 // of text in Markdown; a table's row is one line
)

// notOurs are parts of the names of files that are not checked, after a leading slash.
var notOurs = []string{
	"/LICENSE",         // the words of the Apache licence
	"/go.sum",          // names of modules
	"/sha256sums",      // names of jars
	".svg",             // drawn by throttle-admin
	"/page/uPlot",      // plots of the console, as published
	"/testdata/axe.",   // likewise, for its tests
	"/internal/words/", // names the words
}

// compiled are the rules as they are matched.
var compiled = func() (all []matcher) {
	for _, r := range rules {
		m := matcher{rule: r, word: regexp.MustCompile(`(?i)` + r.pattern)}
		for _, e := range r.except {
			m.right = append(m.right, regexp.MustCompile(`(?i)`+e.pattern))
		}
		all = append(all, m)
	}
	return all
}()
