package policy

// A Policy says what is allowed in one scope. Every field is optional: the zero value means "not
// set", and the scope inherits the field. [Policy.WithDefaults] fills in what no scope sets. The
// ranges, the defaults and the scopes of all fields are in fields.go and docs/reference/policy.md.
//
// A Policy is plain data, and is never changed once it is shared.
type Policy struct {
	MessageRate   Rate     // messages per period; 0 = no limit
	ByteRate      Rate     // bytes per period; 0 = no limit
	Burst         *int64   // messages that an idle limit may save up
	ByteBurst     *int64   // bytes that an idle limit may save up
	Round         Duration // how long the batches of all replicas together last
	Mode          Mode
	Paused        *bool // nothing is dispatched
	OnOutage      OnOutage
	MaxInFlight   *int64   // messages of a subscription handed out and not Done; 0 = any number
	Weight        *float64 // of a subscription in the limits that it shares
	Reserved      Rate     // messages that a subscription is guaranteed of those limits
	ReservedBytes Rate     // bytes that it is guaranteed
	Aggregate     *bool    // the rates limit all topics of the scope together
	Priority      *int     // of a pattern: the higher one wins

	Sharing  Sharing  // how replicas share the message rate
	Ramp     Ramp     // how rates rise
	CaughtUp CaughtUp // subscriptions without a backlog
	Busy     Busy     // how busy answers that handlers report lower a subscription's rate
}

// Sharing says how the replicas of all subscriptions share a limit of messages.
type Sharing struct {
	Mode         SharingMode
	MaxReserved  *int64   // strict: slots allocated ahead, by all replicas together
	Wait         WaitMode // strict: what a caller does that finds no free slot
	PermitExpiry Duration // strict: how late a slot may be used
	Replicas     *int64   // split: their number; 0 = they agree on it through the permit store
	Groups       []string // groups: the worker groups, each of which gets the same part of a period
	KeepBack     *float64 // groups: the part of its own that others leave to an idle worker group
	PoolTTL      Duration // split, groups: a replica silent for that long does not count
}

// A Ramp says how the rates of a scope rise to their values.
type Ramp struct {
	Mode      RampMode
	From      Rate     // messages per period at the start
	FromBytes Rate     // bytes per period at the start
	Over      Duration // how long the rise takes, in steps of a second; not set = no ramp
	TTL       Duration // silence after which the ramp starts again
}

// CaughtUp is about subscriptions without a backlog.
type CaughtUp struct {
	Throttle *bool  // they are throttled too
	Backlog  *int64 // messages; up to that many, a subscription is caught up
}

// Busy says how busy answers of what handlers call lower a subscription's rate.
type Busy struct {
	Mode         BusyMode
	Outcomes     []string // which outcomes count as busy
	MinRate      *float64 // messages a second that pass in any case
	Tolerance    *float64 // fraction: the share of busy answers that has no effect
	RecoverRate  *float64 // tchannel: growth per second, as a multiple of the limit
	RecoverValue *float64 // tchannel: growth per second in messages a second, instead
}

// Mode says whether a limit is enforced.
type Mode string

// The modes.
const (
	Enforce Mode = "enforce" // messages wait for their permits
	Shadow  Mode = "shadow"  // messages that would wait are counted and pass
)

// SharingMode is a way to share a limit.
type SharingMode string

// The sharing modes.
const (
	Fair   SharingMode = "fair"   // batches, by weight and reserved minimums
	Strict SharingMode = "strict" // one message every 1/rate, without bursts
	Split  SharingMode = "split"  // the same part of the rate for each replica
	Groups SharingMode = "groups" // a part of each period for each worker group
)

// WaitMode is what a caller does that finds all slots of a strict limit allocated.
type WaitMode string

// The ways to wait.
const (
	WaitBackoff WaitMode = "backoff" // it asks again when the next slot is due, plus jitter
	WaitQueue   WaitMode = "queue"   // it waits in a FIFO queue
)

// RampMode is how a limit rises to its rate.
type RampMode string

// The ramp modes.
const (
	RampScheduled RampMode = "scheduled" // with time
	RampRelaxed   RampMode = "relaxed"   // only in seconds in which permits are requested
	RampNone      RampMode = "none"      // at once, also where a wider scope has a ramp
)

// BusyMode is a rule by which busy answers lower a limit.
type BusyMode string

// The rules for busy answers.
const (
	BusyFraction BusyMode = "fraction" // by their share
	BusyTChannel BusyMode = "tchannel" // by their number, as published with TChannel
	BusyNone     BusyMode = "none"     // they have no effect
)

// The outcomes that may count as busy.
const (
	OutcomeBusy    = "busy"
	OutcomeFailed  = "failed"
	OutcomeTimeout = "timeout"
)

// OnOutage says what a replica does while the permit store is unavailable.
type OnOutage string

// What to do while the permit store is unavailable.
const (
	OutageShare OnOutage = "share" // continue at the last known share
	OutageStop  OnOutage = "stop"  // dispatch nothing: fail closed
	OutageOpen  OnOutage = "open"  // dispatch without limit: fail open
)

// IsPaused reports whether nothing may be dispatched.
func (p Policy) IsPaused() bool { return p.Paused != nil && *p.Paused }

// WithDefaults returns p with the default of every field that p leaves unset, so that no pointer
// is nil. A rate has no default: it stays unset, which is no limit.
func (p Policy) WithDefaults() Policy {
	q := policyTable.defaults
	q.overlay(&p)
	if q.Sharing.PermitExpiry == 0 {
		q.Sharing.PermitExpiry = defaultExpiry(q.MessageRate)
	}
	return q
}

// withoutLimits returns p without its own limits: how it treats limits remains. It is written out
// for the reason that overlay is; a test compares it with the table of fields.
func (p Policy) withoutLimits() Policy {
	p.MessageRate, p.ByteRate, p.Burst, p.ByteBurst = Rate{}, Rate{}, nil, nil
	return p
}
