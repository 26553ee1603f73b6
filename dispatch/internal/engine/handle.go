package engine

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
)

// A Handle is one consumer's part in a lane. Handles of the same subscription and owner share the
// lane.
type Handle struct {
	Lane    *Lane
	HoldsUp []string // topics in one line with its callers; it does not change
	backlog backlog  // guarded by the lane's lock
}

// What the lane of a subscription without handles has is kept for a new handle, so that one opened
// for each message gets one replica's share: permits while the subscription is not idle, and for
// keptFor at most; its place among the replicas for endedFor; debts for owedFor.
const (
	keptFor  = 900 * time.Millisecond
	endedFor = time.Minute
	owedFor  = time.Hour
)

// Open makes h a handle of its lane, which it makes if there is none. It fails if the engine is
// closed.
func (e *Engine) Open(h *Handle, id resolve.Lane) error { return e.open(h, id, nil) }

// OpenLike is Open with the backlog that another handle reported. It fails if that handle is
// closed.
func (e *Engine) OpenLike(h *Handle, id resolve.Lane, like *Handle) error {
	return e.open(h, id, like)
}

func (e *Engine) open(h *Handle, id resolve.Lane, like *Handle) error {
	matches := e.match(id)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	h.backlog = backlog{messages: -1}
	if like != nil {
		like.Lane.mu.Lock()
		open := slices.Contains(like.Lane.handles, like)
		h.backlog, h.HoldsUp = like.backlog, like.HoldsUp
		like.Lane.mu.Unlock()
		if !open {
			return ErrClosed
		}
	}
	l := e.lanes[id]
	if l == nil {
		l = &Lane{engine: e, id: id, matches: matches, place: -1, due: math.Inf(1)}
		l.limits = admit(l, nil, nil, &resolve.Subscription{})
		l.of = e.subscriptionOf(l)
		e.lanes[id] = l
		if old, ok := e.ended[id]; ok {
			l.takeOver(old)
			delete(e.ended, id)
		}
		l.apply()
	}
	h.Lane = l
	l.mu.Lock()
	l.handles = append(l.handles, h)
	l.mu.Unlock()
	l.updateCaughtUp(time.Now())
	return nil
}

// Close ends a handle. With the last one of a lane, callers that wait get ErrClosed, and permits
// go back unless a new handle uses them soon. A second call does nothing.
func (h *Handle) Close() { CloseAll([]*Handle{h}) }

// CloseAll closes handles of one subscription in one step; there is at least one.
func CloseAll(handles []*Handle) {
	of, e := handles[0].Lane.of, handles[0].Lane.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	dropped := false
	for _, h := range handles {
		dropped = h.close() || dropped
	}
	if dropped && of.outcomes.reported.Load() {
		e.applyAll(of.all()) // what quotas reserve for the subscription may be less now
	}
}

// close is Close; it reports whether the subscription has a lane less.
func (h *Handle) close() (dropped bool) {
	l := h.Lane
	e := l.engine
	l.mu.Lock()
	l.handles = slices.DeleteFunc(l.handles, func(other *Handle) bool { return other == h })
	last := len(l.handles) == 0
	l.mu.Unlock()
	if !last {
		l.updateCaughtUp(time.Now())
		return false
	}
	if e.lanes[l.id] == l {
		l.countStarted()
		delete(e.lanes, l.id)
		if l.Quota() != nil {
			e.withQuota--
		}
		e.dropLane(l)
		l.end()
		dropped = true
	}
	l.admission.Store(closedAdmission(l))
	l.serve(time.Now())
	e.touch(l, false)
	return dropped
}

// end keeps what the lane has for a new handle.
func (l *Lane) end() {
	now, keeps := time.Now(), l.owes()
	for _, s := range l.limits.all {
		l.engine.forget(s)
		keeps = s.Keep(l.engine.clock(now.Add(keptFor))) || keeps
	}
	if keeps {
		l.endedAt = now
		l.engine.ended[l.id] = l
	}
}

// ForgetEnded forgets the lanes that have been without handles for long. It is to be called about
// once a second.
func (e *Engine) ForgetEnded() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, l := range e.ended {
		if age := time.Since(l.endedAt); age > endedFor && (age > owedFor || !l.owes()) {
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

// owes reports whether more was used than granted.
func (l *Lane) owes() bool {
	indebted := func(s *sharing.Share) bool { return s.Debt() > 0 }
	return len(l.debts) > 0 || slices.ContainsFunc(l.shares(), indebted)
}

// takeOver makes what an ended lane keeps the lane's own: shares that hold batches, and debts.
// Shares that leave a pool or a worker group stay with the old lane.
func (l *Lane) takeOver(old *Lane) {
	var leaving []*sharing.Share
	for _, s := range old.shares() {
		if s.Keep(0) {
			l.retired = append(l.retired, s)
			continue
		}
		if debt := s.ForgiveDebt(); debt > 0 {
			l.owe(s.Limit.Key, debt)
		}
		leaving = append(leaving, s)
	}
	for key, debt := range old.debts {
		l.owe(key, debt)
	}
	old.successor = l
	old.limits, old.retired, old.debts = admit(old, nil, nil, &resolve.Subscription{}), leaving, nil
	l.sizes.bits.Store(old.sizes.bits.Load())
}
