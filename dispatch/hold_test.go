package dispatch_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/policy"
)

// A recorder counts the permits that replicas return to the permit store.
type recorder struct {
	dispatch.PermitStore
	mu       sync.Mutex
	returned float64
}

func (r *recorder) Do(ctx context.Context, requests []*permits.Request) {
	r.mu.Lock()
	for _, q := range requests {
		if q.Allocate != nil {
			r.returned += q.Allocate.Returned
		}
	}
	r.mu.Unlock()
	r.PermitStore.Do(ctx, requests)
}

// hoard acquires n permits, as fast as possible.
func hoard(t *testing.T, sub *dispatch.Subscription, n int, hold time.Duration) (grants []dispatch.Grant) {
	t.Helper()
	for n > 0 {
		g, err := sub.Acquire(t.Context(), n)
		require.NoError(t, err)
		if hold > 0 {
			g.Hold(hold)
		}
		n -= g.N()
		grants = append(grants, g)
	}
	return grants
}

// TestHold: a Grant that is held can give back its permits after two batches, too, up to 3 s. They
// go to other callers, or to the permit store if there are none.
func TestHold(t *testing.T) {
	second := time.Second
	for name, c := range map[string]struct {
		sharing     policy.SharingMode
		hold, after time.Duration
		back        bool
	}{
		"no hold":       {"", 0, second, false},
		"held":          {"", 2 * second, second, true},
		"held too long": {"", 2 * second, 3 * second, false},
		"at most 3 s":   {"", time.Minute, 4 * second, false},
		"split":         {policy.Split, 2 * second, second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &recorder{PermitStore: memory.New()}
				p := perSecond(100)
				p.Sharing.Mode = c.sharing
				if c.sharing == policy.Split {
					p.Sharing.Replicas = new(int64(1))
				}
				lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: dispatch.Fixed(p), Permits: store})
				require.NoError(t, err)
				sub, err := lim.Subscription(topic, "group")
				require.NoError(t, err)
				giveBack := func() {
					grants := hoard(t, sub, 50, c.hold)
					time.Sleep(c.after) // the idle replica gives back its permits, and stops its requests
					for i := range grants {
						grants[i].Done(0, 0)
					}
				}
				giveBack()
				g, _, _ := sub.TryAcquire(50)
				if c.back {
					assert.Equal(t, 50, g.N())
				} else {
					assert.Less(t, g.N(), 15)
				}
				g.Done(g.N(), 0)

				time.Sleep(5 * second)
				store.mu.Lock()
				before := store.returned
				store.mu.Unlock()
				giveBack()
				time.Sleep(second)
				store.mu.Lock()
				returned := store.returned - before
				if c.back {
					assert.GreaterOrEqual(t, returned, 50.)
				} else {
					assert.Less(t, returned, 25.)
				}
				store.mu.Unlock()
				require.NoError(t, lim.Close())
			})
		})
	}
}

// TestHoldBound: one of two replicas holds permits for a second and gives back most of them. In
// any interval, both together use at most the rate times (the interval + the hold).
func TestHoldBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, hold = 100., time.Second
		store := memory.New()
		var mu sync.Mutex
		var used []time.Time
		var running sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		use := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			for range n {
				used = append(used, time.Now())
			}
		}
		replica := func(name string, work func(*dispatch.Subscription)) {
			lim, err := dispatch.Open(t.Context(), dispatch.Config{
				Policies: dispatch.Fixed(perSecond(rate)), Permits: store, Replica: name,
			})
			require.NoError(t, err)
			sub, err := lim.Subscription(topic, "group")
			require.NoError(t, err)
			running.Go(func() {
				for ctx.Err() == nil {
					work(sub)
				}
				assert.NoError(t, lim.Close())
			})
		}
		replica("steady", func(sub *dispatch.Subscription) {
			if g, err := sub.Acquire(ctx, 10); err == nil {
				use(g.N())
				g.Done(g.N(), 0)
			}
		})
		replica("holds", func(sub *dispatch.Subscription) {
			grants := hoard(t, sub, 30, hold)
			time.Sleep(hold / 2)
			for i := range grants {
				n := grants[i].N() * (i % 2) // gives back every other one
				use(n)
				grants[i].Done(n, 0)
			}
		})
		time.Sleep(60 * time.Second)
		cancel()
		running.Wait()
		for _, d := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
			highest := window.Max(d, window.Times(used))
			assert.LessOrEqual(t, float64(highest), rate*(d+hold+250*time.Millisecond).Seconds(), "in %v", d)
		}
		assert.GreaterOrEqual(t, float64(len(used)), 0.9*rate*60)
		assert.LessOrEqual(t, float64(len(used)), rate*61.25)
	})
}
