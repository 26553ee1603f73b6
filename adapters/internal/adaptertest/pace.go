package adaptertest

import (
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// orderAndPace: the messages of a partition come in order, and none before its permit.
func orderAndPace(w *world) {
	w.create(3)
	w.lim.Set(always(policy.Policy{MessageRate: policy.PerSecond(200)}))
	w.fill(100)
	c, start := w.open(), time.Now()
	w.inOrder(c, 300, map[int]int{})
	require.Greater(w, time.Since(start), 1250*time.Millisecond, "300/200 s, less 250 ms")
	require.EqualValues(w, 300, w.charged())
}

// exactBytes: a limit of bytes is charged what the messages have.
func exactBytes(w *world) {
	w.create(1)
	w.lim.Set(always(policy.Policy{ByteRate: policy.PerSecond(200 * size)}))
	w.fill(300)
	c, start := w.open(), time.Now()
	w.inOrder(c, 300, map[int]int{})
	require.Greater(w, time.Since(start), 1250*time.Millisecond, "300/200 s, less 250 ms")
	for _, l := range w.lim.Stats().Subscriptions[0].Limits {
		assert.EqualValues(w, 300*size, l.Granted-l.Returned+l.Owed)
	}
}

// setAndLifted: a limit that is set while messages are read holds from then on, and one that is
// lifted ends a wait.
func setAndLifted(w *world) {
	w.create(1)
	w.fill(1000)
	c, next := w.open(), map[int]int{}
	w.inOrder(c, 100, next)
	w.lim.Set(always(policy.Policy{MessageRate: policy.Rate{Permits: 1, Period: time.Hour}}))
	w.inOrder(c, 1, next)
	w.none(c)
	got := w.waitFor(c)
	w.waits(1)
	w.lim.Set(policy.Policy{})
	m := <-got
	w.requireNext(m, next)
	w.settle(c, m)
	w.inOrder(c, 1000-102, next)
}

// pauses: nothing comes of a paused topic, and all of it once it is resumed.
func pauses(w *world) {
	w.create(2)
	w.fill(50)
	c, next := w.open(), map[int]int{}
	w.inOrder(c, 10, next)
	w.lim.Set(policy.Policy{Paused: new(true)})
	w.none(c)
	w.none(c)
	w.lim.Set(policy.Policy{})
	w.inOrder(c, 90, next)
}

// storeUnavailable: while the permit store does not answer, messages come at the last known share;
// none is lost.
func storeUnavailable(w *world) {
	w.create(1)
	w.lim.Set(always(policy.Policy{MessageRate: policy.PerSecond(200)}))
	w.fill(500)
	c, next := w.open(), map[int]int{}
	w.inOrder(c, 100, next)
	w.lim.LoseStore(true)
	start := time.Now()
	w.inOrder(c, 200, next)
	require.Greater(w, time.Since(start), 600*time.Millisecond, "200/200 s, less what was allocated")
	throttletest.Until(w, "the permit store is unavailable", func() bool { return w.lim.Stats().Permits.Unavailable })
	w.lim.LoseStore(false)
	w.inOrder(c, 200, next)
}
