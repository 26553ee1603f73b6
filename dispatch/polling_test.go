package dispatch_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A caller that polls with a timeout gets what a bucket with one token would give it: its slot goes
// back when it gives up.
func TestPollingWithATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: dispatch.Fixed(rate(t, "1/6s"))})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		got := 0
		for range 120 {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if _, err := sub.Acquire(ctx, 1); err == nil {
				got++
			}
			cancel()
			time.Sleep(5*second - time.Since(began))
		}
		within(t, "ten minutes", got, 60, 101)
		require.NoError(t, lim.Close())
	})
}

// The first refusals also have the time of the next permit.
func TestARefusalTellsWhenToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: dispatch.Fixed(perSecond(1000))})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		refused := 0
		for range 3 {
			_, next, ok := sub.TryAcquire(1)
			if ok { // the permit that the first call requested has been allocated meanwhile
				break
			}
			refused++
			round := 100*time.Millisecond + time.Microsecond // just after the loop's step of then
			within(t, "from now", time.Until(next), time.Millisecond, round)
		}
		assert.NotZero(t, refused, "the first comes before anything is allocated")
		require.NoError(t, lim.Close())
	})
}

// TestPolling: a caller that polls with TryAcquire reaches the limit, at any interval, with few
// requests.
func TestPolling(t *testing.T) {
	for _, every := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond} {
		limited(t, perSecond(1000), func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
			got := 0
			for start := time.Now(); time.Since(start) < 5*time.Second; time.Sleep(every) {
				if g, _, ok := sub.TryAcquire(100); ok {
					got += g.N()
				}
			}
			within(t, "every "+every.String(), got, 3500, 5200)
			within(t, "requests", int(lim.Stats().Permits.Requests), 1, 600)
		})
	}
	limited(t, perSecond(1000), func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		got := 0
		for range 10 {
			if g, _, ok := sub.TryAcquire(100); ok {
				got += g.N()
			}
			time.Sleep(time.Second)
		}
		within(t, "every second", got, 300, 1000)
	})
}

// Permits for a caller that was refused are kept until it returns: they do not expire, and are not
// requested again and again.
func TestAPatientPollerIsServed(t *testing.T) {
	for _, every := range []time.Duration{5 * second, 20 * second} {
		fleets(t, every.String(), perSecond(10), func(t *testing.T, f *fleet) {
			r := f.join(0, "group")
			const polls, max = 40, 5
			got := 0
			for range polls {
				g, _, _ := r.sub.TryAcquire(max)
				got += g.N()
				time.Sleep(every)
			}
			within(t, "permits", got, polls*max*2/5, polls*max)
			requests := 0
			f.store.Locked(func() { requests = f.store.Requests })
			within(t, "requests a permit", float64(requests)/float64(got), 0, 1.7)
		})
	}
}
