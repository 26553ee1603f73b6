package policy_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
)

var update = flag.Bool("update", false, "write docs/reference/policy.md again")

// TestReferenceIsCurrent compares docs/reference/policy.md with the tables.
func TestReferenceIsCurrent(t *testing.T) {
	const name = "../docs/reference/policy.md"
	want := reference()
	if *update {
		require.NoError(t, os.WriteFile(name, []byte(want), 0o644))
	}
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.True(t, want == string(got), "stale: go test ./policy -run TestReferenceIsCurrent -update")
}

const introduction = `# Fields of policies and quotas

<!-- Made from policy/fields.go by: go test ./policy -run TestReferenceIsCurrent -update -->

Every field is optional, and the most specific scope that sets a field wins, field by field: cluster < namespace <
pattern < topic < subscription. A field of a group has a dot on the command line; in YAML and JSON the group is an
object:

    throttle-admin set kafka://public/default/orders messageRate=1000 ramp.from=100 ramp.over=1m

` + "```yaml" + `
schema: 2
policies:
  - scope: kafka://public/default/orders
    messageRate: 1000/s
    ramp: {from: 100/s, over: 1m}
    busy: {outcomes: [busy, timeout]}   # on the command line: busy.outcomes=busy,timeout
quotas:
  - scope: tag:reports
    total: 1MiB
quotaSettings:
  zones: [a, b]
historySettings:
  reasonRequired: true
` + "```" + `

The [JSON Schema](policies.schema.json) of such a file serves editors.
`

func reference() string {
	var b strings.Builder
	b.WriteString(introduction)
	for _, section := range policy.Sections() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", section, map[policy.Section]string{
			policy.PolicySection: "A policy says what is allowed in one scope: " +
				"`throttle-admin set SCOPE FIELD=VALUE...`",
			policy.QuotaSection: "A quota is what a tenant or a tag may cost: " +
				"`throttle-admin quota set ID FIELD=VALUE...`",
			policy.QuotaSettingsSection: "How the rates of a cluster's quotas are found: " +
				"`throttle-admin quota settings FIELD=VALUE...`",
			policy.HistorySettingsSection: "The settings of the history of changes: " +
				"`throttle-admin history settings FIELD=VALUE...`",
		}[section])
		for _, f := range section.Fields() {
			values := "Values: " + f.Want + "."
			if f.Default != "" {
				values += " Default: " + f.Default + "."
			}
			fmt.Fprintf(
				&b, "\n### %s\n\n%s\n%s\n", f.Name, fold(f.Help), fold(values+" Scopes: "+scopes(f)+"."),
			)
		}
	}
	return b.String()
}

func scopes(f policy.Field) string {
	all := []string{"cluster", "tenant", "namespace", "pattern", "topic", "subscription"}
	var names []string
	for _, k := range f.Scopes {
		names = append(names, k.String())
	}
	if len(names) == len(all) {
		return "any"
	}
	return strings.Join(names, ", ")
}

// fold breaks a text into lines.
func fold(text string) string {
	var b strings.Builder
	width := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case width == 0:
		case width+1+len(word) > 120:
			b.WriteByte('\n')
			width = 0
		default:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += len(word)
	}
	return b.String()
}
