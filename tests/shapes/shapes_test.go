// Package shapes tests permit stores and policy stores as they run in production: Redis as a
// Cluster, behind Sentinels, over TLS and with users of few rights; etcd over TLS with a password.
// Each is opened by its URL.
package shapes

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/window"
)

func open(t *testing.T, url string) dispatch.PermitStore {
	t.Helper()
	store, err := throttle.OpenPermits(url)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	return store
}

// allocation requests ten permits of 1000/s.
func allocation(key string) *permits.Request {
	return &permits.Request{Key: key, Allocate: &permits.Allocate{Request: schedule.Request{
		Subscription: "group", Weight: 1, Demand: 1000, Want: 10, Round: 0.1, Rate: 1000, Rev: schedule.Revision{Number: 1},
		Nonce: 7,
	}}}
}

func allocate(t *testing.T, store dispatch.PermitStore, r *permits.Request) error {
	store.Do(t.Context(), []*permits.Request{r})
	return r.Err
}

// works checks that a permit store can allocate, read a state, publish, and read published records.
// It tries again for a while, since a first connection may take longer than a call may.
func works(t *testing.T, store dispatch.PermitStore) {
	t.Helper()
	key, cluster := "throttle:limit:{"+services.Name(t)+"}", services.Name(t)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.NoError(c, allocate(t, store, allocation(key)))
		s, _, err := store.State(t.Context(), key)
		require.NoError(c, err)
		assert.Equal(c, 1000.0, s.Rate)
		require.NoError(c, store.Publish(t.Context(), cluster, "replica", []byte("status"), time.Minute))
		published, err := store.Published(t.Context(), cluster)
		require.NoError(c, err)
		assert.Equal(c, [][]byte{[]byte("status")}, published)
	}, 5*time.Second, 50*time.Millisecond)
}

// secret writes a password to a file and returns its name.
func secret(t *testing.T, password string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(name, []byte(password+"\n"), 0o600))
	return name
}

// timed is a permit store that records its longest allocation.
type timed struct {
	dispatch.PermitStore
	mu      sync.Mutex
	longest time.Duration
}

func (l *timed) Do(ctx context.Context, requests []*permits.Request) {
	start := time.Now()
	l.PermitStore.Do(ctx, requests)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.longest = max(l.longest, time.Since(start))
}

// A run records what Limiters dispatched.
type run struct {
	at      []time.Time    // of each message
	longest time.Duration  // allocation
	state   schedule.State // at the end
}

// drain runs n Limiters, each with its own connection, at a limit until disturb returns.
func drain(t *testing.T, n int, url string, p policy.Policy, disturb func(key string)) (r run) {
	t.Helper()
	topic := policy.Topic{Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: "orders"}
	cluster := services.Name(t)
	key := permits.LimitKey(cluster, policy.TopicScope(topic), false)
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var consumers sync.WaitGroup
	var stores []*timed
	defer func() {
		cancel()
		consumers.Wait()
		slices.SortFunc(r.at, time.Time.Compare)
		for _, l := range stores {
			r.longest = max(r.longest, l.longest)
		}
	}()
	for range n {
		store := &timed{PermitStore: open(t, url)}
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			assert.NoError(c, allocate(t, store, allocation("throttle:limit:{warm-up}")))
		}, 5*time.Second, 50*time.Millisecond)
		store.longest = 0
		lim, err := dispatch.Open(ctx, dispatch.Config{Policies: dispatch.Fixed(p), Permits: store, Cluster: cluster})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic.String(), "group")
		require.NoError(t, err)
		stores = append(stores, store)
		consumers.Go(func() {
			defer func() { assert.NoError(t, lim.Close()) }()
			for {
				g, err := sub.Acquire(ctx, 1)
				if err != nil {
					return
				}
				mu.Lock()
				r.at = append(r.at, time.Now())
				mu.Unlock()
				g.Done(g.N(), 0)
			}
		})
	}
	disturb(key)
	var err error
	r.state, _, err = stores[0].State(ctx, key)
	require.NoError(t, err)
	return r
}

// between counts the messages dispatched in [from, from+d).
func (r run) between(from time.Time, d time.Duration) (n int) {
	for _, at := range r.at {
		if !at.Before(from) && at.Before(from.Add(d)) {
			n++
		}
	}
	return n
}

// window returns the highest number of messages in any second.
func (r run) window() int { return window.Max(time.Second, window.Times(r.at)) }

// gap returns the longest time without a message.
func (r run) gap() (longest time.Duration) {
	for i := range r.at[1:] {
		longest = max(longest, r.at[i+1].Sub(r.at[i]))
	}
	return longest
}
