package engine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
)

// Stats are what there is to know of a lane now.
type Stats struct {
	Lane        resolve.LaneID
	CaughtUp    bool
	Exempt      bool // nothing is charged
	Paused      bool
	MaxInFlight int64     // 0 = any number, as in shadow mode
	Backlog     int64     // messages; -1 = unknown
	BehindSince time.Time // zero = caught up, or unknown
	Waiting     int       // callers
	ReadAhead   int64     // messages that consumers may hold before their permits
	HoldsUp     []string  // topics whose messages wait behind these callers
	InFlight    int64     // messages, where that is limited
	Reason      string    // why callers wait
	Beyond      int64     // messages beyond a maxInFlight in shadow mode, all time
	Waits       []Waits
	WaitTimes   Histogram
	Limits      []sharing.Stats
}

// Stats returns the stats of all lanes, or of those only that hold or want permits, are caught up
// or behind. If there are more than most, those are returned for which the most callers wait or
// have waited, and the number of the others; else they are in no order.
func (e *Engine) Stats(activeOnly bool, most int) (stats []Stats, more int) {
	e.mu.Lock()
	now := time.Now()
	lanes := make([]*Lane, 0, len(e.lanes))
	for _, l := range e.lanes {
		if !activeOnly || l.active.Load() || l.handles.caughtUp || l.handles.behind(now) {
			lanes = append(lanes, l)
		}
	}
	e.mu.Unlock() // the loop need not wait for them to be sorted
	if len(lanes) > most {
		lanes, more = hardest(lanes, most), len(lanes)-most
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now = time.Now()
	stats = make([]Stats, len(lanes))
	for i, l := range lanes {
		stats[i] = l.stats(now)
	}
	return stats, more
}

// hardest returns the lanes for which the most callers wait now or, of those for which as many do,
// the lanes whose callers have waited longest in all.
func hardest(lanes []*Lane, most int) []*Lane {
	type ranked struct {
		*Lane
		waiting int
		waited  time.Duration
	}
	all := make([]ranked, len(lanes))
	for i, l := range lanes {
		l.queue.mu.Lock()
		all[i] = ranked{l, len(l.queue.callers), l.queue.waits.times.Sum}
		l.queue.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(
			cmp.Compare(b.waiting, a.waiting), cmp.Compare(b.waited, a.waited), byName(a.Lane, b.Lane),
		)
	})
	for i := range most {
		lanes[i] = all[i].Lane
	}
	return lanes[:most]
}

// Rivals returns the ids of other policy stores whose replicas use the limits of this process, too,
// sorted.
func (e *Engine) Rivals() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.rivalled { // there may be very many lanes
		return nil
	}
	ids := map[string]bool{}
	now := e.clock(time.Now())
	for _, l := range e.lanes {
		for _, share := range l.shares.inForce.all {
			if id := share.Rival(now); id != "" {
				ids[id] = true
			}
		}
	}
	e.rivalled = len(ids) > 0
	return slices.Sorted(maps.Keys(ids))
}

// Limited reports whether a limit applies to any lane.
func (e *Engine) Limited() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.lanes {
		if len(l.shares.inForce.all) > 0 {
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

// LaneStats returns the stats of a lane.
func (e *Engine) LaneStats(l *Lane) Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return l.stats(time.Now())
}

func (l *Lane) stats(now time.Time) Stats {
	l.queue.mu.Lock()
	defer l.queue.mu.Unlock()
	a, limits := l.admission.Load(), l.shares.inForce
	s := Stats{
		Lane: l.id, CaughtUp: l.handles.caughtUp, Exempt: a == nil, Paused: limits.paused,
		Backlog: l.handles.backlog(now), ReadAhead: l.handles.readAhead(), Waiting: len(l.queue.callers),
		InFlight: l.subscription.inFlight.n.Load(), Beyond: l.beyondInFlight.Load(),
		Waits: slices.Clone(l.queue.waits.reasons), WaitTimes: l.queue.waits.times,
	}
	if l.handles.behind(now) {
		s.BehindSince = l.handles.behindSince
	}
	if limits.boundsInFlight() {
		s.MaxInFlight = limits.maxInFlight
	}
	if len(l.queue.callers) > 0 {
		s.Reason = l.reason(a)
		s.HoldsUp = l.handles.holdsUp(l.id.Topic.String())
	}
	for _, share := range limits.all {
		limit := share.Stats(l.core.clock(now))
		if limit.Reason == resolve.ReasonBusy && limit.Allowed >= busy.Max {
			continue // a healthy system limits nothing
		}
		limit.Bypassed = a == nil || !a.has(share)
		s.Limits = append(s.Limits, limit)
	}
	return s
}
