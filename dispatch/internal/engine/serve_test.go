package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestBytes: unknown sizes are charged at the average and known ones exactly. Debts are paid.
func TestBytes(t *testing.T) {
	run(t, 0, orders+" byteRate=10240", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, -1)
		assert.EqualValues(t, 1024, g.Size, "no size is known")
		g.Settle(1, 2048)
		g = e.acquire(h, 1, -1)
		assert.EqualValues(t, 2048, g.Size)
		g.Settle(1, 100)
		g = e.acquire(h, 1, -1)
		assert.EqualValues(t, 2048-(2048-100)/16-1, g.Size, "a sixteenth of the way")
		average := float64(g.Size)
		g.Settle(2, 0)
		g = e.acquire(h, 1, -1)
		assert.InDelta(t, average*15/16*15/16, g.Size, 2, "two sixteenths, for two messages")
		g.Settle(0, 0)
		g = e.acquire(h, 1, 0)
		assert.EqualValues(t, 1, g.Size, "an empty message")
		e.acquire(h, 1, 5*10240)
		from, asked := e.since(), len(e.store.asked())
		e.acquire(h, 1, 1)
		assert.InDelta(t, 5, (e.since() - from).Seconds(), 0.3)
		demand := 0.0
		for _, r := range e.store.asked()[asked:] {
			demand = max(demand, r.Allocate.Demand)
		}
		assert.GreaterOrEqual(t, demand, 500000.0, "the debt, in a round")
		g = e.acquire(h, 1000, -1)
		assert.Less(t, g.N, 10, "no more messages than there are bytes for")
	})
}

// TestBytesAndMessages: a message that lacks bytes takes no permit of messages, and the other way
// round.
func TestBytesAndMessages(t *testing.T) {
	policies := orders + " byteRate=1000 messageRate=1000\n" + billing + " byteRate=100000000"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		for range 20 {
			e.acquire(h, 1, 500)
		}
		messages := limitOf(t, h, "message rate", 1000)
		assert.EqualValues(t, 20, messages.Granted-messages.Returned)
		for reason, rate := range map[string]float64{"byte rate": 1000, "subscription's byte rate": 1e8} {
			bytes := limitOf(t, h, reason, rate)
			assert.EqualValues(t, 10000, bytes.Granted-bytes.Returned, reason)
		}
		c := e.wait(t.Context(), h, 1, 500)
		assert.Equal(t, "byte rate", h.Stats().Reason)
		time.Sleep(2 * time.Second)
		assert.True(t, c.over())
	})
	policies = orders + " byteRate=1048576 byteBurst=1048576 messageRate=10"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		for range 20 {
			g := e.acquire(h, 50, -1)
			assert.Less(t, g.N, 50)
			assert.EqualValues(t, g.N*1024, g.Size, "the bytes of the messages granted")
			time.Sleep(300 * ms)
		}
		messages, bytes := limitOf(t, h, "message rate", 10), limitOf(t, h, "byte rate", 1048576)
		assert.Equal(t, messages.Granted*1024, bytes.Granted-bytes.Returned)
	})
}

// TestSeveral: permits that one limit has and the next one lacks stay with the first.
func TestSeveral(t *testing.T) {
	policies := orders + " messageRate=1000\n" + billing + " messageRate=20"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		got := int64(0)
		for range 20 {
			got += int64(e.acquire(h, 100, -1).N)
		}
		got += h.Lane.TakeSeveral(h.Lane.Admission(), 100)
		stats := h.Stats()
		assert.Equal(t, stats.Limits[1].Granted, stats.Limits[0].Granted)
		assert.GreaterOrEqual(t, stats.Limits[1].Granted, got)
	})
}
