package engine

import "github.com/dispatchthrottle/throttle/dispatch/internal/sharing"

// A shadow is the limits of an Admission whose mode is shadow. A message takes their permits if
// there are some. Without permits it passes, too, and is counted. No permits are given back to
// these limits. So when the mode changes to enforce, they have only permits that were allocated.
type shadow struct {
	messages []*sharing.Share
	bytes    []*sharing.Share

	// untracked is the admission without maxInFlight, for messages beyond it; nil unless maxInFlight
	// is in shadow mode.
	untracked *Admission
}

// shadowsOf returns those in shadow mode.
func shadowsOf(shares []*sharing.Share) (shadows []*sharing.Share) {
	for _, s := range shares {
		if s.Limit.Shadow {
			shadows = append(shadows, s)
		}
	}
	return shadows
}

func (s *shadow) empty() bool {
	return len(s.messages) == 0 && len(s.bytes) == 0 && s.untracked == nil
}

// pass counts n messages with size bytes that the admission lets pass, and returns the admission of
// their Grant.
func (a *Admission) pass(n, size int64) *Admission {
	if a.shadow.empty() {
		return a
	}
	enough := true
	for _, s := range a.shadow.messages {
		enough = s.Pass(n) && enough
	}
	for _, s := range a.shadow.bytes {
		enough = s.PassBytes(n, size) && enough
	}
	if !enough { // as demand
		a.lane.engine.touch(a.lane, false)
	}
	if a.shadow.untracked == nil {
		return a
	}
	inFlight := a.lane.of.inFlight.tryAcquire(n, a.maxInFlight)
	if inFlight == n {
		return a
	}
	a.lane.of.inFlight.n.Add(-inFlight)
	a.lane.beyondInFlight.Add(n - inFlight)
	return a.shadow.untracked
}

// settle takes back what was counted for a grant of messages and bytes that were not used, or
// counts what was used beyond it. fresh reports whether the permits of a limit could go back.
func (s *shadow) settle(messages, bytes int64, fresh func(*sharing.Share) bool) {
	for _, limit := range s.messages {
		switch {
		case messages < 0:
			limit.Pass(-messages)
		case fresh(limit):
			limit.Unpass(messages)
		}
	}
	for _, limit := range s.bytes {
		switch {
		case bytes < 0:
			limit.PassBytes(0, -bytes)
		case fresh(limit):
			limit.Unpass(bytes)
		}
	}
}
