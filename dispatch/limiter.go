package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/policy"
)

// ErrClosed reports a call on a Limiter or Subscription that has been closed.
var ErrClosed = engine.ErrClosed

// A Config says what a Limiter works with. Its zero value works: nothing is limited.
type Config struct {
	// Policies are followed; nil: no policies, nothing is limited.
	Policies PolicySource
	// Permits keeps the permits; nil: a memory permit store of this Limiter's own. The Limiter
	// does not close it.
	Permits PermitStore
	// Cluster is whose namespace overrides apply and whose permits are shared; default
	// "standalone".
	Cluster string
	// Group is the worker group of this process, for limits with sharing.mode groups; default none.
	Group string
	// Replica is the name of this process in what it publishes; default host name, process id and
	// a random part.
	Replica string
	// CacheFile keeps the policies last seen, for a start while the policy store is unavailable;
	// default none.
	CacheFile string
	// OpenTimeout is how long Open waits for the policies; default 5 s, or 1 s if CacheFile can be
	// read.
	OpenTimeout time.Duration
	// Logger gets what goes wrong and is right again; nil: silent.
	Logger *slog.Logger
	// OnClose is called at the end of Close, for what was opened for the Limiter; default nothing.
	OnClose func() error
	// CostSample is the probability with which a message's cost is counted (see Backend), and
	// scaled back; default 1.
	CostSample float64
	// Rand is for jitter and nonces; no other goroutine may use it. nil: seeded at random.
	Rand *rand.Rand
}

// A Limiter keeps the permits of one process. Any number of goroutines may use it at once.
type Limiter struct {
	cfg    Config
	log    *slog.Logger
	engine *engine.Engine
	stop   context.CancelFunc
	done   sync.WaitGroup
	tags   atomic.Pointer[map[string]bool] // that have a quota

	mu       sync.Mutex // guards the fields below
	closed   bool
	snapshot policy.Snapshot
	invalid  int   // stored policies that are not in force
	source   error // why the policies could not be read lately; nil: they were
	backends map[string]*Backend

	cacheMu  sync.Mutex   // held while the cache file is written
	replicas atomic.Int64 // of the cluster, when they were last counted; 0 = never
}

// Open starts a Limiter: it reads the policies and follows them until Close. ctx bounds the
// opening only. If the policies cannot be read within Config.OpenTimeout, Open uses those of the
// cache file, logs this and goes on trying; without a cache file it fails. It does not wait after
// an error, unless the error has a method Timeout that returns true: then the store did not
// answer.
func Open(ctx context.Context, cfg Config) (*Limiter, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("dispatch: open: %w", err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &Limiter{
		cfg: cfg, log: cfg.Logger, stop: stop, backends: map[string]*Backend{},
		snapshot: policy.Snapshot{Set: policy.Single(policy.Policy{})},
		engine: engine.Start(engine.Config{
			Store: cfg.Permits, Cluster: cfg.Cluster, WorkerGroup: cfg.Group,
			Replica: cfg.Replica, Log: cfg.Logger, Rand: cfg.Rand,
		}),
	}
	if err := l.openPolicies(ctx, running); err != nil {
		stop()
		l.done.Wait()
		l.engine.Close()
		return nil, err
	}
	l.done.Go(func() { l.publish(running) })
	l.done.Go(func() { l.followRates(running) })
	return l, nil
}

// withDefaults returns the config with its defaults filled in, and all its faults.
func (cfg Config) withDefaults() (Config, error) {
	var errs []error
	if cfg.Cluster == "" {
		cfg.Cluster = "standalone"
	}
	if err := policy.NamespaceScope("any", cfg.Cluster, "any").Validate(); err != nil {
		errs = append(errs, fmt.Errorf("cluster: %w", err))
	}
	if cfg.CostSample == 0 {
		cfg.CostSample = 1
	}
	if !(cfg.CostSample >= minSample && cfg.CostSample <= 1) {
		errs = append(errs, fmt.Errorf("CostSample %v: invalid probability: want %v to 1",
			cfg.CostSample, minSample))
	}
	if cfg.OpenTimeout < 0 {
		errs = append(errs, fmt.Errorf(
			"OpenTimeout %v: is negative: want 0 for the default, or more", cfg.OpenTimeout))
	}
	if cfg.Permits == nil {
		cfg.Permits = memory.New()
	}
	if cfg.Policies == nil {
		cfg.Policies = Fixed(policy.Policy{})
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if cfg.Replica == "" {
		host, _ := os.Hostname() // an empty name is fine
		cfg.Replica = fmt.Sprintf("%s-%d-%04x", host, os.Getpid(), cfg.Rand.Uint32N(1<<16))
	}
	return cfg, errors.Join(errs...)
}

// Close ends the Limiter and joins what it started. Callers that wait get ErrClosed; permits that
// are allocated and not spent are given back. A second call does nothing.
func (l *Limiter) Close() error {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.mu.Unlock()
	if closed {
		return nil
	}
	l.stop()
	l.engine.Close()
	l.done.Wait()
	if l.cfg.OnClose != nil {
		return l.cfg.OnClose()
	}
	return nil
}
