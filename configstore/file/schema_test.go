package file_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore/file"
	"github.com/dispatchthrottle/throttle/policy"
)

var update = flag.Bool("update", false, "write docs/reference/policies.schema.json again")

// TestSchemaIsCurrent compares docs/reference/policies.schema.json with the tables of package
// policy.
func TestSchemaIsCurrent(t *testing.T) {
	const name = "../../docs/reference/policies.schema.json"
	want, err := file.Schema()
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(name, want, 0o644))
	}
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.True(t, string(want) == string(got),
		"stale: go test ./configstore/file -run TestSchemaIsCurrent -update")
}

// TestSchemaIsStrict: editors that check the schema itself refuse a null, as in "required": null.
func TestSchemaIsStrict(t *testing.T) {
	data, err := file.Schema()
	require.NoError(t, err)
	assert.NotRegexp(t, `[:\[,]\s*null\b`, string(data))
}

// TestSchemaHasDefaults compares the defaults in the schema with those of the fields.
func TestSchemaHasDefaults(t *testing.T) {
	data, err := file.Schema()
	require.NoError(t, err)
	var root struct {
		Properties map[string]*jsonschema.Schema `json:"properties"`
	}
	require.NoError(t, json.Unmarshal(data, &root))
	for _, section := range policy.Sections() {
		list := root.Properties[section.String()]
		if len(list.AnyOf) > 0 {
			list = list.AnyOf[1]
		}
		for _, f := range section.Fields() {
			field := list.Items
			for name := range strings.SplitSeq(f.Name, ".") {
				field = field.Properties[name]
			}
			if f.Default == "" {
				assert.Empty(t, field.Default, f.Name)
				continue
			}
			var value any
			require.NoError(t, json.Unmarshal(field.Default, &value), f.Name)
			if items, ok := value.([]any); ok {
				value = items[0] // the only default that is a list has one item
			}
			assert.Equal(t, f.Default, fmt.Sprint(value), f.Name)
		}
	}
}

// validate returns what the JSON Schema says of a file.
func validate(t *testing.T, text string) error {
	t.Helper()
	data, err := file.Schema()
	require.NoError(t, err)
	var schema jsonschema.Schema
	require.NoError(t, json.Unmarshal(data, &schema))
	resolved, err := schema.Resolve(nil)
	require.NoError(t, err)
	var instance any
	require.NoError(t, yaml.Unmarshal([]byte(text), &instance), text)
	return resolved.Validate(instance)
}

// TestSchemaAgreesWithParse: what Parse takes is valid, and faults of single fields are not.
func TestSchemaAgreesWithParse(t *testing.T) {
	reference, err := os.ReadFile("../../docs/reference/policy.md")
	require.NoError(t, err)
	_, example, ok := strings.Cut(string(reference), "```yaml\n")
	require.True(t, ok)
	example, _, _ = strings.Cut(example, "```")
	for _, text := range []string{
		example,
		"schema: 2\npolicies: []\n",
		"schema: 2\npolicies:\n- {scope: cluster, messageRate: 1000, byteRate: 5 GiB/1m, burst: 5}\n",
		"schema: 2\npolicies:\n- {scope: cluster, round: 50ms, paused: false}\n",
		"schema: 2\npolicies:\n- {scope: kafka://a/b/c, subscription: d, messageRate: 1/h, weight: 0.5}\n",
		"schema: 2\npolicies:\n- {scope: a/b, ramp: {over: 1h30m}, expires: 2040-01-02T15:04:05Z}\n",
		"schema: 2\nquotas:\n- {scope: 'tenant:a', total: 4096, reserved: 1kB/s, mode: shadow}\n",
		"schema: 2\nquotaSettings: {capacity: 1MiB}\n", "schema: 2\nquotaSettings:\n- {ignoreZones: 0}\n",
	} {
		_, err := file.ParseAt("p", []byte(text), someTime)
		require.NoError(t, err, text)
		assert.NoError(t, validate(t, text), text)
	}
	for _, entry := range []string{
		"messageRate: 5x", "messageRate: -1", "byteRate: [1]", "burst: many", "burst: -1", "round: 5",
		"mode: off", "paused: maybe",
		"weight: 11", "sharing: strict", "sharing: {mode: fast}", "sharing: {groups: [a b]}",
		"busy: {outcomes: [ok]}",
		"busy: {outcomes: []}", "rampOver: 1m", "ramp: {until: 1m}", "total: 5",
	} {
		text := "schema: 2\npolicies:\n- {scope: cluster, " + entry + "}\n"
		_, err := file.ParseAt("p", []byte(text), someTime)
		require.Error(t, err, text)
		assert.Error(t, validate(t, text), text)
	}
	for _, text := range []string{
		"schema: 1\npolicies: []\n", "policies: []\n", "schema: 2\n", "schema: 2\nrules: []\n", "schema: 2\nquotas: [{total: 5}]\n",
		"schema: 2\nquotas: [{scope: 'tag:a', zones: [a]}]\n",
		"schema: 2\nquotaSettings: {zones: a b}\n",
	} {
		_, err := file.ParseAt("p", []byte(text), someTime)
		require.Error(t, err, text)
		assert.Error(t, validate(t, text), text)
	}
}

// TestSchemaTakesWhatFormatWrites: a sample of every field.
func TestSchemaTakesWhatFormatWrites(t *testing.T) {
	var fields policy.Settings = policy.Policy{}.WithDefaults()
	fields = policy.Without(fields, "aggregate", "priority")
	data, err := file.Format([]policy.Entry{
		{Scope: policy.ClusterScope(), Settings: fields},
		{Settings: policy.Single(policy.Policy{}).QuotaSettings()},
		{Settings: policy.Single(policy.Policy{}).HistorySettings()},
	})
	require.NoError(t, err)
	assert.NoError(t, validate(t, string(data)), "%s", data)
}
