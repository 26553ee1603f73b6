// Package shapes tests permit stores and policy stores as they run in production: Redis as a
// Cluster, behind Sentinels, over TLS and with users of few rights; etcd over TLS with a password.
// Each is opened by its URL.
package shapes

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// open opens a permit store whose calls may take 10 s, since the machine may be busy.
func open(t *testing.T, url string) dispatch.PermitStore {
	t.Helper()
	return openTimed(t, services.Patient(url))
}

// openTimed opens a permit store with the time-out of its URL, by default the usual one.
func openTimed(t *testing.T, url string) dispatch.PermitStore {
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

// works waits until a permit store can allocate, read a state, publish, and read published records.
func works(t *testing.T, store dispatch.PermitStore) {
	t.Helper()
	key, cluster := "throttle:limit:{"+services.Name(t)+"}", services.Name(t)
	throttletest.Until(t, "the permit store does all that it can", func() bool {
		if allocate(t, store, allocation(key)) != nil {
			return false
		}
		s, _, err := store.State(t.Context(), key)
		if err != nil || store.Publish(t.Context(), cluster, "replica", []byte("status"), time.Minute) != nil {
			return false
		}
		published, err := store.Published(t.Context(), cluster)
		return err == nil && s.Rate == 1000 && reflect.DeepEqual(published, [][]byte{[]byte("status")})
	})
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
	mu      sync.Mutex
	start   time.Time
	at      []time.Time    // of each message
	longest time.Duration  // allocation
	state   schedule.State // at the end
}

// drain runs n Limiters, each with its own connection and the usual time-out, at a limit until
// disturb returns.
func drain(t *testing.T, n int, url string, p policy.Policy, disturb func(r *run, key string)) *run {
	t.Helper()
	r := &run{}
	topic := policy.Topic{Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: "orders"}
	cluster := services.Name(t)
	key := permits.LimitKey(cluster, policy.TopicScope(topic), false)
	ctx, cancel := context.WithCancel(t.Context())
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
	for i := range n {
		store := &timed{PermitStore: openTimed(t, url)}
		throttletest.Until(t, "the store allocates", func() bool {
			return allocate(t, store, allocation("throttle:limit:{warm-up}")) == nil
		})
		store.longest = 0
		if i == 0 {
			r.start = time.Now()
		}
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
				r.mu.Lock()
				r.at = append(r.at, time.Now())
				r.mu.Unlock()
				g.Done(g.N(), 0)
			}
		})
	}
	disturb(r, key)
	require.NoError(t, patiently(func() (err error) {
		r.state, _, err = stores[0].State(ctx, key)
		return err
	}))
	return r
}

// more waits until n messages more have been dispatched.
func (r *run) more(t *testing.T, n int) {
	t.Helper()
	dispatched := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.at)
	}
	before := dispatched()
	require.Eventually(t, func() bool { return dispatched() >= before+n }, throttletest.Patience, time.Millisecond,
		"%d messages more than %d", n, before)
}

// neverOver checks that no more was dispatched since the start than a rate allows, and extra.
func (r *run) neverOver(t *testing.T, rate float64, slack time.Duration, extra float64) {
	t.Helper()
	var all []window.Event
	for _, at := range r.at {
		all = append(all, window.Event{At: at.Sub(r.start), N: 1})
	}
	assert.NoError(t, window.WithinRate(rate, slack, extra, all))
}

// between counts the messages dispatched in [from, from+d).
func (r *run) between(from time.Time, d time.Duration) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.at {
		if !at.Before(from) && at.Before(from.Add(d)) {
			n++
		}
	}
	return n
}

// window returns the highest number of messages in any second.
func (r *run) window() int { return window.Max(time.Second, window.Times(r.at)) }
