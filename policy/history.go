package policy

// HistorySettings say what the history of changes to policies asks of them. Every field is
// optional. Replicas have no use for them.
type HistorySettings struct {
	ReasonRequired *bool // a change without a reason is refused
}

// HistorySettings returns the settings of the history, with defaults.
func (s *Set) HistorySettings() HistorySettings {
	settings := historySettingsTable.defaults
	historySettingsTable.overlay(&settings, &s.historySettings)
	return settings
}
