package policy

import (
	"errors"
	"strings"
)

// setCommands are the commands whose help lists the fields of each section.
var setCommands = [...]string{
	PolicySection: "throttle-admin set", QuotaSection: "throttle-admin quota set",
	QuotaSettingsSection:   "throttle-admin quota settings",
	HistorySettingsSection: "throttle-admin history settings",
}

// unknown returns the reason why a field has no row; text is its value.
func (t *table[T]) unknown(field, text string) error {
	if name := t.ofGroup(field, text); name != "" {
		return errors.New("group of fields: want one of them, such as " + name)
	}
	if name := t.near(field); name != "" {
		return errors.New("unknown field: want " + name)
	}
	return errors.New("unknown field: see " + setCommands[t.defaults.Section()] + " --help")
}

// ofGroup returns the first field of a group that takes the value or, if none does, the first one;
// "" if there is no such group.
func (t *table[T]) ofGroup(group, text string) (first string) {
	for i := range t.rows {
		r := &t.rows[i]
		if !strings.HasPrefix(r.name, group+".") {
			continue
		}
		if r.value.read(new(T), text) == nil {
			return r.name
		}
		if first == "" {
			first = r.name
		}
	}
	return first
}

// near returns the field that a wrong name seems to mean: the same but for dots and case, the
// only one that ends with the name, or one with a letter or two that differ. "" means none.
func (t *table[T]) near(wrong string) string {
	if len(wrong) > 40 { // longer than any field
		return ""
	}
	bare := func(name string) string { return strings.ToLower(strings.ReplaceAll(name, ".", "")) }
	name := bare(wrong)
	var inGroups []string
	nearest, allowed := "", 1+len(name)/5 // the most letters that may differ
	for _, r := range t.rows {
		if bare(r.name) == name {
			return r.name
		}
		if _, field, ok := strings.Cut(r.name, "."); ok && bare(field) == name {
			inGroups = append(inGroups, r.name)
		}
		if d := distance(bare(r.name), name); d <= allowed && (nearest == "" || d < allowed) {
			nearest, allowed = r.name, d
		}
	}
	if len(inGroups) == 1 {
		return inGroups[0]
	}
	return nearest
}

// distance returns how many letters have to be added, removed or replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // from the letters of a so far to each start of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0]++
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
