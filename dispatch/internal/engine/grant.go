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
	a := g.Admission
	if a == nil || !a.holds || g.Taken&onHold != 0 || d <= 0 {
		return
	}
	now := time.Since(a.lane.engine.start)
	until := now + min(d, maxHold)
	for _, s := range a.messages {
		s.Hold(int64(g.N), now, until)
	}
	for _, s := range a.bytes {
		s.Hold(g.Size, now, until)
	}
	g.Taken = onHold | uint64(until)
	g.Size = max(1, g.Size) // of no limit perhaps, but Done has something to settle
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
	l := a.lane
	messages, bytes = min(messages, MaxPermits), min(bytes, MaxPermits)
	unused, unusedBytes := int64(g.N)-int64(max(0, messages)), int64(0)
	if a.limitsBytes() {
		unusedBytes = g.Size - max(0, bytes)
		if messages > 0 {
			l.sizes.learn(messages, max(0, bytes))
		}
	}
	if g.Taken&onHold != 0 {
		g.endHold(unused, unusedBytes)
	} else {
		g.giveBack(unused, unusedBytes)
	}
	if a.maxInFlight > 0 {
		l.of.release(l, int64(g.N), a.maxInFlight)
	}
	if l.Waited() {
		l.engine.touch(l, false)
	}
}

// giveBack gives back what was not used, or charges what was used beyond what was granted, if both
// are below zero.
func (g *Grant) giveBack(unused, bytes int64) {
	a := g.Admission
	if unused != 0 {
		for _, s := range a.messages {
			switch {
			case unused > 0 && s == a.paced:
				s.Unused(g.Taken)
				a.lane.engine.touch(a.lane, true)
			case unused < 0 || s.Fresh(g.Taken):
				s.Return(unused)
			}
		}
	}
	if a.limitsBytes() {
		for _, s := range a.bytes {
			if bytes <= 0 || s.Fresh(g.Taken) {
				s.Return(bytes)
			} else {
				s.Forgive(bytes)
			}
		}
	}
	if !a.shadow.empty() {
		a.shadow.settle(unused, bytes, func(s *sharing.Share) bool { return s.Fresh(g.Taken) })
	}
}

// endHold is giveBack after a Hold.
func (g *Grant) endHold(unused, bytes int64) {
	a := g.Admission
	now, until := time.Since(a.lane.engine.start), time.Duration(g.Taken&^onHold)
	for _, s := range a.messages {
		s.EndHold(int64(g.N), unused, now, until)
	}
	for _, s := range a.bytes {
		s.EndHold(g.Size, bytes, now, until)
	}
	if !a.shadow.empty() {
		a.shadow.settle(unused, bytes, func(*sharing.Share) bool { return now <= until })
	}
	a.lane.engine.touch(a.lane, false) // an idle lane has no steps
}
