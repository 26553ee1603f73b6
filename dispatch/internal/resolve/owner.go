package resolve

import (
	"errors"

	"github.com/dispatchthrottle/throttle/policy"
)

// An Owner is what messages are charged to: a tenant group or a tag. The zero value is the topic's
// tenant.
type Owner struct{ TenantGroup, Tag string }

// ID is the owner's throttling id on a topic: its tenant group, else its tag if that has a quota,
// else the topic's tenant.
func (o Owner) ID(t policy.Topic, set *policy.Set) policy.Scope {
	if o.TenantGroup != "" {
		return policy.TenantScope(o.TenantGroup)
	}
	tag := policy.TagScope(o.Tag)
	if o.Tag != "" {
		if _, ok := set.Quota(tag); ok {
			return tag
		}
	}
	return policy.TenantScope(t.Tenant)
}

// String is tenant:NAME or tag:NAME; "" for the topic's tenant.
func (o Owner) String() string {
	switch {
	case o.TenantGroup != "":
		return policy.TenantScope(o.TenantGroup).String()
	case o.Tag != "":
		return policy.TagScope(o.Tag).String()
	}
	return ""
}

// Validate returns the faults of the names.
func (o Owner) Validate() error {
	var errs []error
	if o.TenantGroup != "" {
		errs = append(errs, policy.TenantScope(o.TenantGroup).Validate())
	}
	if o.Tag != "" {
		errs = append(errs, policy.TagScope(o.Tag).Validate())
	}
	return errors.Join(errs...)
}
