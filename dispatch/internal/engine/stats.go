package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
)

// Why callers wait, beside the reasons of limits; see resolve.Limit.
const (
	ReasonInFlight    = "messages in flight"
	ReasonPaused      = "paused"
	ReasonUnavailable = "permit store unavailable"
	ReasonNoGroup     = "in none of the limit's worker groups"
)

// A State is what there is to know of a lane now.
type State struct {
	Lane        resolve.Lane
	CaughtUp    bool
	Exempt      bool // nothing is charged
	Paused      bool
	MaxInFlight int64    // 0 = any number, as in shadow mode
	Backlog     int64    // messages; -1 = unknown
	Waiting     int      // callers
	HoldsUp     []string // topics whose messages wait behind these callers
	InFlight    int64    // messages, where that is limited
	Reason      string   // why callers wait
	Beyond      int64    // messages beyond a maxInFlight in shadow mode, all time
	Waits       []Waits
	WaitTimes   Histogram
	Limits      []sharing.State
}

// States returns the states of all lanes, or of those only that hold or want permits or are caught
// up. If there are more than max, those that come first by name are returned; else they are in no
// order.
func (e *Engine) States(activeOnly bool, max int) []State {
	e.mu.Lock()
	lanes := make([]*Lane, 0, len(e.lanes))
	for _, l := range e.lanes {
		if !activeOnly || l.active.Load() || l.caughtUp {
			lanes = append(lanes, l)
		}
	}
	e.mu.Unlock() // the loop need not wait for them to be sorted
	if len(lanes) > max {
		slices.SortFunc(lanes, byName)
		lanes = lanes[:max]
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	states := make([]State, len(lanes))
	for i, l := range lanes {
		states[i] = l.state(now)
	}
	return states
}

// Limited reports whether a limit applies to any lane.
func (e *Engine) Limited() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.lanes {
		if len(l.limits.all) > 0 {
			return true
		}
	}
	return false
}

func byName(a, b *Lane) int {
	x, y := &a.id, &b.id
	return cmp.Or(
		cmp.Compare(x.Topic.Scheme, y.Topic.Scheme),
		cmp.Compare(x.Topic.Tenant, y.Topic.Tenant),
		cmp.Compare(x.Topic.Namespace, y.Topic.Namespace),
		cmp.Compare(x.Topic.Name, y.Topic.Name),
		cmp.Compare(x.Subscription, y.Subscription),
		cmp.Compare(x.Owner.TenantGroup, y.Owner.TenantGroup),
		cmp.Compare(x.Owner.Tag, y.Owner.Tag),
	)
}

// State returns the state of the handle's lane.
func (h *Handle) State() State {
	h.Lane.engine.mu.Lock()
	defer h.Lane.engine.mu.Unlock()
	return h.Lane.state(time.Now())
}

func (l *Lane) state(now time.Time) State {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.admission.Load()
	s := State{
		Lane: l.id, CaughtUp: l.caughtUp, Exempt: a == nil, Paused: l.limits.paused,
		Backlog: l.backlog(now), Waiting: len(l.line), InFlight: l.of.inFlight.n.Load(),
		Beyond: l.beyondInFlight.Load(), Waits: slices.Clone(l.waits.reasons), WaitTimes: l.waits.times,
	}
	if l.limits.boundsInFlight() {
		s.MaxInFlight = l.limits.maxInFlight
	}
	if len(l.line) > 0 {
		s.Reason = l.reason(a)
		for _, h := range l.handles {
			s.HoldsUp = append(s.HoldsUp, h.HoldsUp...)
		}
		slices.Sort(s.HoldsUp)
		s.HoldsUp = slices.DeleteFunc(slices.Compact(s.HoldsUp), func(topic string) bool {
			return topic == l.id.Topic.String()
		})
	}
	for _, share := range l.limits.all {
		of := share.State(l.engine.clock(now))
		if of.Reason == resolve.ReasonBusy && of.Allowed >= busy.Max {
			continue // a healthy system limits nothing
		}
		s.Limits = append(s.Limits, of)
	}
	return s
}

// reason says which limit holds callers up. No lock is needed.
func (l *Lane) reason(a *Admission) string {
	switch {
	case a == nil || a.closed:
		return ""
	case a.paused:
		return ReasonPaused
	case a.boundsInFlight() && l.of.inFlight.n.Load() >= a.maxInFlight:
		return ReasonInFlight
	}
	switch s := a.empty(nil); {
	case s == nil:
	case s.Unavailable():
		return ReasonUnavailable
	case s.NoGroup():
		return ReasonNoGroup
	default:
		return s.Reason
	}
	return ""
}

// WaitBuckets are the upper bounds of a Histogram's buckets; the last bucket has none.
var WaitBuckets = [...]time.Duration{
	time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond,
	100 * time.Millisecond, 300 * time.Millisecond, time.Second, 3 * time.Second,
	10 * time.Second, 60 * time.Second,
}

// A Histogram counts waits by their length.
type Histogram struct {
	Count   int64
	Sum     time.Duration
	Buckets [len(WaitBuckets) + 1]int64 // not cumulative
}

// Waits are how many callers had to wait for one reason.
type Waits struct {
	Reason string
	N      int64
}

// waitStats count the callers of a lane that had to wait. The lane's lock guards them.
type waitStats struct {
	reasons []Waits // a few
	times   Histogram
}

func (s *waitStats) add(d time.Duration, reason string) {
	i, _ := slices.BinarySearch(WaitBuckets[:], d)
	s.times.Count++
	s.times.Sum += d
	s.times.Buckets[i]++
	for i := range s.reasons {
		if s.reasons[i].Reason == reason {
			s.reasons[i].N++
			return
		}
	}
	s.reasons = append(s.reasons, Waits{reason, 1})
}
