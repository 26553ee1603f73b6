package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// strictQueue is a limit for which callers queue.
const strictQueue = orders + " messageRate=1/1m sharing.mode=strict sharing.wait=queue" +
	" sharing.maxReserved=1"

// TestWoken: a share whose turn has come asks for its slot within a tick.
func TestWoken(t *testing.T) {
	run(t, 10*ms, strictQueue, func(t *testing.T, e *fixture) {
		a, b := e.open("a"), e.open("b")
		e.acquire(a, 1, -1)
		e.wait(t.Context(), a, 1, -1) // has the next slot
		time.Sleep(100 * ms)
		e.wait(t.Context(), b, 1, -1) // is in the queue
		time.Sleep(100 * ms)
		asked := e.store.asked()
		waiter := asked[len(asked)-1].Allocate.Waiter
		assert.NotEmpty(t, waiter)
		e.store.woken("of another process")
		e.store.woken(waiter)
		time.Sleep(3 * ms) // a tick
		if assert.Len(t, e.store.asked(), len(asked)+1) {
			assert.Equal(t, waiter, e.store.asked()[len(asked)].Allocate.Waiter)
		}
		time.Sleep(100 * ms)
		assert.Len(t, e.store.asked(), len(asked)+1, "once")
	})
}

// TestNoWakes: a store that cannot wake shares is logged once, as soon as a share may queue. It is
// asked again.
func TestNoWakes(t *testing.T) {
	run(t, 10*ms, "", func(t *testing.T, e *fixture) {
		e.store.set(func(s *store) { s.noWakes = assert.AnError })
		e.open("a")
		e.apply(orders + " messageRate=10")
		e.apply(orders + " messageRate=10 sharing.mode=strict")
		time.Sleep(ms)
		assert.Zero(t, e.logged("\n"), e.log)
		e.apply(strictQueue)
		e.open("b")
		time.Sleep(ms)
		assert.Equal(t, 1, e.logged("not woken early"), e.log)
		assert.Equal(t, 1, e.logged(assert.AnError.Error()), e.log)
		e.store.set(func(s *store) { s.noWakes, s.woken = nil, nil })
		time.Sleep(11 * time.Second)
		e.store.set(func(s *store) { assert.NotNil(t, s.woken) })
	})
}
