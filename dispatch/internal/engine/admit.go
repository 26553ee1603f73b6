package engine

import (
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
)

// admit sets the limits that apply to callers now, or nothing if there is none: those that the
// policies say, but for those that exempt who is caught up, and those that are lifted by an outage.
func (l *Lane) admit() {
	if old := l.admission.Load(); old != nil && old.closed {
		return
	}
	a := l.shares.inForce
	if !a.paused {
		exempt := l.handles.exempt()
		a = a.without(func(s *sharing.Share) bool {
			return s.Lifted() || exempt && s.Limit.ExemptsCaughtUp
		})
	}
	if l.admission.Load() == a {
		return
	}
	l.admission.Store(a)
	l.serve(time.Now())
	l.touch(false) // permits go back, or callers are served
}

// followBacklogs decides whether the lane is caught up.
func (l *Lane) followBacklogs(now time.Time) {
	if l.handles.update(now) {
		l.admit()
		l.touch(false) // for the loop to see when the exemption ends
	}
}

// followOutage lifts the limits whose policies say so while the permit store is unavailable.
func (l *Lane) followOutage() {
	changed := false
	for _, s := range l.shares.inForce.all {
		changed = s.FollowOutage() || changed
	}
	if changed {
		l.admit()
	}
}
