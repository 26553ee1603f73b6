package policy

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// A Quota is what those who share a throttling id may cost together: reserved they always have, total they never exceed.
type Quota struct {
	Reserved int64 // cost a second, bytes; no more than Total
	Total    int64 // cost a second, bytes; 0 = nothing may go
	Shadow   bool  // its rate is computed and reported, and limits nothing
}

// A Ratekeeping is how rates are found of quotas, for all of a cluster. The zero value is no default: see [Set.Ratekeeping].
type Ratekeeping struct {
	ShareBy     ShareBy
	IgnoreZones int      // the worst zones, whose trouble is their own
	Zones       []string // that backends may report; nil: any
	Capacity    int64    // cost a second that all backends bear together, bytes; 0 = not known
}

// Bounds of quotas.
const (
	MaxThroughput   = 1 << 53 // cost a second, bytes
	MostIgnoreZones = 100
)

// quotaFields are those about quotas, and the kinds of scopes that have them.
var quotaFields = map[string][]Kind{
	"reservedThroughput": {TagKind, TenantKind},
	"totalThroughput":    {TagKind, TenantKind},
	"quotaMode":          {ClusterKind, TagKind, TenantKind},
	"quotaShareBy":       {ClusterKind},
	"capacity":           {ClusterKind},
	"zones":              {ClusterKind},
	"ignoreZones":        {ClusterKind},
}

var quotaPlaces = map[Kind]string{TagKind: "tenant:NAME or tag:NAME", ClusterKind: "the cluster"}

// ParseThroughput reads bytes of cost a second, as people write them: 409600, 1MiB, 400kB/s; parts of a byte are rounded up. Its error is a
// *[FieldError] of the field "throughput".
func ParseThroughput(s string) (int64, error) {
	r, err := ParseByteRate(s)
	if fault, ok := errors.AsType[*FieldError](err); ok {
		reason, _, _ := strings.Cut(fault.Reason, ":") // what else it says is of rates, of which 0 is none
		return 0, &FieldError{"throughput", s, reason + ": write bytes a second, such as 409600 or 1MiB"}
	}
	return int64(math.Ceil(r.PerSec())), nil
}

func (p Policy) checkQuota(fault func(field string, value any, reason string)) {
	for _, f := range []struct {
		name  string
		value *int64
		most  int64
	}{
		{"reservedThroughput", p.ReservedThroughput, MaxThroughput}, {"totalThroughput", p.TotalThroughput, MaxThroughput},
		{"capacity", p.Capacity, MaxThroughput}, {"ignoreZones", p.IgnoreZones, MostIgnoreZones},
	} {
		if f.value != nil && (*f.value < 0 || *f.value > f.most) {
			fault(f.name, *f.value, fmt.Sprintf("is outside 0..%d", f.most))
		}
	}
	switch r, t := p.ReservedThroughput, p.TotalThroughput; {
	case r == nil || *r == 0:
	case t == nil:
		fault("reservedThroughput", *r, "has no totalThroughput beside it: set both at once")
	case *r > *t:
		fault("reservedThroughput", *r, fmt.Sprintf("is above totalThroughput, %d: lower it, or set both at once", *t))
	}
	if m := p.QuotaMode; m != "" && m != Enforce && m != Shadow {
		fault("quotaMode", m, "is unknown: use enforce or shadow")
	}
	if b := p.QuotaShareBy; b != "" && b != ShareByQuota && b != ShareByCurrent {
		fault("quotaShareBy", b, "is unknown: use quota or current")
	}
	checkNames(fault, "zones", p.Zones)
}

// withoutQuotas returns p without what is about quotas, which no topic inherits.
func (p Policy) withoutQuotas() Policy {
	p.ReservedThroughput, p.TotalThroughput, p.Capacity, p.IgnoreZones = nil, nil, nil, nil
	p.QuotaMode, p.QuotaShareBy, p.Zones = "", "", ""
	return p
}

// Quota returns the quota of a throttling id, which is a tenant's or a tag's scope; ok is false if it has none.
func (s *Set) Quota(id Scope) (q Quota, ok bool) {
	l := s.tenants[id.Tenant]
	if id.Kind == TagKind {
		l = s.tags[id.Tag]
	}
	if l == nil || l.policy.TotalThroughput == nil {
		return Quota{}, false
	}
	q.Total = *l.policy.TotalThroughput
	q.Reserved = min(or(l.policy.ReservedThroughput, 0), q.Total) // a temporary total may be below
	mode := l.policy.QuotaMode
	if mode == "" && s.cluster != nil {
		mode = s.cluster.policy.QuotaMode
	}
	q.Shadow = mode == Shadow
	return q, true
}

// Quotas returns all quotas, by their throttling ids.
func (s *Set) Quotas() map[Scope]Quota {
	all := map[Scope]Quota{}
	for _, layers := range []map[string]*layer{s.tenants, s.tags} {
		for _, l := range layers {
			if q, ok := s.Quota(l.scope); ok {
				all[l.scope] = q
			}
		}
	}
	return all
}

// Ratekeeping returns how rates are found of the quotas.
func (s *Set) Ratekeeping() Ratekeeping {
	var p Policy
	if s.cluster != nil {
		p = s.cluster.policy
	}
	k := Ratekeeping{ShareBy: p.QuotaShareBy, IgnoreZones: int(or(p.IgnoreZones, DefaultIgnoreZones)), Capacity: or(p.Capacity, 0), Zones: p.Zones.names()}
	if k.ShareBy == "" {
		k.ShareBy = ShareByQuota
	}
	return k
}
