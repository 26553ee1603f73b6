package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestTry: a caller that comes back when it is told to gets the rate, with at most three or four
// tries a message.
func TestTry(t *testing.T) {
	for sharing, c := range map[string]struct {
		least int     // messages in 20 s at 20/s
		tries float64 // a message, at most
	}{
		"fair":                     {370, 3.2},
		"strict":                   {250, 2.2},
		"split sharing.replicas=1": {370, 3.2},
		"groups sharing.groups=eu": {370, 3.5},
	} {
		for _, rtt := range []time.Duration{0, 10 * ms} {
			policies := orders + " messageRate=20 sharing.mode=" + sharing
			run(t, rtt, policies, func(t *testing.T, e *fixture) {
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
				assert.GreaterOrEqual(t, n, c.least, "%s, rtt %v", sharing, rtt)
				assert.LessOrEqual(t, n, 404, sharing)
				assert.LessOrEqual(t, float64(all)/float64(n), c.tries, "%s, rtt %v", sharing, rtt)
			})
		}
	}
}

// TestRefusalIsForgotten: the demand of a refused caller ends when it does not come back.
func TestRefusalIsForgotten(t *testing.T) {
	run(t, 0, orders+" messageRate=100", func(t *testing.T, e *fixture) {
		h := e.open("")
		for range 10 {
			e.empty(h)
			time.Sleep(10 * ms)
		}
		time.Sleep(10 * time.Second)
		asked := len(e.store.asked())
		time.Sleep(time.Minute)
		assert.Len(t, e.store.asked(), asked)
	})
}

// TestTryBytes: the demand of a refused caller is the bytes that its messages would be charged.
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
		want := 0.0
		for _, r := range e.store.asked()[asked:] {
			want = max(want, r.Allocate.Want)
		}
		assert.GreaterOrEqual(t, want, 10240.0)
	})
}

// strictAsked counts the requests for strict slots so far.
func (e *fixture) strictAsked() (n int) {
	for _, r := range e.store.asked() {
		if r.Allocate.Strict {
			n++
		}
	}
	return n
}

// TestTryStrict: a refused try says when the line has a free slot. Until then, tries are refused
// without a request.
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
		assert.Equal(t, 2*ms, time.Until(next), "the waiting caller comes first")
		time.Sleep(61 * time.Second)
		assert.True(t, c.over())
		assert.Equal(t, 1, c.grant.N)
	})
}

// TestTryStrictAndOthers: a try requests no slot while another limit holds it up.
func TestTryStrictAndOthers(t *testing.T) {
	strict := orders + " messageRate=10 sharing.mode=strict"
	run(t, 10*ms, strict+"\n"+billing+" byteRate=1000", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, 10)
		g.Settle(1, 5000) // a debt of bytes for 5 s
		time.Sleep(time.Second)
		e.refusedAtOnce(h)
	})
	run(t, 10*ms, strict+" maxInFlight=1", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		time.Sleep(time.Second)
		assert.Equal(t, 2*ms, e.refusedAtOnce(h))
	})
}

// refusedAtOnce fails if a try is not refused at once, without a request for a strict slot. It
// returns after what time the caller may come back.
func (e *fixture) refusedAtOnce(h *handle) time.Duration {
	e.t.Helper()
	asked, from := e.strictAsked(), time.Now()
	_, next, ok := h.Lane.TryAcquire(1)
	assert.False(e.t, ok)
	assert.Zero(e.t, time.Since(from))
	time.Sleep(time.Second)
	assert.Equal(e.t, asked, e.strictAsked())
	return next.Sub(from)
}

// TestTryTimeout: a try waits for the store's answer for the store's timeout at most.
func TestTryTimeout(t *testing.T) {
	policies := orders + " messageRate=10 sharing.mode=strict"
	run(t, 3*time.Second, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		from := time.Now()
		_, _, ok := h.Lane.TryAcquire(1)
		assert.False(t, ok)
		assert.Equal(t, 300*ms, time.Since(from))
		assert.False(t, h.Lane.Waited())
		time.Sleep(10 * time.Second)
	})
}

// TestTryAndWait: a caller that waits behind a try keeps its place when the try is refused, and is
// no demand of the try's.
func TestTryAndWait(t *testing.T) {
	policies := orders + " messageRate=1/1m sharing.mode=strict"
	run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
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
		time.Sleep(ms) // the request of the try is on its way
		c := e.wait(t.Context(), h, 1, -1)
		assert.Empty(t, tried)
		time.Sleep(20 * ms)
		a := <-tried
		assert.False(t, a.ok)
		assert.InDelta(t, 60, a.next.Sub(e.start).Seconds(), 0.2)
		assert.False(t, c.over())
		assert.Equal(t, 1, h.Stats().Waiting)
		time.Sleep(61 * time.Second)
		assert.True(t, c.over())
	})
}

// TestTryAndClose: Close answers a try.
func TestTryAndClose(t *testing.T) {
	policies := orders + " messageRate=1/1m sharing.mode=strict"
	run(t, 100*ms, policies, func(t *testing.T, e *fixture) {
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

// TestRefusedTryIsNoDemand: tries that were refused are no demand of callers that wait later.
func TestRefusedTryIsNoDemand(t *testing.T) {
	strict := orders + " messageRate=1/1m sharing.mode=strict"
	run(t, 10*ms, strict, func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		for range 100 {
			_, _, ok := h.Lane.TryAcquire(1)
			assert.False(t, ok)
			e.apply("")
			time.Sleep(100 * ms)
			e.apply(strict) // with a new share, which does not know that the line is full
		}
		e.apply(orders + " messageRate=100")
		time.Sleep(time.Second)
		asked := len(e.store.asked())
		e.acquireFor(time.Second, h, -1)
		for _, r := range e.store.asked()[asked:] {
			assert.LessOrEqual(t, r.Allocate.Demand, 250.0)
		}
	})
}

// TestRefusedNext: other callers are refused until a time that is not over, also before the loop
// has seen the refusal.
func TestRefusedNext(t *testing.T) {
	policies := orders + " messageRate=10\n" + busy + " messageRate=1000"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		e.keepTicking(2 * time.Second)
		for range 10 {
			time.Sleep(100*ms + 300*time.Microsecond)
			e.empty(h)
			next, refused := h.Lane.Admission().Only.Refused()
			assert.True(t, refused)
			assert.False(t, next.Before(time.Now()))
		}
		time.Sleep(2 * time.Second)
	})
}
