package policy

import (
	"errors"
	"fmt"
	"time"
)

// Validate returns every fault of the scope and of the policy for it, a *[FieldError] each. A
// policy that sets nothing is valid.
func (p Policy) Validate(scope Scope) error {
	errs := append([]error{scope.Validate()}, policyTable.validate(&p, scope)...)
	if p.Burst != nil && *p.Burst > 0 && p.Sharing.Mode != "" && p.Sharing.Mode != Fair {
		errs = append(errs, &FieldError{"burst", fmt.Sprint(*p.Burst), fmt.Sprintf(
			"not allowed with sharing.mode %s, which saves nothing up: want 0", p.Sharing.Mode)})
	}
	if scope.Kind == TenantKind && p.Aggregate != nil && !*p.Aggregate {
		errs = append(errs, &FieldError{"aggregate", "false",
			"not allowed for a tenant, whose limits are always aggregate: leave it out"})
	}
	return errors.Join(append(errs,
		validateStart("ramp.from", p.Ramp.From, p.MessageRate),
		validateStart("ramp.fromBytes", p.Ramp.FromBytes, p.ByteRate))...)
}

// validateStart checks the rate at which a ramp starts.
func validateStart(field string, from, rate Rate) error {
	switch {
	case from != Rate{} && from.Permits == 0:
		return &FieldError{field, from.String(), "out of range: want above 0, or leave it out"}
	case from.Limited() && rate.Limited() && from.PerSec() > rate.PerSec():
		reason := fmt.Sprintf("above %s, the rate that the ramp rises to: want at most that, "+
			"or %s= to unset it", rate, field)
		return &FieldError{field, from.String(), reason}
	}
	return nil
}

// Validate returns every fault of the throttling id and of its quota, a *[FieldError] each.
func (q Quota) Validate(id Scope) error {
	errs := append([]error{id.Validate()}, quotaTable.validate(&q, id)...)
	if q.Reserved != nil && *q.Reserved > 0 {
		value := fmt.Sprint(*q.Reserved)
		switch {
		case q.Total == nil:
			errs = append(errs,
				&FieldError{"reserved", value, "total is missing: set both at once"})
		case *q.Reserved > *q.Total:
			errs = append(errs, &FieldError{"reserved", value, fmt.Sprintf(
				"above total, %d: lower it, or set both at once", *q.Total)})
		}
	}
	return errors.Join(errs...)
}

// Validate returns every fault of the settings, a *[FieldError] each; their scope is the cluster.
func (s QuotaSettings) Validate(scope Scope) error {
	errs := append([]error{scope.Validate()}, quotaSettingsTable.validate(&s, scope)...)
	return errors.Join(errs...)
}

// Validate returns every fault of the settings, a *[FieldError] each; their scope is the cluster.
func (s HistorySettings) Validate(scope Scope) error {
	errs := append([]error{scope.Validate()}, historySettingsTable.validate(&s, scope)...)
	return errors.Join(errs...)
}

// minExpiry is the shortest permitExpiry: timers are not more precise.
const minExpiry = 2 * time.Millisecond

// defaultExpiry is how late a slot of a strict limit may be used, unless the policy says so: a
// hundredth of the period.
func defaultExpiry(r Rate) Duration {
	period := time.Duration(float64(time.Second) / max(r.PerSec(), 1e-6))
	return Duration(min(max(period/100, minExpiry), 100*time.Millisecond))
}
