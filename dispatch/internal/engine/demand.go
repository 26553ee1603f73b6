package engine

import "github.com/dispatchthrottle/throttle/dispatch/internal/sharing"

// A waiting is what the callers in the line want, at one moment.
type waiting struct {
	callers  int
	messages float64
	bytes    float64 // 0 if no limit is of bytes
	try      bool    // the first caller does not wait for permits
}

// look returns what the callers in the line want.
func (l *Lane) look(a *Admission) waiting {
	if !l.Waited() {
		return waiting{}
	}
	l.line.mu.Lock()
	defer l.line.mu.Unlock()
	callers := l.line.callers
	w := waiting{callers: len(callers), messages: l.line.wanted}
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

// demand is what the callers in the line want of a share, which may be of a limit of bytes.
func (l *Lane) demand(a *Admission, w waiting, s *sharing.Share, bytes bool) sharing.Demand {
	if s.Open() { // asks whether the permit store is available
		return sharing.Demand{Waiting: 1, Anybody: true, Callers: 1}
	} else if a == nil || a.closed || !a.has(s) {
		return sharing.Demand{}
	}
	d := sharing.Demand{Anybody: w.callers > 0, Callers: w.callers}
	if !d.Anybody || a.paused {
		return d
	}
	if s == a.paced {
		if d.Try = w.try; d.Try {
			d.Callers = 0
			return d
		}
		d.Callers = l.startable(a, w.callers)
		d.Hindered, d.Lacks = a.hindered(d.Callers), a.lacksOther()
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
