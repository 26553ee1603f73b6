package engine

import (
	"math"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// A sending is a request on its way.
type sending struct {
	lane       *Lane
	share      *sharing.Share
	request    *permits.Request
	answeredAt float64
	took       float64 // the call of the store that it was in, seconds
}

// step brings the lane to now: it releases what is due, serves callers, and adds the requests that
// are wanted then to out. It returns when the next step is due, too.
func (l *Lane) step(t time.Time, now float64, out []sending) ([]sending, float64) {
	l.covered.Store(false)
	if l.handles.expired(t) {
		l.followBacklogs(t)
	}
	w := l.advance(t, now)
	out, next := l.request(now, w, out)
	l.shares.dropRetired()
	if w.try { // not one that has come during this step, which requested nothing for it
		l.refuseTries(t, now)
	}
	if l.handles.caughtUp {
		next.at = min(next.at, now+l.handles.validUntil.Sub(t).Seconds())
	}
	l.active.Store(!next.idle || w.callers > 0)
	l.covered.Store(next.covered && !l.handles.caughtUp)
	return out, max(next.at, math.Nextafter(now, math.Inf(1)))
}

// advance releases what is due and serves callers. It returns what those want that still wait.
func (l *Lane) advance(t time.Time, now float64) waiting {
	step := sharing.Time{Now: now, Step: l.core.steps.Load(), Late: now - l.due.at}
	limits, a := l.shares.inForce, l.admission.Load()
	w := l.look(a)
	for i, s := range limits.all {
		s.Mode.Advance(step, l.demand(a, w, s, i >= limits.bytesFrom))
	}
	for _, s := range l.shares.retired {
		s.Mode.Advance(step, sharing.Demand{})
	}
	l.followOutage()
	if w.callers > 0 || l.Waited() {
		l.serve(t)
		w = l.look(l.admission.Load())
	}
	return w
}

// An outlook is what the shares of a lane say at the end of a step.
type outlook struct {
	at      float64 // when the next step is due
	idle    bool    // nothing is held, wanted or on its way
	covered bool    // the next step is soon enough for a caller that comes now
}

func (o *outlook) add(s *sharing.Share, now float64) {
	o.at = min(o.at, s.Mode.WakeAt(now))
	o.idle = o.idle && s.Mode.Idle()
	o.covered = o.covered && s.Mode.Covered(now)
}

// request adds the requests of all shares to out.
func (l *Lane) request(now float64, w waiting, out []sending) ([]sending, outlook) {
	limits, a := l.shares.inForce, l.admission.Load()
	next := outlook{at: math.Inf(1), idle: true, covered: len(limits.all) > 0}
	send := func(s *sharing.Share, r *permits.Request) {
		if r != nil {
			if s.Limit.Rule.Mode != busy.None {
				s.TellOutcomes(r, l.subscription.outcomes.take())
			}
			out = append(out, sending{lane: l, share: s, request: r})
		}
		next.add(s, now)
	}
	for i, s := range limits.all {
		if a != nil && a.closed && !s.Kept() {
			send(s, s.Mode.Drain(now))
			continue
		}
		var d sharing.Demand
		if w.callers > 0 || s.Lifted() { // those not served may wait for another limit now
			d = l.demand(a, w, s, i >= limits.bytesFrom)
		}
		refusing := s.Refusing() // Next may forget that
		send(s, s.Mode.Next(now, d))
		back := l.core.time(s.Mode.NextPermit(now))
		if refusing && back.Sub(s.Bucket.Next()).Abs() > tick/4 { // less is not worth an allocation
			s.SetNext(back)
		}
	}
	for _, s := range l.shares.retired {
		send(s, s.Mode.Drain(now))
	}
	return out, next
}

// A waiting is what the callers in the queue want, at one moment.
type waiting struct {
	callers  int
	messages float64
	bytes    float64 // 0 if no limit is of bytes
	try      bool    // the first caller does not wait for permits
}

// look returns what the callers in the queue want.
func (l *Lane) look(a *Admission) waiting {
	if !l.Waited() {
		return waiting{}
	}
	l.queue.mu.Lock()
	defer l.queue.mu.Unlock()
	callers := l.queue.callers
	w := waiting{callers: len(callers), messages: l.queue.wanted}
	if w.callers > 0 {
		w.try = callers[0].try
	}
	if a != nil && a.limitsBytes() {
		for _, c := range callers {
			w.bytes += float64(l.charge(a, c.max, c.size))
		}
	}
	return w
}

// demand is what the callers in the queue want of a share, which may be of a limit of bytes.
func (l *Lane) demand(a *Admission, w waiting, s *sharing.Share, bytes bool) sharing.Demand {
	if s.Lifted() { // one permit is wanted, so that a request shows whether the store is back
		return sharing.Demand{Waiting: 1, Anybody: true, Callers: 1}
	} else if a == nil || a.closed || !a.has(s) {
		return sharing.Demand{}
	}
	d := sharing.Demand{Anybody: w.callers > 0, Callers: w.callers}
	switch {
	case a.paused:
		return d
	case !d.Anybody:
		if s != a.paced { // a debt is paid while callers work, and not from when they come again
			d.Waiting = float64(s.Debt())
		}
		return d
	}
	if s == a.paced {
		if d.Try = w.try; d.Try {
			d.Callers = 0
			return d
		}
		d.Callers = l.startable(a, w.callers)
		d.Hindered, d.Lacks = a.hindered(d.Callers), a.lacksOther()
	} else if a.paced != nil {
		d.Until = a.paced.SlotUntil()
	}
	if s.Empty() {
		d.Waiting = w.messages
		if a.boundsInFlight() {
			d.Waiting = min(d.Waiting, float64(l.subscription.free(l, a.maxInFlight)))
		}
		if bytes {
			d.Waiting = float64(s.Debt()) + w.bytes
		}
	}
	return d
}

// startable is how many of n callers may have a message in flight now.
func (l *Lane) startable(a *Admission, n int) int {
	if a.boundsInFlight() {
		n = min(n, int(l.subscription.inFlight.free(a.maxInFlight)))
	}
	return n
}
