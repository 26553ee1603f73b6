// Package etcdpermits keeps the schedules of all processes in etcd: for small fleets, and for
// several data centres that prefer a quorum to speed. An allocation is one transaction that
// compares and swaps; the minority side of a network partition has no quorum and allocates
// nothing.
//
// # The clock
//
// etcd has no clock to ask, and the clocks of clients differ. The processes under a prefix share
// one that they keep by their monotonic clocks, each of which runs on from the latest time that
// any of them has published. It runs as fast as time does, agrees to some milliseconds, never
// runs back, and stands still while there is no process.
package etcdpermits

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

const (
	// DefaultTimeout bounds each call of the permit store.
	DefaultTimeout = 500 * time.Millisecond

	// DefaultDialTimeout bounds an attempt to connect. Calls wait for it no longer than for their
	// own timeout.
	DefaultDialTimeout = 5 * time.Second

	// DefaultPrefix is the prefix of all keys.
	DefaultPrefix = "/throttle"

	maxParallel = 16   // transactions at once
	maxLimits   = 4096 // remembered; the least recently used are read again
	maxLeases   = 256  // of status records remembered; the least recently used are granted again
)

// A Store is the etcd permit store. Any number of goroutines may use it at once.
type Store struct {
	config  clientv3.Config
	prefix  string
	timeout time.Duration
	slots   chan struct{}      // one for each transaction at once
	cancel  context.CancelFunc // of config.Context

	clock     *clock
	clockRuns sync.WaitGroup
	stopClock context.CancelFunc // nil while there is no client

	mu      sync.Mutex // guards the fields below, stopClock, and the order of what limit does
	attempt *attempt   // the last one to connect
	closed  bool

	limits *lru.Cache[string, *limit]           // by key
	leases *lru.Cache[string, clientv3.LeaseID] // of status records, by key
}

// Open returns a permit store on the etcd of config, under a prefix (default DefaultPrefix). Each
// call ends within timeout (0 = DefaultTimeout). The store connects when it is first used, so that
// a process can start while etcd is unavailable.
func Open(config clientv3.Config, prefix string, timeout time.Duration) *Store {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	if prefix = "/" + strings.Trim(prefix, "/"); prefix == "/" {
		prefix = DefaultPrefix
	}
	config.Logger = zap.NewNop()
	if config.DialTimeout == 0 {
		config.DialTimeout = DefaultDialTimeout
	}
	if config.Context == nil {
		config.Context = context.Background()
	}
	s := &Store{
		prefix: prefix, timeout: timeout, slots: make(chan struct{}, maxParallel),
		clock: newClock(),
	}
	s.limits, _ = lru.New[string, *limit](maxLimits) // fails only for a size of 0
	s.leases, _ = lru.New[string, clientv3.LeaseID](maxLeases)
	config.Context, s.cancel = context.WithCancel(config.Context)
	s.config = config
	return s
}

// Timeout is the longest that a call takes.
func (s *Store) Timeout() time.Duration { return s.timeout }

// Close closes the connection. A second call does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	a := s.attempt
	s.closed, s.attempt = true, nil
	stop := s.stopClock
	s.mu.Unlock()
	if stop != nil {
		stop()
		s.clockRuns.Wait()
	}
	s.cancel() // of an attempt that hangs, too
	if a == nil {
		return nil
	}
	if <-a.done; a.client == nil {
		return nil
	}
	if err := a.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd permit store: close: %w", err)
	}
	return nil
}

// Do makes the allocations of each limit in one transaction and replaces each record in one. It
// runs several transactions at once.
func (s *Store) Do(ctx context.Context, requests []*permits.Request) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	client, err := s.onTime(ctx)
	if err != nil {
		for _, r := range requests {
			r.Err = err
		}
		return
	}
	var all sync.WaitGroup
	start := func(transact func()) {
		all.Go(func() {
			s.slots <- struct{}{}
			defer func() { <-s.slots }()
			transact()
		})
	}
	allocations := map[string][]*permits.Request{}
	for _, r := range requests {
		if r.Allocate != nil {
			allocations[r.Key] = append(allocations[r.Key], r)
		}
	}
	for key, requests := range allocations {
		start(func() {
			if err := s.allocate(ctx, client, key, requests); err != nil {
				for _, r := range requests {
					r.Err = fmt.Errorf("etcd permit store: allocate: %w", err)
				}
			}
		})
	}
	for _, r := range permits.PoolRecords(requests) {
		start(func() {
			apply := func(old []byte, now float64) ([]byte, bool) {
				text := r.Apply(old, now)
				return text, text != nil
			}
			if err := s.swap(ctx, client, r.Key, r.TTL, apply); err != nil {
				r.Fail(err)
			}
		})
	}
	all.Wait()
}

// State returns the schedule of the limit with that key.
func (s *Store) State(ctx context.Context, key string) (schedule.State, float64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	client, err := s.onTime(ctx)
	if err != nil {
		return schedule.State{}, 0, err
	}
	response, err := client.Get(ctx, permits.EtcdKey(s.prefix, key))
	if err != nil {
		return schedule.State{}, 0, fmt.Errorf("etcd permit store: read %s: %w", key, err)
	}
	var found stored
	if len(response.Kvs) > 0 {
		if found, err = parse(response.Kvs[0].Value); err != nil {
			return schedule.State{}, 0, fmt.Errorf("etcd permit store: read %s: %w", key, err)
		}
	}
	now := time.Now()
	s.clock.learn(found.State.Last, now)
	return found.State, s.clock.now(now), nil
}
