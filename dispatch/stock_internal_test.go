package dispatch

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
)

// TestALateLoop releases what is overdue by no more than a round, and of a limit that slows down by no more than a fifth of it.
func TestALateLoop(t *testing.T) {
	for rule, released := range map[busy.Mode]int64{busy.None: 10, busy.ByFraction: 2, busy.ByCount: 2} {
		m := &limit{round: 0.1, rule: busy.Rule{Mode: rule}}
		a := newAccount(m, "billing", ReasonBusy, 0)
		m.rate = 100
		a.advance(1, 0, 0, demand{})
		a.add(30, 0.0675, 0.01, 0, 10, m.round)
		a.advance(2, 0.3125, 0.25, demand{})
		assert.Equal(t, released, a.ready(), "rule %d", rule)
		assert.Equal(t, 25-released, a.lapsed, "rule %d", rule)
		a.advance(3, 0.3325, 0, demand{})
		assert.Equal(t, released+2, a.ready(), "in time, all of it")
	}
}
