package file

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

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
		if section.OfCluster() && len(items) == 1 {
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
