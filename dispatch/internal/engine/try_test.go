package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

// TestTry: who comes back when it is told to gets the rate, with a try or two for each message.
func TestTry(t *testing.T) {
	for sharing, tries := range map[string]float64{"fair": 3.2, "strict": 2.2, "split sharing.replicas=1": 3.2, "groups sharing.groups=eu": 3.5} {
		for _, rtt := range []time.Duration{0, 10 * ms} {
			run(t, rtt, orders+" messageRate=20 sharing.mode="+sharing, func(t *testing.T, e *fixture) {
				h := e.open("")
				n, all := 0, 0
				for e.since() < 20*time.Second {
					all++
					_, next, ok := h.Lane.TryAcquire(1)
					if ok {
						n++
						continue
					}
					assert.True(t, next.After(time.Now()), "not in the past: %s", sharing)
					assert.LessOrEqual(t, time.Until(next), 150*ms)
					time.Sleep(time.Until(next))
				}
				assert.GreaterOrEqual(t, n, map[bool]int{true: 250, false: 370}[sharing == "strict"], "%s, rtt %v", sharing, rtt)
				assert.LessOrEqual(t, n, 404, sharing)
				assert.LessOrEqual(t, float64(all)/float64(n), tries, "%s, rtt %v", sharing, rtt)
			})
		}
	}
}

// TestTryBytes: a refusal counts the bytes that the messages would be charged.
func TestTryBytes(t *testing.T) {
	run(t, 0, orders+" byteRate=102400", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, 20480)
		g.Settle(1, 20480)
		time.Sleep(time.Second)
		e.empty(h)
		time.Sleep(3 * time.Second)
		e.empty(h)
		asked := len(e.store.asked())
		_, _, ok := h.Lane.TryAcquire(1)
		assert.False(t, ok)
		time.Sleep(10 * ms)
		most := 0.0
		for _, r := range e.store.asked()[asked:] {
			most = max(most, r.Allocate.Want)
		}
		assert.GreaterOrEqual(t, most, 10240.0)
	})
}

// TestTryStrict: a try knows for how long the line is full, and does not ask again; nor does it
// where callers wait, or another limit has no permit.
func TestTryStrict(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=1/1m sharing.mode=strict", func(t *testing.T, e *fixture) {
		h := e.open("")
		from := time.Now()
		_, _, ok := h.Lane.TryAcquire(5)
		assert.True(t, ok)
		assert.Equal(t, 10*ms, time.Since(from), "a request")
		for i := range 5 {
			asked := len(e.store.asked())
			from = time.Now()
			_, next, ok := h.Lane.TryAcquire(1)
			assert.False(t, ok)
			assert.InDelta(t, 60, next.Sub(e.start).Seconds(), 0.2)
			if i > 0 {
				assert.Zero(t, time.Since(from))
				assert.Len(t, e.store.asked(), asked)
			}
		}
		c := e.wait(t.Context(), h, 1, -1)
		_, next, ok := h.Lane.TryAcquire(1)
		assert.False(t, ok)
		assert.Equal(t, 2*ms, time.Until(next), "others come first")
		time.Sleep(61 * time.Second)
		assert.True(t, c.over())
		assert.Equal(t, 1, c.grant.N)
	})
	run(t, 10*ms, orders+" messageRate=10 sharing.mode=strict\n"+orders+"?subscription=billing byteRate=1000", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, 10)
		g.Settle(1, 5000) // a debt of bytes, for 5 s
		time.Sleep(time.Second)
		asked := 0
		for _, r := range e.store.asked() {
			if r.Allocate.Strict {
				asked++
			}
		}
		from := time.Now()
		_, _, ok := h.Lane.TryAcquire(1)
		assert.False(t, ok)
		assert.Zero(t, time.Since(from))
		time.Sleep(time.Second)
		for _, r := range e.store.asked() {
			if r.Allocate.Strict {
				asked--
			}
		}
		assert.Zero(t, asked, "no slot that it could not use")
	})
}

// TestTryTimeout: a try waits for the store's timeout at most.
func TestTryTimeout(t *testing.T) {
	run(t, 3*time.Second, orders+" messageRate=10 sharing.mode=strict", func(t *testing.T, e *fixture) {
		h := e.open("")
		from := time.Now()
		_, _, ok := h.Lane.TryAcquire(1)
		assert.False(t, ok)
		assert.Equal(t, 300*ms, time.Since(from))
		assert.False(t, h.Lane.Waited())
		time.Sleep(10 * time.Second)
	})
}

// TestTriesAndWaits: a try that is refused does not take a caller with it that waits behind it, and
// Close answers both.
func TestTriesAndWaits(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=1/1m sharing.mode=strict", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		type answer struct {
			next time.Time
			ok   bool
		}
		tried := make(chan answer, 1)
		go func() {
			_, next, ok := h.Lane.TryAcquire(1)
			tried <- answer{next, ok}
		}()
		time.Sleep(ms) // it is asked for
		c := e.wait(t.Context(), h, 1, -1)
		assert.Empty(t, tried)
		time.Sleep(20 * ms)
		a := <-tried
		assert.False(t, a.ok)
		assert.InDelta(t, 60, a.next.Sub(e.start).Seconds(), 0.2)
		assert.False(t, c.over())
		assert.Equal(t, 1, h.State().Waiting)
		time.Sleep(61 * time.Second)
		assert.True(t, c.over())
	})
	run(t, 100*ms, orders+" messageRate=1/1m sharing.mode=strict", func(t *testing.T, e *fixture) {
		h := e.open("")
		go func() {
			time.Sleep(50 * ms)
			h.Close()
		}()
		_, next, ok := h.Lane.TryAcquire(1)
		assert.False(t, ok)
		assert.Equal(t, time.Minute, time.Until(next), "closed")
		assert.Equal(t, 50*ms, e.since())
		time.Sleep(time.Second)
	})
}

// TestMaxPermits bounds what one call asks for.
func TestMaxPermits(t *testing.T) {
	run(t, 0, orders+" messageRate=10", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1<<40, -1)
		assert.Equal(t, 1, g.N)
		g.Settle(1<<40, 0)
		assert.EqualValues(t, engine.MaxPermits-1, only(h).Owed)
	})
}
