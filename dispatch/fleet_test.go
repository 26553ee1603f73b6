package dispatch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/policy"
)

const topic = "kafka://public/default/orders"

// A fleet is replicas in a synctest bubble that share one store.
type fleet struct {
	t        *testing.T
	store    *permitstest.Store
	policies *permitstest.Policies
	start    time.Time
	stop     context.CancelFunc
	ctx      context.Context
	wg       sync.WaitGroup
	joined   []*replica
	cache    string // directory of the replicas' cache files; "" = none

	dispatched *window.Record // by the replicas' numbers

	mu    sync.Mutex
	waits map[int][]time.Duration
}

func newFleet(t *testing.T, seed uint64, p policy.Policy) *fleet {
	t.Helper()
	if testing.Short() {
		t.Skip("a fleet takes long with the race detector")
	}
	f := &fleet{
		t: t, store: permitstest.NewStore(seed, nil), policies: new(permitstest.Policies), start: time.Now(),
		dispatched: window.NewRecord(), waits: map[int][]time.Duration{},
	}
	f.ctx, f.stop = context.WithCancel(t.Context())
	f.policies.Set(policy.Single(p))
	t.Logf("seed %d", seed)
	return f
}

// A replica is a simulated process.
type replica struct {
	*fleet
	id   int
	link *permitstest.Link
	lim  *dispatch.Limiter
	sub  *dispatch.Subscription
	stop context.CancelFunc
	ctx  context.Context
}

func (f *fleet) join(id int, subscription string) *replica { return f.joinGroup(id, subscription, "") }

// joinGroup adds a replica in a worker group.
func (f *fleet) joinGroup(id int, subscription, group string) *replica {
	r := &replica{fleet: f, id: id, link: &permitstest.Link{Store: f.store}}
	var err error
	cache := ""
	if f.cache != "" {
		cache = filepath.Join(f.cache, "policies.json")
	}
	r.lim, err = dispatch.Open(f.ctx, dispatch.Config{
		Policies: f.policies, Permits: r.link, Group: group, CacheFile: cache,
		Rand: rand.New(rand.NewPCG(uint64(id), 7)),
	})
	require.NoError(f.t, err)
	r.sub, err = r.lim.Subscription(topic, subscription)
	require.NoError(f.t, err)
	r.ctx, r.stop = context.WithCancel(f.ctx)
	f.joined = append(f.joined, r)
	return r
}

func (f *fleet) record(replica, n int) { f.dispatched.Add(replica, n) }

// greedy takes up to max permits at a time, until the replica ends.
func (r *replica) greedy(max int) {
	r.wg.Go(func() {
		for {
			g, err := r.sub.Acquire(r.ctx, max)
			if err != nil {
				return
			}
			r.record(r.id, g.N())
		}
	})
}

// poisson acquires one permit at random times, rate a second on average, and records the waits.
func (r *replica) poisson(rate float64, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, uint64(r.id)))
	r.wg.Go(func() {
		next := time.Now()
		for r.ctx.Err() == nil {
			next = next.Add(time.Duration(rng.ExpFloat64() / rate * float64(time.Second)))
			time.Sleep(time.Until(next))
			arrived := next
			if _, err := r.sub.Acquire(r.ctx, 1); err != nil {
				return
			}
			r.record(r.id, 1)
			r.mu.Lock()
			r.waits[r.id] = append(r.waits[r.id], time.Since(arrived))
			r.mu.Unlock()
		}
	})
}

// leave stops the replica cleanly.
func (r *replica) leave() {
	r.stop()
	require.NoError(r.t, r.lim.Close())
}

// crash cuts the replica off: no request of it reaches the store.
func (r *replica) crash() {
	r.store.Locked(func() { r.link.Cut = true })
	r.stop()
}

func (f *fleet) end() {
	f.stop()
	f.wg.Wait()
	for _, r := range f.joined {
		require.NoError(f.t, r.lim.Close())
	}
	f.store.Wait()
}

// between returns the permits dispatched in [from, to).
func (f *fleet) between(from, to time.Duration) int { return f.dispatched.Between(from, to) }

// by returns the permits that one replica dispatched in [from, to).
func (f *fleet) by(id int, from, to time.Duration) int { return f.dispatched.By(id, from, to) }

// window returns the most permits dispatched in any interval of length d from a time on.
func (f *fleet) window(d, from time.Duration) int { return f.dispatched.Max(d, from) }

// p99 is the 99th percentile of a replica's waits.
func (f *fleet) p99(id int) time.Duration {
	f.mu.Lock()
	w := slices.Sorted(slices.Values(f.waits[id]))
	f.mu.Unlock()
	if len(w) == 0 {
		return 0
	}
	return w[len(w)*99/100]
}

func (f *fleet) requestsPerMessage() float64 {
	var requests int
	f.store.Locked(func() { requests = f.store.Requests })
	return float64(requests) / float64(max(1, f.between(0, time.Hour)))
}

func (f *fleet) String() string {
	return fmt.Sprintf("dispatched %d, any second %d, %.4f requests a message", f.between(0, time.Hour),
		f.window(time.Second, 0), f.requestsPerMessage())
}

func rate(t testing.TB, text string) policy.Policy {
	t.Helper()
	r, err := policy.ParseRate(text)
	require.NoError(t, err)
	return policy.Policy{MessageRate: r}
}
