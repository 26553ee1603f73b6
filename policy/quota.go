package policy

// A Quota is what the messages of one throttling id, a tenant or a tag, may cost together. Every
// field is optional; without a total there is no quota.
type Quota struct {
	Reserved *int64 // cost a second that the id always has, bytes
	Total    *int64 // cost a second that it never exceeds, bytes; 0 = nothing is dispatched
	Mode     Mode
}

// QuotaSettings say how the rates of all quotas of a cluster are found. Every field is optional.
type QuotaSettings struct {
	Mode        Mode // of the quotas that set none
	ShareBy     ShareBy
	Capacity    *int64   // cost a second that all backends bear together, bytes; 0 = unknown
	Zones       []string // that backends may report; none = any
	IgnoreZones *int64   // number of the worst zones that are ignored
}

// ShareBy is how the ids that load a saturated backend share what it bears.
type ShareBy string

// The ways to share a backend.
const (
	ShareByQuota   ShareBy = "quota"   // by their total quotas
	ShareByCurrent ShareBy = "current" // each slows down by the same factor
)

// MaxThroughput bounds a quota and the capacity, in bytes of cost a second.
const MaxThroughput = 1 << 53

// An EffectiveQuota is what quotas and their settings come to for one throttling id.
type EffectiveQuota struct {
	Reserved int64 // cost a second, bytes; no more than Total
	Total    int64 // cost a second, bytes; 0 = nothing is dispatched
	Shadow   bool  // its rate is computed and reported, and limits nothing
}

// Quota returns the quota of a throttling id, the scope of a tenant or a tag; ok is false if it
// has none.
func (s *Set) Quota(id Scope) (q EffectiveQuota, ok bool) {
	stored := s.quotas[id]
	if stored.Total == nil {
		return EffectiveQuota{}, false
	}
	q.Total = *stored.Total
	if stored.Reserved != nil {
		q.Reserved = min(*stored.Reserved, q.Total) // a temporary total may be below
	}
	mode := stored.Mode
	if mode == "" {
		mode = s.quotaSettings.Mode
	}
	q.Shadow = mode == Shadow
	return q, true
}

// Quotas returns all quotas, by their throttling ids.
func (s *Set) Quotas() map[Scope]EffectiveQuota {
	all := map[Scope]EffectiveQuota{}
	for id := range s.quotas {
		if q, ok := s.Quota(id); ok {
			all[id] = q
		}
	}
	return all
}

// QuotaSettings returns the cluster's settings for quotas, with defaults.
func (s *Set) QuotaSettings() QuotaSettings {
	settings := quotaSettingsTable.defaults
	quotaSettingsTable.overlay(&settings, &s.quotaSettings)
	return settings
}
