// Package quotastate reads throughput quotas and the rates that follow from them.
package quotastate

import (
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// A View is the quota of one throttling id, in bytes of cost a second.
type View struct {
	ID       string      `json:"id"`
	Reserved *int64      `json:"reserved,omitempty"` // nil without a quota
	Total    *int64      `json:"total,omitempty"`
	Mode     policy.Mode `json:"mode,omitempty"`
	Expires  time.Time   `json:"expires,omitzero"` // of a temporary total
}

// ViewOf returns the view of a quota.
func ViewOf(id policy.Scope, q policy.EffectiveQuota, s configstore.Snapshot) View {
	v := View{ID: id.String(), Reserved: &q.Reserved, Total: &q.Total, Mode: policy.Enforce}
	if q.Shadow {
		v.Mode = policy.Shadow
	}
	for _, e := range s.Entries {
		if e.Section() == policy.QuotaSection && e.Scope == id && e.Field == "total" {
			v.Expires = e.Expires
		}
	}
	return v
}

// ParseID parses a throttling id, tenant:NAME or tag:NAME.
func ParseID(text string) (policy.Scope, error) {
	if !strings.HasPrefix(text, "tenant:") && !strings.HasPrefix(text, "tag:") {
		return policy.Scope{}, cli.ArgError("id", text,
			"invalid throttling id: want tenant:NAME or tag:NAME")
	}
	return policy.ParseScope(text)
}

// ToPages rounds a quota up to whole pages, as FoundationDB does; nil stays nil.
func ToPages(n *int64) {
	if n != nil {
		*n = (*n + quota.Page - 1) / quota.Page * quota.Page
	}
}
