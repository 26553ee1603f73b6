package file

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// Format returns a YAML file that Parse reads as these entries. Entries that could not be read are
// left out.
func Format(entries []policy.Entry) ([]byte, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "schema: %d\n", policy.Schema)
	for _, section := range policy.Sections() {
		items, err := itemsOf(section, entries)
		if err != nil {
			return nil, err
		}
		if len(items) == 0 && section != policy.PolicySection {
			continue
		}
		fmt.Fprintf(&out, "%s:", section)
		if len(items) == 0 {
			out.WriteString(" []")
		}
		out.WriteByte('\n')
		dash := "  - "
		if section == policy.QuotaSettingsSection && len(items) == 1 {
			dash = "  " // a mapping reads better than a list of one
		}
		for _, item := range items {
			if err := writeItem(&out, dash, item); err != nil {
				return nil, err
			}
		}
	}
	return out.Bytes(), nil
}

// writeItem writes an object after a dash, with its groups and lists in one line each.
func writeItem(out *bytes.Buffer, dash string, item json.RawMessage) error {
	fields, err := membersOf(item)
	for _, f := range fields {
		fmt.Fprintf(out, "%s%s: %s\n", dash, f.name, inline(f.name, f.value))
		dash = strings.Repeat(" ", len(dash))
	}
	return err
}

// A member is one of an object, which keeps their order.
type member struct {
	name  string
	value json.RawMessage
}

func membersOf(object json.RawMessage) (members []member, err error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	_, err = dec.Token() // {
	for err == nil && dec.More() {
		var name json.Token
		var m member
		if name, err = dec.Token(); err == nil {
			m.name = fmt.Sprint(name)
			err = dec.Decode(&m.value)
		}
		members = append(members, m)
	}
	return members, err
}

// plain is text to every reader of YAML, unless it is one of words, which some readers take for
// something else.
var (
	plain = regexp.MustCompile(`^[A-Za-z]([-\w./:]*[-\w./])?$`)
	words = regexp.MustCompile(`(?i)^(null|true|false|yes|no|on|off|y|n)$`)
)

// inline returns a value in one line of YAML. Names that are not plain stay as in JSON, which is
// YAML too. The rates, times and words of other fields need no quotes.
func inline(name string, value json.RawMessage) string {
	var text string
	var list []json.RawMessage
	switch {
	case json.Unmarshal(value, &text) == nil:
		isName := name == "scope" || name == "subscription" || name == ""
		if !isName || plain.MatchString(text) && !words.MatchString(text) {
			return text
		}
	case json.Unmarshal(value, &list) == nil:
		var items []string
		for _, item := range list {
			items = append(items, inline("", item))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case value[0] == '{':
		members, _ := membersOf(value)
		var items []string
		for _, m := range members {
			items = append(items, m.name+": "+inline(m.name, m.value))
		}
		return "{" + strings.Join(items, ", ") + "}"
	}
	return string(value)
}

// FormatJSON returns a JSON file that Parse reads as these entries, as Format does.
func FormatJSON(entries []policy.Entry) ([]byte, error) {
	out := struct {
		Schema        int               `json:"schema"`
		Policies      []json.RawMessage `json:"policies"`
		Quotas        []json.RawMessage `json:"quotas,omitempty"`
		QuotaSettings []json.RawMessage `json:"quotaSettings,omitempty"`
	}{Schema: policy.Schema}
	lists := []*[]json.RawMessage{&out.Policies, &out.Quotas, &out.QuotaSettings}
	for i, section := range policy.Sections() {
		items, err := itemsOf(section, entries)
		if err != nil {
			return nil, err
		}
		*lists[i] = items
	}
	data, err := json.MarshalIndent(out, "", "  ")
	return append(data, '\n'), err
}

// itemsOf returns the items of a section in order, as JSON; an empty list if there are none.
func itemsOf(section policy.Section, entries []policy.Entry) ([]json.RawMessage, error) {
	items := []json.RawMessage{}
	for _, e := range slices.SortedFunc(slices.Values(entries), policy.Entry.Compare) {
		if e.Err != nil || e.Section() != section {
			continue
		}
		head := struct {
			Scope        string    `json:"scope,omitempty"`
			Subscription string    `json:"subscription,omitempty"`
			Expires      time.Time `json:"expires,omitzero"`
		}{e.Scope.String(), e.Scope.Subscription, e.Expires}
		switch {
		case section == policy.QuotaSettingsSection: // its scope is the cluster
			head.Scope = ""
		case e.Scope.Kind == policy.SubscriptionKind:
			head.Scope = e.Scope.Topic.String()
		}
		first, err := json.Marshal(head)
		if err != nil {
			return nil, err
		}
		second, err := json.Marshal(e.Settings)
		if err != nil {
			return nil, err
		}
		items = append(items, joined(first, second))
	}
	return items, nil
}

// joined returns the JSON object with the members of two others.
func joined(a, b []byte) json.RawMessage {
	switch {
	case string(a) == "{}":
		return b
	case string(b) == "{}":
		return a
	}
	return slices.Concat(a[:len(a)-1], []byte(","), b[1:])
}
