package engine

import (
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
)

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
	for _, s := range a.messages {
		if s != a.paced {
			s.Return(int64(g.N))
		}
	}
	for _, s := range a.bytes {
		s.Return(g.Size)
	}
	a.shadow.settle(int64(g.N), g.Size, func(*sharing.Share) bool { return true })
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
	unused, unusedBytes := int64(g.N)-int64(max(0, messages)), int64(0)
	if unused != 0 {
		for _, s := range a.messages {
			switch {
			case unused > 0 && s == a.paced:
				s.Unused(step)
				a.lane.engine.touch(a.lane, true)
			case unused < 0 || held || s.Fresh(step):
				s.Return(unused)
			}
		}
	}
	if a.limitsBytes() {
		unusedBytes = g.Size - max(0, bytes)
		for _, s := range a.bytes {
			if unusedBytes <= 0 || held || s.Fresh(step) {
				s.Return(unusedBytes)
			} else {
				s.Forgive(unusedBytes)
			}
		}
		if messages > 0 {
			a.lane.sizes.learn(messages, max(0, bytes))
		}
	}
	if !a.shadow.empty() {
		a.shadow.settle(unused, unusedBytes, func(s *sharing.Share) bool { return held || s.Fresh(step) })
	}
	l := a.lane
	if held {
		for _, limits := range [...][]*sharing.Share{a.messages, a.bytes} {
			for _, s := range limits {
				s.HeldBack()
			}
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
