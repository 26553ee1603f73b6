package throttletest

import (
	"strings"
	"testing"

	"github.com/dispatchthrottle/throttle/policy"
)

// SetOf returns the entries of lines as on the command line, "SCOPE FIELD=VALUE ...". A line of
// "quota ID FIELD=VALUE ..." is the quota of a tenant or a tag. Empty lines have no effect.
func SetOf(t testing.TB, lines string) *policy.Set {
	t.Helper()
	var entries []policy.Entry
	for line := range strings.SplitSeq(lines, "\n") {
		words, section := strings.Fields(line), policy.PolicySection
		if len(words) > 1 && words[0] == "quota" {
			words, section = words[1:], policy.QuotaSection
		}
		if len(words) == 0 {
			continue
		}
		e, err := entryOf(section, words)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		entries = append(entries, e)
	}
	set, err := policy.NewSet(entries)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// entryOf returns the entry of a scope and its fields.
func entryOf(section policy.Section, words []string) (policy.Entry, error) {
	scope, err := policy.ParseScope(words[0])
	if err != nil {
		return policy.Entry{}, err
	}
	settings := section.Zero()
	for _, word := range words[1:] {
		field, text, _ := strings.Cut(word, "=")
		one, err := section.ParseField(field, text)
		if err != nil {
			return policy.Entry{}, err
		}
		settings = policy.Overlay(settings, one)
	}
	return policy.Entry{Scope: scope, Settings: settings}, settings.Validate(scope)
}

// PerSecond is a limit of n messages a second, which holds for who has caught up, too.
func PerSecond(n int64) policy.Policy {
	return policy.Policy{MessageRate: policy.PerSecond(n), CaughtUp: policy.CaughtUp{Throttle: new(true)}}
}
