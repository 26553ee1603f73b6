package adaptertest

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// cancels: a call that ends while its message waits returns no message, and a later one gets it.
func cancels(w *world) {
	w.create(1)
	w.fill(50)
	w.lim.Set(policy.Policy{Paused: new(true)})
	c := w.open()
	for range 3 {
		w.none(c)
	}
	w.lim.Set(policy.Policy{})
	w.inOrder(c, 50, map[int]int{})
}

// deadlines: whenever the contexts of calls end, each message comes once, and uses one permit.
func deadlines(w *world) {
	w.create(1)
	w.lim.Set(always(policy.Policy{MessageRate: policy.PerSecond(300)}))
	w.fill(300)
	c, next := w.open(), map[int]int{}
	for n := 0; n < 300; {
		ctx, cancel := context.WithTimeout(w.Context(), rand.N(20*time.Millisecond))
		m, err := c.Next(ctx)
		cancel()
		if err != nil {
			require.ErrorIs(w, err, context.DeadlineExceeded)
			continue
		}
		w.requireNext(m, next)
		w.settle(c, m)
		n++
	}
	throttletest.Until(w, "what was taken for calls that ended has gone back", func() bool { return w.charged() == 300 })
}

// closes: Close ends the calls that wait for a permit. A message that waited comes to the next
// consumer of the group.
func closes(w *world) {
	w.create(1)
	w.fill(50)
	c, next := w.open(), map[int]int{}
	w.inOrder(c, 10, next)
	w.lim.Set(policy.Policy{Paused: new(true)})
	ended := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := c.Next(context.Background())
			ended <- err
		}()
	}
	w.waits(1)
	start := time.Now()
	require.NoError(w, c.Close())
	for range 3 {
		require.Error(w, <-ended)
	}
	require.Less(w, time.Since(start), throttletest.Patience, "the permit that it waits for never comes")
	_, err := c.Next(context.Background())
	require.Error(w, err)
	require.NoError(w, c.Close(), "a second Close does nothing")
	require.Empty(w, w.lim.Stats().Subscriptions)
	w.lim.Set(policy.Policy{})
	w.inOrder(w.open(), 40, next)
}

// limiterClosesFirst: calls return dispatch.ErrClosed once the Limiter is closed, and messages that
// waited are not lost.
func limiterClosesFirst(w *world) {
	w.create(1)
	w.fill(5)
	w.lim.Set(policy.Policy{Paused: new(true)})
	c := w.open()
	ended := make(chan error, 1)
	go func() {
		_, err := c.Next(context.Background())
		ended <- err
	}()
	w.waits(1)
	require.NoError(w, w.lim.Close())
	require.ErrorIs(w, <-ended, dispatch.ErrClosed)
	ctx, cancel := w.patient()
	defer cancel()
	_, err := c.Next(ctx)
	require.ErrorIs(w, err, dispatch.ErrClosed)
	require.NoError(w, c.Close())
	w.lim = throttletest.Open(w, policy.Policy{})
	w.inOrder(w.open(), 5, map[int]int{})
}

// seeks: a seek drops the message that waits, also where it is the first of those that follow.
func seeks(w *world) {
	w.create(1)
	w.fill(50)
	c := w.openWith(Options{Alone: true})
	w.inOrder(c, 10, map[int]int{})
	w.lim.Set(policy.Policy{Paused: new(true)})
	w.none(c)
	ctx, cancel := w.patient()
	defer cancel()
	require.NoError(w, c.Rewind(ctx))
	w.lim.Set(policy.Policy{})
	w.inOrder(c, 20, map[int]int{})
	w.lim.Set(policy.Policy{Paused: new(true)})
	got := w.waitFor(c)
	w.waits(1)
	require.NoError(w, c.Rewind(ctx))
	w.lim.Set(policy.Policy{})
	next := map[int]int{}
	w.requireNext(<-got, next)
	w.inOrder(c, 49, next)
}

// manyGoroutines: goroutines that share a consumer, and give up at random, get each message once,
// for one permit, and each of them gets those of a partition in order.
func manyGoroutines(w *world) {
	const partitions, each, goroutines = 4, 250, 200
	w.create(partitions)
	w.fill(each)
	w.lim.Set(always(policy.Policy{MessageRate: policy.PerSecond(500)}))
	c := w.open()
	all, done := w.patient()
	defer done()
	var mu sync.Mutex
	seen := map[string]int{}
	var running sync.WaitGroup
	for range goroutines {
		running.Go(func() {
			last := map[int]int{}
			for all.Err() == nil {
				ctx, cancel := context.WithTimeout(all, rand.N(200*time.Millisecond))
				m, err := c.Next(ctx)
				cancel()
				if err != nil {
					continue
				}
				partition, number := m.place(w)
				before, found := last[partition]
				assert.True(w, !found || number > before, "partition %d: %d after %d", partition, number, before)
				last[partition] = number
				mu.Lock()
				seen[m.Value]++
				if len(seen) == partitions*each {
					done()
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	require.Len(w, seen, partitions*each)
	for value, n := range seen {
		require.Equal(w, 1, n, value)
	}
	throttletest.Until(w, "each message has used one permit", func() bool { return w.charged() == partitions*each })
}
