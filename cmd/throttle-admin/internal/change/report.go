package change

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// A View is a change of one field of one scope. An empty value is inherited.
type View struct {
	Scope   string    `json:"scope"`
	Section string    `json:"section,omitempty"` // as in files; empty for policies
	Field   string    `json:"field,omitempty"`   // empty for settings that cannot be read
	Before  string    `json:"before,omitempty"`
	After   string    `json:"after,omitempty"`
	Expires time.Time `json:"expires,omitzero"` // of a temporary After; of the history, as it was set
	Then    string    `json:"then,omitempty"`   // the value after Expires

	// Of the history, which has permanent and temporary values apart.
	Temporary     bool      `json:"temporary,omitempty"`    // Before and After are; "" is none
	BeforeExpires time.Time `json:"beforeExpires,omitzero"` // of a temporary Before, as set

	before, after string // in tables: with the time that is left, and "inherited"
}

// ofQuotas reports whether the change concerns what quotas reserve.
func (v View) ofQuotas() bool {
	switch v.Section {
	case policy.QuotaSection.String():
		return v.Field == "reserved" || v.Field == "total"
	case policy.QuotaSettingsSection.String():
		return v.Field == "capacity"
	}
	return false
}

// subject returns the scope as the commands take it: quota settings, and quotas after quota.
func (v View) subject() string {
	switch v.Section {
	case policy.QuotaSection.String():
		return "quota " + v.Scope
	case policy.QuotaSettingsSection.String():
		return "quota settings"
	case policy.HistorySettingsSection.String():
		return "history settings"
	}
	return v.Scope
}

// A Report is what a change has done or, in a dry run, would do.
type Report struct {
	DryRun   bool        `json:"dryRun,omitempty"`
	Replaces int64       `json:"replaces"`
	Revision int64       `json:"revision"`
	Changes  []View      `json:"changes"`
	Topics   []topicView `json:"topics,omitempty"` // of a dry run: what changes for known topics
}

// A value is a scope's value of one field.
type value struct {
	permanent, temporary string
	expires              time.Time // of temporary
}

// inForce returns the value that applies now.
func (v value) inForce() string {
	if v.temporary != "" {
		return v.temporary
	}
	return v.permanent
}

// describe returns the value for a table.
func (v value) describe(now time.Time) string {
	named := func(s string) string {
		if s == "" {
			return "inherited"
		}
		return s
	}
	if v.temporary == "" {
		return named(v.permanent)
	}
	left := output.Left(v.expires, now)
	return fmt.Sprintf("%s for %s, then %s", v.temporary, left, named(v.permanent))
}

// sectionOf returns the section of a key as a View has it.
func sectionOf(k configstore.Key) string {
	if k.Section == policy.PolicySection {
		return ""
	}
	return k.Section.String()
}

// valuesOf returns the values of all fields of all scopes, by the entries' permanent keys.
func valuesOf(entries []policy.Entry) map[configstore.Key]map[string]value {
	all := make(map[configstore.Key]map[string]value)
	for _, e := range entries {
		key := configstore.Key{Section: e.Section(), Scope: e.Scope}
		if all[key] == nil {
			all[key] = make(map[string]value)
		}
		if e.Err != nil {
			all[key][""] = value{permanent: "unreadable"}
			continue
		}
		for _, field := range policy.Fields(e.Settings) {
			v := all[key][field]
			if e.Temporary {
				v.temporary, v.expires = policy.Text(e.Settings, field), e.Expires
			} else {
				v.permanent = policy.Text(e.Settings, field)
			}
			all[key][field] = v
		}
	}
	return all
}

// Compare returns the differences between two lists of policies, field by field.
func Compare(from, to []policy.Entry, now time.Time) []View {
	views := []View{}
	before, after := valuesOf(from), valuesOf(to)
	keys := maps.Clone(before)
	maps.Copy(keys, after)
	ordered := slices.SortedFunc(maps.Keys(keys), func(a, b configstore.Key) int {
		return cmp.Or(cmp.Compare(a.Section, b.Section), a.Scope.Compare(b.Scope))
	})
	for _, key := range ordered {
		for _, f := range slices.Insert(key.Section.Fields(), 0, policy.Field{}) {
			field := f.Name // "" if the settings cannot be read
			b, a := before[key][field], after[key][field]
			if a == b {
				continue
			}
			v := View{
				Scope: key.Scope.String(), Section: sectionOf(key), Field: field,
				Before: b.inForce(), After: a.inForce(),
				before: b.describe(now), after: a.describe(now),
			}
			if a.temporary != "" {
				v.Expires, v.Then = a.expires, a.permanent
			}
			if field == "" {
				v.before, v.after = b.permanent, a.permanent
			}
			views = append(views, v)
		}
	}
	return views
}

func (r Report) table(w *strings.Builder) {
	if len(r.Changes) == 0 {
		fmt.Fprintf(w, "no changes at revision %d\n", r.Revision)
		return
	}
	WriteTable(w, r.Changes)
	if !r.DryRun {
		fmt.Fprintf(w, "revision %d replaces %d\n", r.Revision, r.Replaces)
		return
	}
	fmt.Fprintln(w)
	switch {
	case len(r.Topics) == 0 && slices.ContainsFunc(r.Changes, View.ofQuotas):
		fmt.Fprintln(w, "a quota affects all its subscriptions: throttle-admin quota status")
	case len(r.Topics) == 0:
		fmt.Fprintln(w, "no known topic is affected")
	default:
		var rows [][]string
		for _, t := range r.Topics {
			rows = append(rows, []string{
				t.Topic, t.Subscription, t.Field, output.Dash(t.Before), output.Dash(t.After),
			})
		}
		output.Table(w, []string{"TOPIC", "SUBSCRIPTION", "FIELD", "NOW", "AFTER"}, rows)
	}
	fmt.Fprintf(w, "\ndry run: nothing was stored; this would replace revision %d\n", r.Replaces)
}

// WriteTable writes changes as a table.
func WriteTable(w *strings.Builder, changes []View) {
	var rows [][]string
	for _, c := range changes {
		rows = append(rows, []string{
			c.subject(), output.Dash(c.Field), output.Dash(c.before), output.Dash(c.after),
		})
	}
	output.Table(w, []string{"SCOPE", "FIELD", "BEFORE", "AFTER"}, rows)
}
