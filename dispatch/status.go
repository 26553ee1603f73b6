package dispatch

import (
	"cmp"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/policy"
)

// Stats is the state of a replica. Metrics and status records are made from it.
type Stats struct {
	Replica  string `json:"replica"`
	Cluster  string `json:"cluster"`
	Version  string `json:"version"`
	Time     int64  `json:"time"`     // by this process's clock, Unix milliseconds
	Identity string `json:"identity"` // of the policies in force: see policy.Snapshot
	Epoch    int64  `json:"epoch"`    // likewise, Unix milliseconds
	Revision int64  `json:"revision"` // likewise

	Policies        int    `json:"policies"`                  // in force, with quotas and settings
	PolicyError     string `json:"policyError,omitempty"`     // why the store's are not in force now
	PoliciesHeld    bool   `json:"policiesHeld,omitempty"`    // PolicyError is a policy.HeldError
	InvalidPolicies int    `json:"invalidPolicies,omitempty"` // stored policies that are ignored

	// Rivals are the ids of other policy stores whose replicas use the same limits, as of the last
	// second. The lower rate of each limit is in force.
	Rivals []string `json:"rivals,omitempty"`

	Permits       PermitStoreStats    `json:"permitStore"`
	Subscriptions []SubscriptionStats `json:"subscriptions,omitempty"` // by topic, name and owner

	// More is how many subscriptions that are not idle a status record has no room for: it has
	// those that callers wait for most.
	More int `json:"more,omitempty"`
}

// PermitStoreStats counts the requests sent to the permit store since the start.
type PermitStoreStats struct {
	Requests    int64 `json:"requests"` // pipelined or not
	Errors      int64 `json:"errors"`   // requests that failed
	Late        int64 `json:"late"`     // requests whose replies came too late to be used
	Damaged     int64 `json:"damaged"`  // requests that found stored state out of bounds
	Unavailable bool  `json:"unavailable,omitempty"`

	// Latency is how long calls with allocations take, in seconds, averaged over the last few that
	// were answered; 0 = none was in the last minute. Slow means that it is over 0.1 s, or was and
	// is over 0.05 s.
	Latency float64 `json:"latency"`
	Slow    bool    `json:"slow,omitempty"`
}

// SubscriptionStats is the state of one subscription in one replica. Counts start when the
// subscription is opened here; those of its limits continue if a new handle is opened within a
// minute.
type SubscriptionStats struct {
	Topic        string           `json:"topic"`
	Subscription string           `json:"subscription"`
	Owner        string           `json:"owner,omitempty"` // tenant:NAME, tag:NAME; "": the tenant
	CaughtUp     bool             `json:"caughtUp,omitempty"`
	Exempt       bool             `json:"exempt,omitempty"` // nothing is charged now
	Paused       bool             `json:"paused,omitempty"`
	MaxInFlight  int64            `json:"maxInFlight,omitempty"` // 0 = any number, as in shadow mode
	Backlog      int64            `json:"backlog"`               // messages; -1 = unknown
	BehindSince  int64            `json:"behindSince,omitempty"` // Unix milliseconds; 0 = it is not
	Waiting      int              `json:"waiting,omitempty"`     // calls that wait
	InFlight     int64            `json:"inFlight,omitempty"`    // messages; only with maxInFlight
	Reason       Reason           `json:"reason,omitempty"`      // why calls wait
	ReadAhead    int64            `json:"readAhead,omitempty"`   // messages: see ReportReadAhead
	HoldsUp      []string         `json:"holdsUp,omitempty"`     // topics that wait with them
	Waits        map[Reason]int64 `json:"waits,omitempty"`       // calls that had to wait, all time
	Shadowed     map[Reason]int64 `json:"shadowedBy,omitempty"`  // passed without a permit
	WaitTimes    Histogram        `json:"waitTimes,omitzero"`    // of calls that had to wait, all time
	Limits       []LimitStats     `json:"limits,omitempty"`
}

// LimitStats is the state of one limit for one subscription in one replica. Its counts start again
// when the limit's sharing.mode changes.
type LimitStats struct {
	Key         string  `json:"key"` // in the permit store
	Reason      Reason  `json:"limit"`
	Shadow      bool    `json:"shadow,omitempty"`   // messages do not wait for it
	Bypassed    bool    `json:"bypassed,omitempty"` // nothing is charged now: caught up, or open
	Rate        float64 `json:"rate"`               // the limit's now, permits a second
	Ramp        float64 `json:"ramp,omitempty"`     // its present rate on a ramp; 0 = at Rate
	Share       float64 `json:"share,omitempty"`    // of this replica, permits a second; 0 = unknown
	Use         float64 `json:"use"`                // permits a second taken here lately
	Held        int64   `json:"held,omitempty"`     // permits allocated and not used
	Debt        int64   `json:"debt,omitempty"`     // permits used and not yet allocated
	Granted     int64   `json:"granted"`            // permits, all time, those returned included
	Returned    int64   `json:"returned,omitempty"` // permits given back unused, all time
	Owed        int64   `json:"owed,omitempty"`     // permits used beyond those granted, all time
	Expired     int64   `json:"expired,omitempty"`  // permits that no call used in time, all time
	Allocations int64   `json:"allocations"`        // all time
	Queued      bool    `json:"queued,omitempty"`   // strict: waits in the queue for a slot
	Pool        int     `json:"pool,omitempty"`     // split: replicas by which the limit is divided
	Group       string  `json:"group,omitempty"`    // groups: the worker group of this replica
	Rival       string  `json:"rival,omitempty"`    // another policy store whose replicas use it
	Revision    int64   `json:"revision"`           // at which the limit last changed
}

// Stats returns the present state. It costs about a microsecond for each subscription.
func (l *Limiter) Stats() Stats { return l.stats(false, math.MaxInt) }

// stats is Stats for at most so many subscriptions; with activeOnly, of those that are not idle.
func (l *Limiter) stats(activeOnly bool, most int) Stats {
	permits := l.engine.Availability()
	l.mu.Lock()
	s := Stats{
		Replica: l.cfg.Replica, Cluster: l.cfg.Cluster, Version: Version(),
		Identity: l.snapshot.Identity, Epoch: l.snapshot.Epoch, Revision: l.snapshot.Revision,
		InvalidPolicies: l.invalid, Policies: l.stored, Permits: PermitStoreStats(permits),
	}
	if l.source != nil {
		s.PolicyError = l.source.Error()
		s.PoliciesHeld = policy.FaultOf(l.source) != policy.FaultUnavailable
	}
	s.Rivals = slices.Clone(l.rivals)
	l.mu.Unlock()
	lanes, more := l.engine.Stats(activeOnly, most)
	s.More = more
	s.Time = time.Now().UnixMilli() // of the counts, however long the engine was busy
	s.Subscriptions = slices.Grow(s.Subscriptions, len(lanes))
	for _, lane := range lanes {
		s.Subscriptions = append(s.Subscriptions, subscriptionStats(lane))
	}
	slices.SortFunc(s.Subscriptions, func(a, b SubscriptionStats) int {
		return cmp.Or(
			cmp.Compare(a.Topic, b.Topic),
			cmp.Compare(a.Subscription, b.Subscription),
			cmp.Compare(a.Owner, b.Owner),
		)
	})
	return s
}

// Stats returns the present state of the subscription, over all its handles in this process. A nil
// Subscription has empty Stats.
func (s *Subscription) Stats() SubscriptionStats {
	if s == nil {
		return SubscriptionStats{Backlog: -1, Exempt: true}
	}
	return subscriptionStats(s.limiter.engine.LaneStats(s.handle.Lane))
}

func subscriptionStats(lane engine.Stats) SubscriptionStats {
	s := SubscriptionStats{
		Topic: lane.Lane.Topic.String(), Subscription: lane.Lane.Subscription,
		Owner: lane.Lane.Owner.String(), CaughtUp: lane.CaughtUp, Exempt: lane.Exempt,
		Paused: lane.Paused, MaxInFlight: lane.MaxInFlight,
		Backlog: lane.Backlog, ReadAhead: lane.ReadAhead, Waiting: lane.Waiting, InFlight: lane.InFlight,
		Reason: Reason(lane.Reason), HoldsUp: lane.HoldsUp, WaitTimes: Histogram(lane.WaitTimes),
	}
	if !lane.BehindSince.IsZero() {
		s.BehindSince = lane.BehindSince.UnixMilli()
	}
	if lane.Waits != nil {
		s.Waits = make(map[Reason]int64, len(lane.Waits))
		for _, waits := range lane.Waits {
			s.Waits[Reason(waits.Reason)] = waits.N
		}
	}
	shadowed := func(by Reason, inShadow bool, n int64) {
		if inShadow || n > 0 {
			if s.Shadowed == nil {
				s.Shadowed = map[Reason]int64{}
			}
			s.Shadowed[by] += n
		}
	}
	shadowed(ReasonInFlight, false, lane.Beyond)
	for _, limit := range lane.Limits {
		s.Limits = append(s.Limits, limitStats(limit))
		shadowed(Reason(limit.Reason), limit.Shadow, limit.Shadowed)
	}
	return s
}

func limitStats(share sharing.Stats) LimitStats {
	l := LimitStats{
		Key: share.Key, Reason: Reason(share.Reason), Shadow: share.Shadow, Rate: share.Rate, Share: share.Share,
		Use:  share.Use,
		Held: share.Held, Debt: share.Debt, Granted: share.Granted, Returned: share.Returned, Owed: share.Owed,
		Expired: share.Lost, Allocations: share.Allocations, Queued: share.Queued, Pool: share.Pool,
		Group: share.Group, Rival: share.Rival, Revision: share.Revision.Number, Bypassed: share.Bypassed,
	}
	if share.Ramp.Over > 0 && share.Allowed < share.Rate {
		l.Ramp = share.Allowed
	}
	if (share.Rule.Mode != busy.None || share.Rival != "") && share.Allowed > 0 {
		l.Rate = share.Allowed
	}
	return l
}

// MessageRate returns the lowest rate of all limits that are not in shadow mode, in messages a
// second. For a limit of bytes, it is the rate of messages of the given size. It is infinite if
// nothing is limited. For a subscription that is caught up, it is the rate that applies when the
// subscription falls behind.
func (s SubscriptionStats) MessageRate(bytes float64) float64 {
	rate := math.Inf(1)
	for _, l := range s.Limits {
		switch {
		case l.Shadow:
		case l.Reason.Bytes():
			rate = min(rate, l.Rate/bytes)
		default:
			rate = min(rate, l.Rate)
		}
	}
	return rate
}

// A Reason is the reason why callers wait.
type Reason string

// The reasons.
const (
	ReasonNone                 Reason = ""
	ReasonMessages             Reason = "message rate"
	ReasonBytes                Reason = "byte rate"
	ReasonSubscriptionMessages Reason = "subscription's message rate"
	ReasonSubscriptionBytes    Reason = "subscription's byte rate"
	ReasonNamespaceMessages    Reason = "namespace's message rate" // of all topics together
	ReasonNamespaceBytes       Reason = "namespace's byte rate"
	ReasonTenantMessages       Reason = "tenant's message rate"
	ReasonTenantBytes          Reason = "tenant's byte rate"
	ReasonClusterMessages      Reason = "cluster's message rate"
	ReasonClusterBytes         Reason = "cluster's byte rate"
	ReasonInFlight             Reason = engine.ReasonInFlight    // "messages in flight"
	ReasonPaused               Reason = engine.ReasonPaused      // "paused"
	ReasonBusy                 Reason = resolve.ReasonBusy       // "busy answers"
	ReasonQuota                Reason = resolve.ReasonQuota      // "quota"
	ReasonPermits              Reason = engine.ReasonUnavailable // "permit store unavailable"

	// ReasonNoGroup is "in none of the limit's worker groups".
	ReasonNoGroup Reason = engine.ReasonNoGroup
)

// ReasonOf returns the reason of callers that wait for a limit of a scope of that kind.
func ReasonOf(kind policy.Kind, bytes bool) Reason { return Reason(resolve.Reason(kind, bytes)) }

// Bytes reports whether the limit counts bytes.
func (r Reason) Bytes() bool { return strings.HasSuffix(string(r), string(ReasonBytes)) }

// module is the path of this library's module.
const module = "github.com/dispatchthrottle/throttle"

// Version returns the version of this library in the running program, as Go's build info has it:
// v1.2.3, a pseudo-version, or (devel) for a build of a working copy without version control.
// Replicas publish it in their status records.
func Version() string { return version() }

var version = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unknownVersion
	}
	return versionOf(info)
})

const unknownVersion = "(devel)"

// versionOf returns the version of this library's module in a program.
func versionOf(info *debug.BuildInfo) string {
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path != module {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return cmp.Or(m.Version, unknownVersion)
	}
	return unknownVersion
}
