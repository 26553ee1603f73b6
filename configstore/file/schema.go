package file

import (
	"encoding/json"

	"github.com/dispatchthrottle/throttle/policy"
)

// Schema returns the JSON Schema of a file that [Parse] reads, for editors. It describes each
// field by itself: what a scope may set, and what depends on two fields, Parse alone checks.
func Schema() ([]byte, error) {
	text := func(description string) map[string]any {
		return map[string]any{"type": "string", "description": description}
	}
	item := func(section policy.Section, required ...string) map[string]any {
		schema := section.JSONSchema()
		if len(required) > 0 {
			schema["required"] = required
		}
		properties := schema["properties"].(map[string]any)
		properties["expires"] = map[string]any{
			"type": "string", "format": "date-time",
			"description": "Makes the entry temporary: it is in force until then.",
		}
		return schema
	}
	policies := item(policy.PolicySection, "scope")
	properties := policies["properties"].(map[string]any)
	properties["scope"] = text("cluster, tenant:NAME, tenant/namespace, " +
		"tenant/cluster/namespace, pattern:REGEX or the URL of a topic.")
	properties["subscription"] = text("A subscription of the topic: the entry is for it alone.")
	quotas := item(policy.QuotaSection, "scope")
	quotas["properties"].(map[string]any)["scope"] = text("tenant:NAME or tag:NAME.")
	list := func(items map[string]any) map[string]any {
		return map[string]any{"type": []string{"array", "null"}, "items": items}
	}
	settings := func(section policy.Section) map[string]any {
		return map[string]any{"anyOf": []any{item(section), list(item(section))}}
	}
	var anyOf []any
	for _, section := range policy.Sections() {
		anyOf = append(anyOf, map[string]any{"required": []string{section.String()}})
	}
	data, err := json.MarshalIndent(map[string]any{
		"$schema":              "https://json-schema.org/draft/2020-12/schema",
		"title":                "Policies and quotas",
		"type":                 "object",
		"additionalProperties": false,
		"required":             []string{"schema"},
		"anyOf":                anyOf,
		"properties": map[string]any{
			"schema":          map[string]any{"const": policy.Schema},
			"marker":          map[string]any{"description": "Of earlier versions: it has no effect."},
			"policies":        list(policies),
			"quotas":          list(quotas),
			"quotaSettings":   settings(policy.QuotaSettingsSection),
			"historySettings": settings(policy.HistorySettingsSection),
		},
	}, "", "  ")
	return append(data, '\n'), err
}
