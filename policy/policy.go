package policy

import "time"

// A Policy says what is allowed in one scope. Every field is optional: the zero
// value of a field means "not set here", and the scope inherits it. A Policy is a
// plain value; it is never changed once it has been handed to somebody.
type Policy struct {
	MessageRate Rate   `json:"messageRate,omitzero"` // messages per period; 0 = not throttled
	ByteRate    Rate   `json:"byteRate,omitzero"`    // bytes per period; 0 = not throttled
	Burst       *int64 `json:"burst,omitempty"`      // messages that an idle limit may save up; default 0
	ByteBurst   *int64 `json:"byteBurst,omitempty"`  // the same in bytes; default 0

	Round              Duration `json:"round,omitzero"`               // how long everybody's batches together last; default 100ms, 10ms..10s
	Mode               Mode     `json:"mode,omitempty"`               // enforce (default) or shadow
	Paused             *bool    `json:"paused,omitempty"`             // true: nothing is dispatched
	ThrottleCaughtUp   *bool    `json:"throttleCaughtUp,omitempty"`   // true: the caught-up are throttled, too; default false
	CaughtUpBacklog    *int64   `json:"caughtUpBacklog,omitempty"`    // messages; default 100
	OnOutage           OnOutage `json:"onOutage,omitempty"`           // share (default), stop or open
	Sharing            Sharing  `json:"sharing,omitempty"`            // of messages: allocated (default), strict, split or groups
	MaxReserved        *int64   `json:"maxReserved,omitempty"`        // strict: slots allocated ahead, in all; default 64; 0 = who finds none free backs off
	Wait               WaitMode `json:"wait,omitempty"`               // strict: who finds all slots allocated backs off (default), or waits in a queue
	PermitExpiry       Duration `json:"permitExpiry,omitzero"`        // strict: how late a slot may be used; default a hundredth of the period, 2ms..100ms
	Replicas           *int64   `json:"replicas,omitempty"`           // split: how many there are; 0 (default) = they agree on it through the permit store
	Groups             Names    `json:"groups,omitempty"`             // groups: their names, as in "eu,us": each gets the same part of a period's messages
	KeepBack           *float64 `json:"keepBack,omitempty"`           // groups: the part of its own that other groups leave to each; default 0.2, 0..1
	PoolTTL            Duration `json:"poolTTL,omitzero"`             // split, groups: a replica silent for that long does not count; default 5s, 500ms..5m
	Ramp               RampMode `json:"ramp,omitempty"`               // how rates rise from rampFrom, where rampOver is set: scheduled (default), relaxed or none
	RampFrom           Rate     `json:"rampFrom,omitzero"`            // messages per period to begin with; default the rate divided by the seconds of rampOver
	RampFromBytes      Rate     `json:"rampFromBytes,omitzero"`       // the same in bytes
	RampOver           Duration `json:"rampOver,omitzero"`            // how long it takes from there to the rate, in steps of a second; default no ramp, 1s..24h
	RampTTL            Duration `json:"rampTTL,omitzero"`             // silence after which a ramp begins again; default 3m, 1s..1h
	Weight             *float64 `json:"weight,omitempty"`             // of a subscription in the limits that it shares; default 1, 0.1..10
	Reserved           Rate     `json:"reserved,omitzero"`            // messages that a subscription gets before the rest is shared; default none
	ReservedBytes      Rate     `json:"reservedBytes,omitzero"`       // the same in bytes
	Aggregate          *bool    `json:"aggregate,omitempty"`          // true: the rates are one budget over all topics of the scope; default false
	Busy               BusyMode `json:"busy,omitempty"`               // how busy answers that handlers report lower a subscription's own limit: fraction (default), tchannel or none
	BusyOutcomes       Outcomes `json:"busyOutcomes,omitempty"`       // which outcomes count as busy, as in "busy,timeout": of busy (default), failed and timeout
	BusyMinRate        *float64 `json:"busyMinRate,omitempty"`        // messages a second that are let through all the same; default 1, 0.01..1000
	BusyTolerance      *float64 `json:"busyTolerance,omitempty"`      // fraction: share of busy answers that is nothing yet; default 0.01, 0..0.5
	BusyRecoverRate    *float64 `json:"busyRecoverRate,omitempty"`    // tchannel: times itself that the limit grows by each second; default 3, 0.01..100
	BusyRecoverValue   *float64 `json:"busyRecoverValue,omitempty"`   // tchannel: messages a second that it grows by instead; default none, 0..1000000
	ReservedThroughput *int64   `json:"reservedThroughput,omitempty"` // of a tenant or a tag: cost a second that it always has, bytes; default 0
	TotalThroughput    *int64   `json:"totalThroughput,omitempty"`    // of a tenant or a tag: cost a second that it never exceeds, bytes; default no quota; 0 = nothing
	QuotaMode          Mode     `json:"quotaMode,omitempty"`          // of a tenant's or a tag's quota, or of all in the cluster: enforce (default) or shadow
	QuotaShareBy       ShareBy  `json:"quotaShareBy,omitempty"`       // cluster: how those who load a saturated backend share it: quota (default) or current
	Capacity           *int64   `json:"capacity,omitempty"`           // cluster: cost a second that all backends bear together, bytes, which no more may be reserved of; default not known
	Zones              Names    `json:"zones,omitempty"`              // cluster: those that backends may report, as in "a,b"; default any
	IgnoreZones        *int64   `json:"ignoreZones,omitempty"`        // cluster: the worst zones, whose trouble is their own; default 1, 0..100
	MaxInFlight        *int64   `json:"maxInFlight,omitempty"`        // messages of a subscription handed out and not Done, a replica; 0 = any number
	Priority           *int     `json:"priority,omitempty"`           // patterns only: the higher one wins; default 0
}

// Mode says whether a limit is enforced.
type Mode string

// The modes.
const (
	Enforce Mode = "enforce" // messages wait for their permits
	Shadow  Mode = "shadow"  // messages that would wait are counted and let through
)

// Sharing is a way to share a limit of messages.
type Sharing string

// The ways to share a limit.
const (
	Fair   Sharing = "fair"   // everybody allocates batches, in proportion to what he weighs
	Strict Sharing = "strict" // one message every 1/rate, no burst, nothing saved up
	Groups Sharing = "groups" // to each group of workers its part of a period's, and what the others leave
	Split  Sharing = "split"  // to each replica of each subscription the same part of the rate, whether it wants it or not
)

// WaitMode is what somebody does who finds all slots of a strict limit allocated.
type WaitMode string

// The ways to wait.
const (
	WaitBackoff WaitMode = "backoff" // asks again when there may be room, and a random time later
	WaitQueue   WaitMode = "queue"   // queues, and comes in his turn
)

// Names are names, of groups of workers or of zones, with commas between them.
type Names string

// RampMode is how a limit rises to its rate.
type RampMode string

// The ways of a ramp.
const (
	RampScheduled RampMode = "scheduled" // with the time
	RampRelaxed   RampMode = "relaxed"   // in those seconds only in which somebody asks for permits
	RampNone      RampMode = "none"      // not at all, whatever a wider scope says
)

// ShareBy is how those who load a saturated backend share what it bears.
type ShareBy string

// The ways to share a backend.
const (
	ShareByQuota   ShareBy = "quota"   // by their total quotas
	ShareByCurrent ShareBy = "current" // each slows down by the same factor
)

// BusyMode is a rule by which a limit goes by busy answers.
type BusyMode string

// The rules for busy answers.
const (
	BusyFraction BusyMode = "fraction" // by their share
	BusyTChannel BusyMode = "tchannel" // by their number, as published with TChannel
	BusyNone     BusyMode = "none"     // not at all
)

// Outcomes are names of outcomes that handlers report, with commas between them.
type Outcomes string

// The outcomes that may count as busy.
const (
	OutcomeBusy    = "busy"
	OutcomeFailed  = "failed"
	OutcomeTimeout = "timeout"
)

// OnOutage says what a replica does while the permit store cannot be reached.
type OnOutage string

// What to do when the permit store is away.
const (
	OutageShare OnOutage = "share" // go on at the share last known
	OutageStop  OnOutage = "stop"  // dispatch nothing
	OutageOpen  OnOutage = "open"  // dispatch without limit
)

// Defaults of the fields that nobody sets.
const (
	DefaultRound           = 100 * time.Millisecond
	DefaultCaughtUpBacklog = 100
	DefaultWeight          = 1.0
	DefaultMaxReserved     = 64
	DefaultKeepBack        = 0.2
	DefaultPoolTTL         = 5 * time.Second
	DefaultRampTTL         = 3 * time.Minute
	DefaultBusyOutcomes    = OutcomeBusy
	DefaultBusyMinRate     = 1.0
	DefaultBusyTolerance   = 0.01
	DefaultBusyRecoverRate = 3.0
	DefaultIgnoreZones     = 1
)
