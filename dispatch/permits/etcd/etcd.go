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
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/internal/etcdclient"
	"github.com/dispatchthrottle/throttle/internal/role"
	"github.com/dispatchthrottle/throttle/policy"
)

const (
	// DefaultTimeout bounds each call of the permit store at first.
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
	timeout *permits.Timeout
	slots   chan struct{}               // one for each transaction at once
	cancel  context.CancelFunc          // of config.Context
	tls     func() (*tls.Config, error) // nil: no TLS

	space    space
	clock    *clock
	runs     sync.WaitGroup
	stopRuns context.CancelFunc // nil while there is no client

	mu      sync.Mutex // guards the fields below, stopRuns, and the order of what limit does
	attempt *attempt   // the last one to connect
	closed  bool
	fastest time.Duration // see usual; 0 = unknown

	limits *lru.Cache[string, *limit]           // by key
	leases *lru.Cache[string, clientv3.LeaseID] // of status records, by key
}

// An Option changes how a Store connects.
type Option func(*Store)

// WithPassword asks for the password of config's user at each login, in place of config's.
func WithPassword(password func() (string, error)) Option {
	return func(s *Store) { etcdclient.Ask(&s.config, password, nil) }
}

// WithTLS asks for the TLS configuration at each connection, in place of config's.
func WithTLS(secure func() (*tls.Config, error)) Option {
	return func(s *Store) {
		s.tls = secure
		etcdclient.Ask(&s.config, nil, secure)
	}
}

// Open returns a permit store on the etcd of config, under a prefix (default DefaultPrefix). A call
// ends within timeout (0 = DefaultTimeout), which adapts to slower servers as a [permits.Timeout].
// The store connects when it is first used, so that a process can start while etcd is unavailable.
func Open(
	config clientv3.Config, prefix string, timeout time.Duration, opts ...Option,
) *Store {
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
	// Replicas come back together: those that are back share what the others still use on their own.
	config.DialOptions = append(config.DialOptions, grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{
			BaseDelay: 100 * time.Millisecond, Multiplier: 1.2, Jitter: 0.2, MaxDelay: 300 * time.Millisecond,
		},
		MinConnectTimeout: timeout,
	}))
	if config.Context == nil {
		config.Context = context.Background()
	}
	s := &Store{
		prefix: prefix, timeout: permits.NewTimeout(timeout), slots: make(chan struct{}, maxParallel),
		clock: newClock(),
	}
	s.limits, _ = lru.New[string, *limit](maxLimits) // fails only for a size of 0
	s.leases, _ = lru.New[string, clientv3.LeaseID](maxLeases)
	config.Context, s.cancel = context.WithCancel(config.Context)
	if config.TLS != nil {
		s.tls = func() (*tls.Config, error) { return config.TLS, nil }
	}
	s.config = config
	for _, opt := range opts {
		opt(s)
	}
	return s
}

// Prefix is the prefix of all keys.
func (s *Store) Prefix() string { return s.prefix }

// Endpoints returns the host:port of each etcd that the store was opened with.
func (s *Store) Endpoints() []string { return slices.Clone(s.config.Endpoints) }

// Timeout is the longest that a call takes that begins now.
func (s *Store) Timeout() time.Duration { return s.timeout.Current() }

// Close closes the connection. A second call does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	a := s.attempt
	s.closed, s.attempt = true, nil
	stop := s.stopRuns
	s.mu.Unlock()
	if stop != nil {
		stop()
		s.runs.Wait()
	}
	s.cancel() // of an attempt that hangs, too
	if a == nil {
		return nil
	}
	<-a.done
	if a.client == nil {
		return nil
	}
	if err := a.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return wrap("close", err)
	}
	return nil
}

// Do makes the allocations of each limit in one transaction and replaces each record in one. It
// runs several transactions at once.
func (s *Store) Do(ctx context.Context, requests []*permits.Request) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	client, err := s.writable(ctx)
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
					r.Err = wrap("allocate "+key, err)
				}
			}
		})
	}
	for _, r := range permits.PoolRecords(requests) {
		start(func() {
			apply := func(old []byte, now float64) ([]byte, time.Duration, bool) {
				text := r.Apply(old, now)
				return text, r.TTL, text != nil
			}
			if err := s.swap(ctx, client, r.Key, apply); err != nil {
				r.Fail(err)
			}
		})
	}
	all.Wait()
}

// State returns the schedule of the limit with that key.
func (s *Store) State(ctx context.Context, key string) (schedule.State, float64, error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	client, err := s.onTime(ctx)
	if err != nil {
		return schedule.State{}, 0, err
	}
	response, err := client.Get(ctx, permits.EtcdKey(s.prefix, key))
	if err != nil {
		return schedule.State{}, 0, wrap("read "+key, err)
	}
	var found stored
	if len(response.Kvs) > 0 {
		if found, err = parse(response.Kvs[0]); err != nil {
			return schedule.State{}, 0, wrap("read "+key, err)
		}
	}
	now := time.Now()
	s.clock.learnState(found.State.Last, now)
	return found.State, s.clock.now(now), nil
}

// Health asks etcd how it is. It takes the right to read the limits of the cluster.
func (s *Store) Health(ctx context.Context, cluster string) (etcdclient.Health, error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	client, err := s.onTime(ctx)
	if err != nil {
		return etcdclient.Health{}, err
	}
	h, err := etcdclient.HealthOf(ctx, client, permits.EtcdKey(s.prefix, permits.LimitKey(cluster, policy.ClusterScope(), false)))
	if err != nil {
		err = wrap("ask for its state", err)
	}
	return h, err
}

// wrap adds what failed and, if the user lacks a right, how it is granted.
func wrap(doing string, err error) error {
	if role.DeniedByEtcd(err) {
		err = role.Denied(err, role.Etcd, "")
	}
	return fmt.Errorf("etcd permit store: %s: %w", doing, err)
}
