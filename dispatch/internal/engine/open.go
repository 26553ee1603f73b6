package engine

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/policy"
)

// A lane without handles keeps some of its state for a new handle, so that a handle which is opened
// for each message gets one replica's share: permits while the subscription is not idle, and for
// keptFor at most; its place among the replicas for endedFor; debts for owedFor.
const (
	keptFor  = 900 * time.Millisecond
	endedFor = time.Minute
	owedFor  = time.Hour
)

// Open makes h a handle of its lane, which it makes if there is none. It fails if the engine is
// closed.
func (e *Engine) Open(h *Handle, id resolve.LaneID) error { return e.open(h, id, nil) }

// OpenLike is Open with the backlog that another handle reported. It fails if that handle is
// closed.
func (e *Engine) OpenLike(h *Handle, id resolve.LaneID, like *Handle) error {
	return e.open(h, id, like)
}

func (e *Engine) open(h *Handle, id resolve.LaneID, like *Handle) error {
	matches := e.match(id)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	h.backlog = backlog{messages: -1}
	if like != nil {
		h.backlog, h.readAhead, h.HoldsUp = like.backlog, like.readAhead, like.HoldsUp
		if !like.Lane.handles.has(like) {
			return ErrClosed
		}
	}
	l := e.lanes[id]
	if l == nil {
		l = e.add(id, matches)
	}
	h.Lane = l
	l.handles.all = append(l.handles.all, h)
	l.followBacklogs(time.Now())
	return nil
}

// add adds a lane, which takes over what an ended one keeps.
func (e *Engine) add(id resolve.LaneID, matches policy.Matches) *Lane {
	l := &Lane{core: &e.core, id: id, matches: matches, due: dueTime{at: math.Inf(1), place: -1}}
	l.shares.inForce = unlimited(l)
	l.subscription = e.subscriptionOf(l)
	e.lanes[id] = l
	if old, ok := e.ended[id]; ok {
		l.shares.takeOver(&old.shares, unlimited(old))
		l.sizes.bits.Store(old.sizes.bits.Load())
		old.successor = l
		delete(e.ended, id)
	}
	e.apply(l)
	return l
}

// subscriptionOf makes a lane one of its subscription's.
func (e *Engine) subscriptionOf(l *Lane) *subscription {
	key := name{l.id.Topic, l.id.Subscription}
	s := e.subscriptions[key]
	if s == nil {
		s = &subscription{}
		e.subscriptions[key] = s
	}
	lanes := append(slices.Clone(s.all()), l)
	s.lanes.Store(&lanes)
	return s
}

// ReportBacklog notes how many messages are still to be read through a handle. Negative means
// unknown.
func (e *Engine) ReportBacklog(h *Handle, messages int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h.Lane.handles.has(h) {
		now := time.Now()
		h.Lane.handles.report(h, messages, now)
		h.Lane.followBacklogs(now)
	}
}

// ReportReadAhead notes how many messages a handle's consumer may hold before their permits.
func (e *Engine) ReportReadAhead(h *Handle, messages int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h.readAhead = max(0, messages)
}

// CloseAll ends handles of one subscription in one step; there is at least one. With the last one
// of a lane, callers that wait get ErrClosed, and permits go back unless a new handle uses them
// soon. A second call does nothing.
func (e *Engine) CloseAll(handles []*Handle) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, lanes := handles[0].Lane.subscription, len(handles[0].Lane.subscription.all())
	for _, h := range handles {
		h.Lane.handles.remove(h)
		if len(h.Lane.handles.all) == 0 {
			e.end(h.Lane)
		} else {
			h.Lane.followBacklogs(time.Now())
		}
	}
	if left := s.all(); len(left) < lanes && s.outcomes.reported.Load() {
		e.applyAll(left) // what quotas reserve for the subscription may be less now
	}
}

// end ends a lane without handles, and keeps what it has for a new handle.
func (e *Engine) end(l *Lane) {
	if e.lanes[l.id] == l {
		e.countStarted(l)
		delete(e.lanes, l.id)
		if l.Quota() != nil {
			e.withQuota--
		}
		e.dropLane(l)
		now, keeps := time.Now(), l.shares.owes()
		for _, s := range l.shares.inForce.all {
			e.waiters.forget(s)
			keeps = s.Mode.Keep(e.clock(now.Add(keptFor))) || keeps
		}
		if keeps {
			l.endedAt = now
			e.ended[l.id] = l
		}
	}
	l.admission.Store(closedAdmission(l))
	l.serve(time.Now())
	l.touch(false)
}

// dropLane takes a lane out of its subscription.
func (e *Engine) dropLane(l *Lane) {
	lanes := slices.DeleteFunc(slices.Clone(l.subscription.all()), func(other *Lane) bool { return other == l })
	l.subscription.lanes.Store(&lanes)
	if len(lanes) == 0 {
		delete(e.subscriptions, name{l.id.Topic, l.id.Subscription})
	}
}

// ForgetEnded forgets the lanes that have been without handles for long. It is to be called about
// once a second.
func (e *Engine) ForgetEnded() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, l := range e.ended {
		if age := time.Since(l.endedAt); age > endedFor && (age > owedFor || !l.shares.owes()) {
			delete(e.ended, id)
		}
	}
	e.ended, e.peaks.ended = shrunk(e.ended, e.peaks.ended)
	e.lanes, e.peaks.lanes = shrunk(e.lanes, e.peaks.lanes)
	e.subscriptions, e.peaks.subscriptions = shrunk(e.subscriptions, e.peaks.subscriptions)
}

// shrunk returns a map with these entries, and the largest size that it has had, from what that
// was before. After most entries are gone it is a new map, since a map never frees the memory that
// its largest size has taken.
func shrunk[K comparable, V any](m map[K]V, peak int) (map[K]V, int) {
	if peak = max(peak, len(m)); peak < 1000 || len(m) > peak/4 {
		return m, peak
	}
	fewer := make(map[K]V, len(m))
	maps.Copy(fewer, m)
	return fewer, len(m)
}
