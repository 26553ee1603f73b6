package policy

import (
	"cmp"
	"iter"
	"reflect"
	"strings"
	"time"
)

// RoundDuration returns how long everybody's batches together last.
func (p Policy) RoundDuration() time.Duration {
	if p.Round == 0 {
		return DefaultRound
	}
	return time.Duration(p.Round)
}

// IsPaused reports whether nothing may be dispatched.
func (p Policy) IsPaused() bool { return p.Paused != nil && *p.Paused }

// ThrottlesCaughtUp reports whether a subscription without a backlog is throttled, too.
func (p Policy) ThrottlesCaughtUp() bool { return p.ThrottleCaughtUp != nil && *p.ThrottleCaughtUp }

// CaughtUpThreshold returns the largest backlog, in messages, of a subscription that has caught up.
func (p Policy) CaughtUpThreshold() int64 { return or(p.CaughtUpBacklog, DefaultCaughtUpBacklog) }

// Outage returns what to do while the permit store is away.
func (p Policy) Outage() OnOutage {
	if p.OnOutage == "" {
		return OutageShare
	}
	return p.OnOutage
}

// IsShadow reports whether messages are only counted.
func (p Policy) IsShadow() bool { return p.Mode == Shadow }

// IsStrict reports whether messages are paced strictly.
func (p Policy) IsStrict() bool { return p.Sharing == Strict }

// IsSplit reports whether messages are split by the number of replicas.
func (p Policy) IsSplit() bool { return p.Sharing == Split }

// IsGrouped reports whether messages are divided over groups of workers.
func (p Policy) IsGrouped() bool { return p.Sharing == Groups }

// GroupNames returns the groups that messages are divided over.
func (p Policy) GroupNames() []string { return p.Groups.names() }

func (g Names) names() []string {
	if g == "" {
		return nil
	}
	return strings.Split(string(g), ",")
}

// KeptBack returns the part of its own that other groups leave to each group, 0..1.
func (p Policy) KeptBack() float64 { return or(p.KeepBack, DefaultKeepBack) }

// HeadCount returns how many replicas share a split limit; 0 = as many as they agree on.
func (p Policy) HeadCount() int64 { return or(p.Replicas, 0) }

// PoolTTLDuration returns for how long a replica of a limit that is split or divided counts that is silent.
func (p Policy) PoolTTLDuration() time.Duration {
	if p.PoolTTL == 0 {
		return DefaultPoolTTL
	}
	return time.Duration(p.PoolTTL)
}

// RampDuration returns how long a limit takes to rise to its rate; 0 = it has it at once.
func (p Policy) RampDuration() time.Duration {
	if p.Ramp == RampNone {
		return 0
	}
	return time.Duration(p.RampOver)
}

// RampTTLDuration returns after how long a silence a ramp begins again.
func (p Policy) RampTTLDuration() time.Duration {
	if p.RampTTL == 0 {
		return DefaultRampTTL
	}
	return time.Duration(p.RampTTL)
}

// ReservedAhead returns how many slots of a strict line may be allocated ahead.
func (p Policy) ReservedAhead() int64 { return or(p.MaxReserved, DefaultMaxReserved) }

// Queues reports whether those wait in a queue who find all slots of a strict line allocated.
func (p Policy) Queues() bool { return p.Wait == WaitQueue }

// ExpiryDuration returns how late a slot of a strict line may be used.
func (p Policy) ExpiryDuration() time.Duration {
	if p.PermitExpiry != 0 {
		return time.Duration(p.PermitExpiry)
	}
	period := time.Duration(float64(time.Second) / max(p.MessageRate.PerSec(), 1e-6))
	return min(max(period/100, MinPermitExpiry), 100*time.Millisecond)
}

// ShareWeight returns what a subscription weighs in the limits that it shares.
func (p Policy) ShareWeight() float64 { return or(p.Weight, DefaultWeight) }

// IsAggregate reports whether the rates are one budget over all topics of their scope.
func (p Policy) IsAggregate() bool { return p.Aggregate != nil && *p.Aggregate }

// InFlight returns the most messages that a replica may have handed out; 0 = any number.
func (p Policy) InFlight() int64 { return or(p.MaxInFlight, 0) }

// withoutBudget returns p without what is a budget of its own.
func (p Policy) withoutBudget() Policy {
	p.MessageRate, p.ByteRate, p.Burst, p.ByteBurst = Rate{}, Rate{}, nil, nil
	return p
}

// BusyRule returns the rule by which busy answers lower the subscription's limit.
func (p Policy) BusyRule() BusyMode {
	if p.Busy == "" {
		return BusyFraction
	}
	return p.Busy
}

// BusyOutcomeNames returns the outcomes that count as busy.
func (p Policy) BusyOutcomeNames() []string {
	return strings.Split(string(cmp.Or(p.BusyOutcomes, DefaultBusyOutcomes)), ",")
}

// BusyLeast returns the messages a second that busy answers leave.
func (p Policy) BusyLeast() float64 { return or(p.BusyMinRate, DefaultBusyMinRate) }

// BusyShare returns the share of busy answers that is nothing yet.
func (p Policy) BusyShare() float64 { return or(p.BusyTolerance, DefaultBusyTolerance) }

// RecoverRate returns how many times itself a limit grows by each second, by tchannel.
func (p Policy) RecoverRate() float64 { return or(p.BusyRecoverRate, DefaultBusyRecoverRate) }

// RecoverValue returns the messages a second that it grows by instead, 0 if it does not.
func (p Policy) RecoverValue() float64 { return or(p.BusyRecoverValue, 0) }

// MessageBurst returns the messages that an idle limit may save up.
func (p Policy) MessageBurst() int64 { return or(p.Burst, 0) }

// BytesBurst returns the bytes that an idle limit may save up.
func (p Policy) BytesBurst() int64 { return or(p.ByteBurst, 0) }

func or[T any](v *T, otherwise T) T {
	if v == nil {
		return otherwise
	}
	return *v
}

// Overlay returns p with every field that over sets replaced by over's.
func (p Policy) Overlay(over Policy) Policy {
	p.overlay(&over)
	return p
}

// overlay is spelt out because it is what Resolve spends its time on; a test compares it with the fields.
func (p *Policy) overlay(over *Policy) {
	if over.MessageRate.IsSet() {
		p.MessageRate = over.MessageRate
	}
	if over.ByteRate.IsSet() {
		p.ByteRate = over.ByteRate
	}
	if over.Burst != nil {
		p.Burst = over.Burst
	}
	if over.ByteBurst != nil {
		p.ByteBurst = over.ByteBurst
	}
	if over.Round != 0 {
		p.Round = over.Round
	}
	if over.Mode != "" {
		p.Mode = over.Mode
	}
	if over.Paused != nil {
		p.Paused = over.Paused
	}
	if over.ThrottleCaughtUp != nil {
		p.ThrottleCaughtUp = over.ThrottleCaughtUp
	}
	if over.CaughtUpBacklog != nil {
		p.CaughtUpBacklog = over.CaughtUpBacklog
	}
	if over.OnOutage != "" {
		p.OnOutage = over.OnOutage
	}
	if over.Sharing != "" {
		p.Sharing = over.Sharing
	}
	if over.MaxReserved != nil {
		p.MaxReserved = over.MaxReserved
	}
	if over.Wait != "" {
		p.Wait = over.Wait
	}
	if over.PermitExpiry != 0 {
		p.PermitExpiry = over.PermitExpiry
	}
	if over.Replicas != nil {
		p.Replicas = over.Replicas
	}
	if over.Groups != "" {
		p.Groups = over.Groups
	}
	if over.KeepBack != nil {
		p.KeepBack = over.KeepBack
	}
	if over.PoolTTL != 0 {
		p.PoolTTL = over.PoolTTL
	}
	if over.Ramp != "" {
		p.Ramp = over.Ramp
	}
	if over.RampFrom.IsSet() {
		p.RampFrom = over.RampFrom
	}
	if over.RampFromBytes.IsSet() {
		p.RampFromBytes = over.RampFromBytes
	}
	if over.RampOver != 0 {
		p.RampOver = over.RampOver
	}
	if over.RampTTL != 0 {
		p.RampTTL = over.RampTTL
	}
	if over.Weight != nil {
		p.Weight = over.Weight
	}
	if over.Reserved.IsSet() {
		p.Reserved = over.Reserved
	}
	if over.ReservedBytes.IsSet() {
		p.ReservedBytes = over.ReservedBytes
	}
	if over.Aggregate != nil {
		p.Aggregate = over.Aggregate
	}
	if over.Busy != "" {
		p.Busy = over.Busy
	}
	if over.BusyOutcomes != "" {
		p.BusyOutcomes = over.BusyOutcomes
	}
	if over.BusyMinRate != nil {
		p.BusyMinRate = over.BusyMinRate
	}
	if over.BusyTolerance != nil {
		p.BusyTolerance = over.BusyTolerance
	}
	if over.BusyRecoverRate != nil {
		p.BusyRecoverRate = over.BusyRecoverRate
	}
	if over.BusyRecoverValue != nil {
		p.BusyRecoverValue = over.BusyRecoverValue
	}
	if over.ReservedThroughput != nil {
		p.ReservedThroughput = over.ReservedThroughput
	}
	if over.TotalThroughput != nil {
		p.TotalThroughput = over.TotalThroughput
	}
	if over.QuotaMode != "" {
		p.QuotaMode = over.QuotaMode
	}
	if over.QuotaShareBy != "" {
		p.QuotaShareBy = over.QuotaShareBy
	}
	if over.Capacity != nil {
		p.Capacity = over.Capacity
	}
	if over.Zones != "" {
		p.Zones = over.Zones
	}
	if over.IgnoreZones != nil {
		p.IgnoreZones = over.IgnoreZones
	}
	if over.MaxInFlight != nil {
		p.MaxInFlight = over.MaxInFlight
	}
	if over.Priority != nil {
		p.Priority = over.Priority
	}
}

// Fields yields the JSON name of each field of a policy, in the order of the struct.
func Fields() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, name := range fieldNames {
			if !yield(name) {
				return
			}
		}
	}
}

var fieldNames, fieldIndex = func() (names []string, index map[string]int) {
	index = make(map[string]int)
	for i := range reflect.TypeFor[Policy]().NumField() {
		name, _, _ := strings.Cut(reflect.TypeFor[Policy]().Field(i).Tag.Get("json"), ",")
		names = append(names, name)
		index[name] = i
	}
	return names, index
}()

// Has reports whether p sets the field of this JSON name.
func (p Policy) Has(field string) bool {
	i, ok := fieldIndex[field]
	return ok && !reflect.ValueOf(p).Field(i).IsZero()
}

// Only returns a policy that has no more than the named field of p.
func (p Policy) Only(field string) Policy {
	var q Policy
	if i, ok := fieldIndex[field]; ok {
		reflect.ValueOf(&q).Elem().Field(i).Set(reflect.ValueOf(p).Field(i))
	}
	return q
}

// Without returns p with the named field unset.
func (p Policy) Without(field string) Policy {
	if i, ok := fieldIndex[field]; ok {
		reflect.ValueOf(&p).Elem().Field(i).SetZero()
	}
	return p
}

// IsZero reports whether p sets nothing.
func (p Policy) IsZero() bool { return p == Policy{} }

// Equal reports whether p and q set the same fields to the same values.
func (p Policy) Equal(q Policy) bool { return reflect.DeepEqual(p, q) }
