package adaptertest

import (
	"strconv"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// tags: a message is charged to the quota of its tag, and waits for it.
func tags(w *world) {
	w.create(1)
	w.fill(91)
	ids := []string{"tag:bulk", "tag:rare", "tenant:public"}
	for _, id := range ids {
		w.lim.Add(id, throttletest.Quota(1000))
	}
	c := w.openWith(Options{TagOf: func(value string) string {
		_, number := Message{Value: value}.place(w)
		return []string{"", "bulk", "rare"}[number%3]
	}})
	next := map[int]int{}
	w.inOrder(c, 90, next)
	for _, id := range ids {
		assert.EqualValues(w, 30, w.lim.Granted(id), id)
	}
	w.lim.Add("tenant:public", throttletest.Quota(0))
	w.none(c) // number 90 has no tag
	w.lim.Add("tenant:public", policy.Quota{Total: new(int64(1000 * quota.AssumedCost))})
	w.inOrder(c, 1, next)
}

// inFlight: no more than maxInFlight messages are returned and not settled.
func inFlight(w *world) {
	w.create(1)
	w.fill(60)
	w.lim.Set(always(policy.Policy{MessageRate: policy.PerSecond(1000), MaxInFlight: new(int64(3))}))
	c, next := w.open(), map[int]int{}
	for range 20 {
		var held []Message
		for range 3 {
			m := w.take(c)
			w.requireNext(m, next)
			held = append(held, m)
		}
		if next[0] == 3 {
			w.none(c)
		}
		require.EqualValues(w, 3, w.subscription().InFlight)
		for _, m := range held {
			w.settle(c, m)
		}
	}
	throttletest.Until(w, "all are settled", func() bool { return w.subscription().InFlight == 0 })
}

// caughtUp: a subscription that has caught up is not throttled, until it is behind again.
func caughtUp(w *world) {
	w.create(1)
	w.fill(200)
	w.lim.Set(policy.Policy{MessageRate: policy.PerSecond(200)})
	c, next := w.open(), map[int]int{}
	w.inOrder(c, 200, next)
	throttletest.Until(w, "messages of a subscription that has caught up are not charged", func() bool {
		throttletest.Until(w, "the subscription has caught up", func() bool { return w.subscription().Exempt })
		before := w.charged()
		w.fill(90) // no more than the threshold
		w.inOrder(c, 90, next)
		return w.charged() == before // unless the backlog was unknown for a while
	})
	w.fill(1000)
	throttletest.Until(w, "the subscription is behind", func() bool { return !w.subscription().Exempt })
	start := time.Now()
	w.inOrder(c, 300, next)
	require.Greater(w, time.Since(start), 1250*time.Millisecond, "300/200 s, less 250 ms")
}

// unknownBacklog: a subscription whose backlog is unknown counts as behind.
func unknownBacklog(w *world) {
	w.create(1)
	w.fill(10)
	w.lim.Set(policy.Policy{MessageRate: policy.PerSecond(20)})
	c, next := w.open(), map[int]int{}
	w.inOrder(c, 10, next)
	throttletest.Until(w, "the subscription has caught up", func() bool { return w.subscription().Exempt })
	show := w.HideBacklog(w)
	throttletest.Until(w, "the backlog is unknown", func() bool { return w.subscription().Backlog == -1 })
	throttletest.Until(w, "the limit applies", func() bool { return !w.subscription().Exempt })
	w.fill(40)
	start := time.Now()
	w.inOrder(c, 40, next)
	require.Greater(w, time.Since(start), 1500*time.Millisecond, "40/20 s, less what was allocated before")
	show()
	throttletest.Until(w, "the subscription has caught up", func() bool { return w.subscription().Exempt })
}

// skips: messages that are skipped use nothing of the limits.
func skips(w *world) {
	for name, p := range map[string]policy.Policy{
		"messages":  {MessageRate: policy.Rate{Permits: 10, Period: time.Hour}},
		"bytes":     {ByteRate: policy.Rate{Permits: 1000, Period: time.Hour}},
		"in flight": {MessageRate: policy.Rate{Permits: 10, Period: time.Hour}, MaxInFlight: new(int64(1))},
		"strict": {MessageRate: policy.PerSecond(20),
			Sharing: policy.Sharing{Mode: policy.Strict, PermitExpiry: policy.Duration(time.Minute)}},
	} {
		w.lim = throttletest.Open(w, always(p)) // what is used of one rate takes up a lower one
		w.create(1)
		w.fill(100)
		c, next := w.open(), map[int]int{}
		for i := range 100 {
			m := w.take(c)
			w.requireNext(m, next)
			c.Skip(m)
			c.Skip(m) // again
			w.settle(c, m)
			require.Zero(w, w.subscription().InFlight, name+", "+strconv.Itoa(i))
		}
		if name == "strict" { // where a slot may come too late to be used again
			require.Less(w, w.charged(), int64(30), name)
		} else {
			require.Zero(w, w.charged(), name)
		}
		require.NoError(w, c.Close())
	}
}
