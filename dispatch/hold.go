package dispatch

import "time"

// onHold marks a Grant's taken as a time, nanoseconds since the Limiter's start: a fifth field would keep Grants out of registers.
const onHold = 1 << 63

// maxHold bounds how long after Hold the permits of a Grant can be given back.
const maxHold = 3 * time.Second

// Hold lets Done give back unused permits for d from now, at most 3 s, instead of until the Grant is older than two
// batches. It is for a caller that acquires permits before it knows whether there is a message, as a source does that is
// polled: d is at most how long its permits wait. The first call counts.
//
// A Grant that is held is the one exception to the bound of a limit: others may use what it gives back, and the caller may use
// what it holds, later than their slots. So what is dispatched in any interval t is at most rate x (t + d), plus what the bound
// allows without it. Hold does nothing where a limit's sharing is strict, split or groups: there unused permits of an old Grant
// expire.
func (g *Grant) Hold(d time.Duration) {
	if g.plan != nil && g.plan.fair && g.taken&onHold == 0 {
		g.taken = onHold | uint64(time.Since(g.plan.queue.limiter.start)+min(d, maxHold))
	}
}

// held reports whether a Hold still lets the Grant give back what was not used.
func (g *Grant) held() bool {
	return g.taken&onHold != 0 && time.Since(g.plan.queue.limiter.start) <= time.Duration(g.taken&^onHold)
}

// takeHeld notes at the next step that a held Grant has given permits back. An idle account has no steps, so its strayAt is old.
func (a *account) takeHeld(now float64) {
	if a.heldBack.Swap(false) {
		a.handBack, a.strayAt = true, now
	}
}

// handsBack reports, once, that nobody has used for a round what held Grants gave back, so that it goes to the permit store.
func (a *account) handsBack(now float64, w demand) bool {
	if !a.handBack || w.anybody || now-a.usedAt <= a.limit.round {
		return false
	}
	a.handBack = false
	return a.held()+a.expired > 2
}

// isFair reports whether all limits of the plan share by allocated batches.
func (p *plan) isFair() bool {
	for _, a := range p.all() {
		if a.strict != nil || a.split != nil || a.groups != nil {
			return false
		}
	}
	return true
}
