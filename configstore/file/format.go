package file

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// FormatJSON returns a JSON file that Parse reads as these entries, as Format does.
func FormatJSON(entries []policy.Entry) ([]byte, error) {
	out := struct {
		Schema          int               `json:"schema"`
		Policies        []json.RawMessage `json:"policies"`
		Quotas          []json.RawMessage `json:"quotas,omitempty"`
		QuotaSettings   []json.RawMessage `json:"quotaSettings,omitempty"`
		HistorySettings []json.RawMessage `json:"historySettings,omitempty"`
	}{Schema: policy.Schema}
	lists := []*[]json.RawMessage{&out.Policies, &out.Quotas, &out.QuotaSettings, &out.HistorySettings}
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
		case section.OfCluster():
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
