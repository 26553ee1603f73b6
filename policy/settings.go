package policy

// A Section is a kind of stored object. Stores keep the sections apart, and a file has a list for
// each.
type Section uint8

// The sections.
const (
	PolicySection          Section = iota // the [Policy] of a scope
	QuotaSection                          // the [Quota] of a tenant or a tag
	QuotaSettingsSection                  // the [QuotaSettings] of the cluster
	HistorySettingsSection                // the [HistorySettings] of the cluster
)

// Sections returns all sections, in order.
func Sections() []Section {
	return []Section{PolicySection, QuotaSection, QuotaSettingsSection, HistorySettingsSection}
}

// String returns the section's name in files and stores.
func (s Section) String() string {
	return [...]string{"policies", "quotas", "quotaSettings", "historySettings"}[s]
}

// OfCluster reports whether the section has settings of the cluster, and so no other scope.
func (s Section) OfCluster() bool { return s >= QuotaSettingsSection }

// ParseSection returns the section of a name.
func ParseSection(name string) (s Section, ok bool) {
	for _, s := range Sections() {
		if s.String() == name {
			return s, true
		}
	}
	return 0, false
}

// Fields describes all fields of the section, in the order of the table.
func (s Section) Fields() []Field { return s.table().describe() }

// Zero returns settings of the section that set nothing.
func (s Section) Zero() Settings { return s.table().zero() }

// ParseField reads one field as it is written on the command line: sharing.mode and strict,
// busy.outcomes and busy,timeout. Its error is a *[FieldError]. Whether a scope may set the field
// is for Validate to say.
func (s Section) ParseField(field, text string) (Settings, error) {
	return s.table().parse(field, text)
}

func (s Section) table() anyTable {
	return [...]anyTable{policyTable, quotaTable, quotaSettingsTable, historySettingsTable}[s]
}

// Settings are what an [Entry] holds: a [Policy], a [Quota], [QuotaSettings] or [HistorySettings].
type Settings interface {
	// Section returns the section that the settings belong to.
	Section() Section

	// Validate returns every fault of the scope and of the settings for it, a *[FieldError] each.
	// Settings that set nothing are valid.
	Validate(scope Scope) error
}

// Section returns [PolicySection].
func (p Policy) Section() Section { return PolicySection }

// Section returns [QuotaSection].
func (q Quota) Section() Section { return QuotaSection }

// Section returns [QuotaSettingsSection].
func (s QuotaSettings) Section() Section { return QuotaSettingsSection }

// Section returns [HistorySettingsSection].
func (s HistorySettings) Section() Section { return HistorySettingsSection }

// Fields returns the names of the fields that are set, in the order of the table.
func Fields(s Settings) []string { return s.Section().table().fields(s) }

// IsZero reports whether settings set nothing. Nil sets nothing.
func IsZero(s Settings) bool { return s == nil || s.Section().table().isZero(s) }

// Text returns a field as [Section.ParseField] reads it, "" if it is not set.
func Text(s Settings, field string) string { return s.Section().table().text(s, field) }

// Only returns the settings with these fields and no others.
func Only[S Settings](s S, fields ...string) S {
	return s.Section().table().only(s, fields).(S)
}

// Without returns the settings with these fields unset.
func Without[S Settings](s S, fields ...string) S {
	return s.Section().table().without(s, fields).(S)
}

// Overlay returns under with every field that over sets replaced by over's. Both are of one
// section.
func Overlay[S Settings](under, over S) S {
	return under.Section().table().overlaid(under, over).(S)
}
