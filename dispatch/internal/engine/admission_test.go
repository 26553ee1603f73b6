package engine_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

// TestTakeNeedsEveryLimit: what one limit grants and another lacks stays with the first.
func TestTakeNeedsEveryLimit(t *testing.T) {
	policies := orders + " messageRate=10 byteRate=1000\n" + billing + " messageRate=20 byteRate=2000"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		a := h.Lane.Admission()
		have := func() (n []int64) {
			for _, l := range h.Stats().Limits {
				n = append(n, l.Held)
			}
			return n
		}
		messages, bytes := a.Shares()
		synctest.Wait() // the loop takes permits that nobody has requested out again
		messages[0].Untake(9)
		messages[1].Untake(4)
		bytes[0].Untake(1000)
		assert.Zero(t, a.Take(5, 100), "one limit has no bytes")
		assert.Equal(t, []int64{9, 4, 1000, 0}, have())
		bytes[1].Untake(500)
		assert.EqualValues(t, 4, a.Take(5, 100), "one limit has four permits")
		assert.Equal(t, []int64{5, 0, 900, 400}, have())
		assert.Zero(t, a.Take(5, 100))
		assert.Equal(t, []int64{5, 0, 900, 400}, have())
	})
}

// TestTakeInFlight: permits beyond the messages that may be in flight stay where they are.
func TestTakeInFlight(t *testing.T) {
	run(t, 0, orders+" messageRate=10 byteRate=1000 maxInFlight=3", func(t *testing.T, e *fixture) {
		h := e.open("")
		a := h.Lane.Admission()
		assert.Nil(t, a.Only, "there is more to look at than one limit")
		messages, bytes := a.Shares()
		synctest.Wait()
		messages[0].Untake(10)
		bytes[0].Untake(500)
		assert.EqualValues(t, 3, a.Take(5, 100))
		assert.EqualValues(t, 7, messages[0].Available())
		assert.EqualValues(t, 400, bytes[0].Available())
		assert.Zero(t, a.Take(5, 100), "another lane was quicker")
		assert.EqualValues(t, 7, messages[0].Available())
		assert.EqualValues(t, 400, bytes[0].Available())
		assert.EqualValues(t, 3, h.Stats().InFlight)
	})
}
