package engine

import "time"

// A Grant is the permits that a caller got; see dispatch.Grant. It has four fields, so that it is
// passed in registers.
type Grant struct {
	N         int
	Admission *Admission // nil: nothing is limited, or the grant is settled
	Size      int64      // bytes charged, in all; 0 = no limit of bytes, nor of messages in flight
	Taken     uint64     // the step of the loop then; with onHold, until when it can be given back
}

// onHold marks a Grant's Taken as a time, nanoseconds since the engine's start.
const onHold = 1 << 63

// maxHold bounds how long after Hold the permits of a Grant can be given back.
const maxHold = 3 * time.Second

// Hold lets Done give back unused permits for d from now.
func (g *Grant) Hold(d time.Duration) {
	if a := g.Admission; a != nil && a.holds && g.Taken&onHold == 0 {
		g.Taken = onHold | uint64(time.Since(a.lane.engine.start)+min(d, maxHold))
	}
}

// held reports whether a Hold still lets the grant give back what was not used.
func (g *Grant) held() bool {
	return g.Taken&onHold != 0 &&
		time.Since(g.Admission.lane.engine.start) <= time.Duration(g.Taken&^onHold)
}

// waste gives up a strict slot that its caller came to too late, and gives back the permits of
// other limits.
func (g *Grant) waste() {
	a := g.Admission
	a.paced.Waste(int64(g.N))
	for _, s := range a.ofMessages() {
		if s != a.paced {
			s.Return(int64(g.N))
		}
	}
	for _, s := range a.ofBytes() {
		s.Return(g.Size)
	}
	if a.maxInFlight > 0 {
		a.lane.of.cancel(int64(g.N))
	}
	g.Admission = nil
}

// Settle gives back the unused permits of a limited grant: messages were dispatched, with bytes in
// all.
func (g *Grant) Settle(messages int, bytes int64) {
	a := g.Admission
	messages, bytes = min(messages, MaxPermits), min(bytes, MaxPermits)
	held, step := g.held(), g.Taken
	if step&onHold != 0 {
		step = 0 // long ago
	}
	if unused := int64(g.N) - int64(max(0, messages)); unused != 0 {
		for _, s := range a.ofMessages() {
			switch {
			case unused > 0 && s == a.paced:
				s.Unused(step)
				a.lane.engine.touch(a.lane, true)
			case unused < 0 || held || s.Fresh(step):
				s.Return(unused)
			}
		}
	}
	if len(a.ofBytes()) > 0 {
		unused := g.Size - max(0, bytes)
		for _, s := range a.ofBytes() {
			if unused <= 0 || held || s.Fresh(step) {
				s.Return(unused)
			} else {
				s.Forgive(unused)
			}
		}
		if messages > 0 {
			a.lane.sizes.learn(messages, max(0, bytes))
		}
	}
	l := a.lane
	if held {
		for _, s := range a.all {
			s.HeldBack()
		}
		l.engine.touch(l, false) // an idle lane has no steps
	}
	if a.maxInFlight > 0 {
		l.of.release(l, int64(g.N), a.maxInFlight)
	}
	if l.Waited() {
		l.engine.touch(l, false)
	}
}
