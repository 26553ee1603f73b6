// Package quotastate finds how throughput quotas stand.
package quotastate

import (
	"context"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// A View is the quota of one throttling id.
type View struct {
	ID       string      `json:"id"`
	Reserved *int64      `json:"reserved_throughput,omitempty"` // bytes of cost a second; none: no quota
	Total    *int64      `json:"total_throughput,omitempty"`
	Mode     policy.Mode `json:"mode,omitempty"`
	Expires  time.Time   `json:"expires,omitzero"` // of a temporary total
}

// ViewOf returns how a quota is shown.
func ViewOf(id policy.Scope, q policy.Quota, s configstore.Snapshot) View {
	v := View{ID: id.String(), Reserved: &q.Reserved, Total: &q.Total, Mode: policy.Enforce}
	if q.Shadow {
		v.Mode = policy.Shadow
	}
	for _, e := range s.Entries {
		if e.Scope == id && e.Temporary && e.Policy.TotalThroughput != nil {
			v.Expires = e.Expires
		}
	}
	return v
}

// ParseID reads tenant:NAME or tag:NAME.
func ParseID(text string) (policy.Scope, error) {
	if !strings.HasPrefix(text, "tenant:") && !strings.HasPrefix(text, "tag:") {
		return policy.Scope{}, &policy.FieldError{Field: "id", Value: text, Reason: "is no throttling id: write tenant:NAME or tag:NAME"}
	}
	return policy.ParseScope(text)
}

// ToPages rounds a quota up to pages, as FoundationDB does when one is set; nil stays nil.
func ToPages(n *int64) {
	if n != nil {
		*n = (*n + quota.Page - 1) / quota.Page * quota.Page
	}
}

// With calls f with the policies as they are now.
func With(ctx context.Context, a *cli.App, f func(configstore.Snapshot, *policy.Set) error) error {
	return a.WithStore(ctx, func(ctx context.Context, store configstore.Store) error {
		s, err := a.List(ctx, store)
		if err != nil {
			return err
		}
		set, _ := policy.NewSet(s.Entries) // is usable without what is wrong
		return f(s, set)
	})
}
