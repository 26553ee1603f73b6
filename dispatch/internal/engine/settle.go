package engine

import (
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
)

// Hold lets Done give back unused permits for d from now.
func (g *Grant) Hold(d time.Duration) {
	a := g.Admission
	if a == nil || !a.holds || g.Taken.held() || d <= 0 {
		return
	}
	now := time.Since(a.lane.core.start)
	until := now + min(d, sharing.MaxHold)
	for _, s := range a.messages {
		s.Hold(int64(g.N), now, until)
	}
	for _, s := range a.bytes {
		s.Hold(g.Size, now, until)
	}
	g.Taken = heldUntil(until)
	g.Size = max(1, g.Size) // of no limit perhaps, but Done has something to settle
}

// Split takes the permits of some messages out of g. Their exact bytes are charged: what they are
// more or less than expected is settled with the rest.
func (g *Grant) Split(messages int, bytes int64) Grant {
	part := *g // with its Size, by which Done knows that it has something to settle
	part.N = min(max(0, messages), g.N)
	g.N -= part.N
	if a := g.Admission; a != nil && a.limitsBytes() {
		part.Size = min(max(1, bytes), MaxPermits)
		g.Size -= part.Size
		if part.N > 0 {
			a.lane.sizes.learn(part.N, part.Size)
		}
	}
	return part
}

// Settle settles a limited grant of which that many messages were dispatched, with that many bytes.
// Unused permits go back; what was used beyond the grant is a debt.
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
	if g.Taken.held() {
		g.endHold(unused, unusedBytes)
	} else {
		g.giveBack(unused, unusedBytes)
	}
	if a.maxInFlight > 0 {
		l.release(int64(g.N), a.maxInFlight)
	}
	if l.Waited() {
		l.touch(false)
	}
}

// giveBack gives back what was not used. A number below zero was used beyond what was granted, and
// is charged.
func (g *Grant) giveBack(unused, bytes int64) {
	a := g.Admission
	if unused != 0 {
		for _, s := range a.messages {
			switch {
			case unused > 0 && s == a.paced:
				s.GiveSlotBack(g.Taken.step())
				a.lane.touch(true)
			case unused < 0 || s.Fresh(g.Taken.step()):
				s.Return(unused)
			}
		}
	}
	if a.limitsBytes() {
		for _, s := range a.bytes {
			if bytes <= 0 || s.Fresh(g.Taken.step()) {
				s.Return(bytes)
			} else {
				s.Forgive(bytes)
			}
		}
	}
	if !a.shadow.empty() {
		a.shadow.settle(unused, bytes, func(s *sharing.Share) bool { return s.Fresh(g.Taken.step()) })
	}
}

// endHold is giveBack after a Hold.
func (g *Grant) endHold(unused, bytes int64) {
	a := g.Admission
	now, until := time.Since(a.lane.core.start), g.Taken.until()
	for _, s := range a.messages {
		s.EndHold(int64(g.N), unused, now, until)
	}
	for _, s := range a.bytes {
		s.EndHold(g.Size, bytes, now, until)
	}
	if !a.shadow.empty() {
		a.shadow.settle(unused, bytes, func(*sharing.Share) bool { return now <= until })
	}
	a.lane.touch(false) // an idle lane has no steps
}
