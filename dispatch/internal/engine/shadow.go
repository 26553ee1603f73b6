package engine

import "github.com/dispatchthrottle/throttle/dispatch/internal/sharing"

// A shadow is the limits of an Admission whose mode is shadow. A message takes their permits if
// there are some. Without permits it passes, too, and is counted. No permits are given back to
// these limits. So when the mode changes to enforce, they have only permits that were allocated.
type shadow struct {
	messages []*sharing.Share
	bytes    []*sharing.Share
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

func (s *shadow) empty() bool { return len(s.messages) == 0 && len(s.bytes) == 0 }

// pass counts n messages with size bytes that pass, and reports whether their permits were there.
func (s *shadow) pass(n, size int64) (enough bool) {
	enough = true
	for _, limit := range s.messages {
		enough = limit.Pass(n) && enough
	}
	for _, limit := range s.bytes {
		enough = limit.PassBytes(n, size) && enough
	}
	return enough
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
