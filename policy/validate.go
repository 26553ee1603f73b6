package policy

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"time"
)

// Bounds of fields.
const (
	MinRound     = 10 * time.Millisecond
	MaxRound     = 10 * time.Second
	MaxBurst     = MaxMessageRate * 3600 // messages: an hour at the highest rate
	MaxByteBurst = MaxByteRate * 3600    // bytes: likewise
	MaxBacklog   = 1_000_000_000_000_000 // messages
	MaxPriority  = 1_000_000             // either side of 0
	MostReserved = 1_000_000             // slots allocated ahead
	MinWeight    = 0.1                   // so that no weight is over 100 times another
	MaxWeight    = 10.0
)

// Bounds of PermitExpiry: a timer is no more precise than the lower one.
const (
	MinPermitExpiry = 2 * time.Millisecond
	MaxPermitExpiry = time.Minute
)

// Bounds of Replicas and PoolTTL.
const (
	MostReplicas = 1_000_000
	MinPoolTTL   = 500 * time.Millisecond
	MaxPoolTTL   = 5 * time.Minute
)

// Bounds of RampOver and RampTTL: a ramp has steps of a second, and permit stores keep a silent one for an hour.
const (
	MinRamp    = time.Second
	MaxRamp    = 24 * time.Hour
	MaxRampTTL = time.Hour
)

// MostGroups bounds Groups.
const MostGroups = 100

var groupName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`)

// aggregateFields are what a budget over many topics has.
var aggregateFields = map[string]bool{
	"messageRate": true, "byteRate": true, "burst": true, "byteBurst": true, "aggregate": true, "round": true, "onOutage": true,
	"sharing": true, "maxReserved": true, "wait": true, "permitExpiry": true, "replicas": true, "poolTTL": true, "groups": true, "keepBack": true,
	"ramp": true, "rampFrom": true, "rampFromBytes": true, "rampOver": true, "rampTTL": true,
}

// Validate returns every fault of the scope and of the policy for it, a *[FieldError] each.
// A policy that sets nothing is valid.
func (p Policy) Validate(scope Scope) error {
	var errs []error
	fault := func(field string, value any, reason string) {
		errs = append(errs, &FieldError{field, fmt.Sprint(value), reason})
	}
	bounded := func(field string, v *int64, most int64) {
		if v != nil && (*v < 0 || *v > most) {
			fault(field, *v, fmt.Sprintf("is outside 0..%d", most))
		}
	}
	errs = append(errs, scope.Validate())
	if err := p.MessageRate.check(MaxMessageRate); err != nil {
		fault("messageRate", p.MessageRate, err.Error())
	}
	if err := p.ByteRate.check(MaxByteRate); err != nil {
		fault("byteRate", p.ByteRate, err.Error())
	}
	bounded("burst", p.Burst, MaxBurst)
	bounded("byteBurst", p.ByteBurst, MaxByteBurst)
	if err := p.Reserved.check(MaxMessageRate); err != nil {
		fault("reserved", p.Reserved, err.Error())
	}
	if err := p.ReservedBytes.check(MaxByteRate); err != nil {
		fault("reservedBytes", p.ReservedBytes, err.Error())
	}
	if p.Weight != nil && !(*p.Weight >= MinWeight && *p.Weight <= MaxWeight) {
		fault("weight", *p.Weight, fmt.Sprintf("is outside %v..%v: only the ratio of weights counts, and none may be over 100 times another", MinWeight, MaxWeight))
	}
	if p.Sharing != "" && p.Sharing != Fair && p.Sharing != Strict && p.Sharing != Split && p.Sharing != Groups {
		fault("sharing", p.Sharing, "is unknown: use allocated, strict, split or groups")
	}
	if (p.IsStrict() || p.IsSplit() || p.IsGrouped()) && or(p.Burst, 0) > 0 {
		fault("burst", *p.Burst, "is not for "+string(p.Sharing)+" sharing, which saves nothing up")
	}
	bounded("replicas", p.Replicas, MostReplicas)
	if d := time.Duration(p.PoolTTL); d != 0 && (d < MinPoolTTL || d > MaxPoolTTL) {
		fault("poolTTL", p.PoolTTL, fmt.Sprintf("is outside %s..%s", Duration(MinPoolTTL), Duration(MaxPoolTTL)))
	}
	p.checkGroups(fault)
	p.checkRamp(fault)
	p.checkBusy(fault)
	p.checkQuota(fault)
	bounded("maxReserved", p.MaxReserved, MostReserved)
	if p.Wait != "" && p.Wait != WaitBackoff && p.Wait != WaitQueue {
		fault("wait", p.Wait, "is unknown: use backoff or queue")
	}
	if d := time.Duration(p.PermitExpiry); d != 0 && (d < MinPermitExpiry || d > MaxPermitExpiry) {
		fault("permitExpiry", p.PermitExpiry, fmt.Sprintf("is outside %s..%s: timers are not more precise", Duration(MinPermitExpiry), Duration(MaxPermitExpiry)))
	}
	bounded("maxInFlight", p.MaxInFlight, MaxBacklog)
	bounded("caughtUpBacklog", p.CaughtUpBacklog, MaxBacklog)
	if r := time.Duration(p.Round); r != 0 && (r < MinRound || r > MaxRound) {
		fault("round", p.Round, fmt.Sprintf("is outside %s..%s", MinRound, MaxRound))
	}
	if p.Mode != "" && p.Mode != Enforce && p.Mode != Shadow {
		fault("mode", p.Mode, "is unknown: use enforce or shadow")
	}
	if l := p.OnOutage; l != "" && l != OutageShare && l != OutageStop && l != OutageOpen {
		fault("onOutage", l, "is unknown: use share, stop or open")
	}
	misplaced := func(field, reason string) {
		fault(field, reflect.Indirect(reflect.ValueOf(p).Field(fieldIndex[field])), reason)
	}
	for _, field := range fieldNames {
		if kinds := quotaFields[field]; kinds != nil && p.Has(field) && !slices.Contains(kinds, scope.Kind) {
			misplaced(field, "is not for a "+scope.Kind.String()+": set it for "+quotaPlaces[kinds[0]])
		} else if kinds == nil && p.Has(field) && scope.Kind == TagKind {
			misplaced(field, "is not for a tag, whose scope holds its quota: set reservedThroughput and totalThroughput")
		}
	}
	switch scope.Kind {
	case ClusterKind, NamespaceKind, TagKind:
	case TenantKind:
		if !or(p.Aggregate, true) {
			fault("aggregate", false, "is what a tenant's rates always are: leave it out")
		}
		for _, field := range fieldNames {
			if p.Has(field) && !aggregateFields[field] && quotaFields[field] == nil {
				misplaced(field, "is not for a tenant, whose scope holds one budget over all its topics: set it for its namespaces")
			}
		}
	default:
		if p.Aggregate != nil {
			fault("aggregate", *p.Aggregate, "is for the cluster, a namespace or a tenant, not for a "+scope.Kind.String())
		}
	}
	if p.Priority != nil {
		if scope.Kind != PatternKind {
			fault("priority", *p.Priority, "orders patterns only: leave it out for a "+scope.Kind.String())
		} else if *p.Priority < -MaxPriority || *p.Priority > MaxPriority {
			fault("priority", *p.Priority, fmt.Sprintf("is outside %d..%d", -MaxPriority, MaxPriority))
		}
	}
	return errors.Join(errs...)
}

func (p Policy) checkBusy(fault func(field string, value any, reason string)) {
	if b := p.Busy; b != "" && b != BusyFraction && b != BusyTChannel && b != BusyNone {
		fault("busy", b, "is unknown: use fraction, tchannel or none")
	}
	seen := map[string]int{}
	for _, name := range p.BusyOutcomeNames() { // each fault of a name once
		seen[name]++
		switch known := name == OutcomeBusy || name == OutcomeFailed || name == OutcomeTimeout; {
		case !known && seen[name] == 1:
			fault("busyOutcomes", p.BusyOutcomes, fmt.Sprintf("has the outcome %q, which is unknown: use busy, failed and timeout, as in busy,timeout", name))
		case known && seen[name] == 2:
			fault("busyOutcomes", p.BusyOutcomes, "has "+name+" twice: keep one of them")
		}
	}
	for _, f := range []struct {
		name        string
		value       *float64
		least, most float64
	}{
		{"busyMinRate", p.BusyMinRate, 0.01, 1000}, {"busyTolerance", p.BusyTolerance, 0, 0.5},
		{"busyRecoverRate", p.BusyRecoverRate, 0.01, 100}, {"busyRecoverValue", p.BusyRecoverValue, 0, MaxMessageRate},
	} {
		if f.value != nil && !(*f.value >= f.least && *f.value <= f.most) { // NaN is neither
			fault(f.name, *f.value, fmt.Sprintf("is outside %v..%v", f.least, f.most))
		}
	}
}

func (p Policy) checkRamp(fault func(field string, value any, reason string)) {
	if m := p.Ramp; m != "" && m != RampScheduled && m != RampRelaxed && m != RampNone {
		fault("ramp", m, "is unknown: use scheduled, relaxed or none")
	}
	from := func(field string, from, rate Rate, most int64) {
		switch err := from.check(most); {
		case !from.IsSet():
		case err != nil:
			fault(field, from, err.Error())
		case !from.Limited():
			fault(field, from, "is no rate to begin with: leave it out for the smallest step")
		case rate.Limited() && from.PerSec() > rate.PerSec():
			fault(field, from, "is above "+rate.String()+", which the ramp is to rise to: lower it, or unset it with "+field+"=")
		}
	}
	from("rampFrom", p.RampFrom, p.MessageRate, MaxMessageRate)
	from("rampFromBytes", p.RampFromBytes, p.ByteRate, MaxByteRate)
	within := func(field string, d Duration, least, most time.Duration) {
		if d != 0 && (time.Duration(d) < least || time.Duration(d) > most) {
			fault(field, d, fmt.Sprintf("is outside %s..%s", Duration(least), Duration(most)))
		}
	}
	within("rampOver", p.RampOver, MinRamp, MaxRamp)
	within("rampTTL", p.RampTTL, MinRamp, MaxRampTTL)
}

func (p Policy) checkGroups(fault func(field string, value any, reason string)) {
	checkNames(fault, "groups", p.Groups)
	if p.KeepBack != nil && !(*p.KeepBack >= 0 && *p.KeepBack <= 1) {
		fault("keepBack", *p.KeepBack, "is outside 0..1")
	}
}

// checkNames checks a list of names.
func checkNames(fault func(field string, value any, reason string), field string, list Names) {
	names := list.names()
	seen := map[string]int{}
	for _, name := range names { // each fault of a name once
		seen[name]++
		switch valid := groupName.MatchString(name); {
		case !valid && seen[name] == 1:
			fault(field, list, fmt.Sprintf("has the name %q, which nobody can be in: use letters, digits, '.', '_' and '-', with commas between names", name))
		case valid && seen[name] == 2:
			fault(field, list, "has "+name+" twice: keep one of them")
		}
	}
	if len(names) > MostGroups {
		fault(field, list, fmt.Sprintf("are %d, of %d at most", len(names), MostGroups))
	}
}
