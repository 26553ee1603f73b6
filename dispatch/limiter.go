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

// A Config configures a Limiter. The zero value is valid: nothing is limited.
type Config struct {
	// Policies are followed while they change. Nil: no policies, nothing is limited.
	Policies PolicySource
	// Permits keeps the permits. Nil: a memory permit store of this Limiter alone. The Limiter
	// does not close it.
	Permits PermitStore
	// Cluster is the cluster whose namespace overrides apply and whose permits are shared.
	// Default: "standalone".
	Cluster string
	// Group is the worker group of this process, for limits with sharing.mode groups. Default:
	// none.
	Group string
	// Replica is the name of this process in its status records. Default: host name, process id
	// and a random part.
	Replica string
	// CacheFile keeps the last policies, for a start while the policy store is unavailable.
	// Default: none.
	CacheFile string
	// OpenTimeout is how long Open waits for the policies. Default: 5 s, or 1 s if CacheFile can
	// be read.
	OpenTimeout time.Duration
	// Logger gets failures and recoveries. Nil: slog.Default().
	Logger *slog.Logger
	// OnClose is called at the end of Close, to close resources opened for the Limiter. Default:
	// none.
	OnClose func() error
	// CostSample is the probability with which the cost of a message is counted (see Backend);
	// counts are scaled accordingly. Default: 1.
	CostSample float64
	// Rand is for jitter and nonces; no other goroutine may use it. Nil: randomly seeded.
	Rand *rand.Rand
}

// A Limiter keeps the permits of one process. Any number of goroutines may use it at once.
type Limiter struct {
	cfg    Config
	log    *slog.Logger
	engine *engine.Engine
	stop   context.CancelFunc
	done   sync.WaitGroup
	tags   atomic.Pointer[map[string]bool] // with a quota

	mu       sync.Mutex // guards the fields below
	closed   bool
	snapshot policy.Snapshot
	stored   int              // policies, quotas and settings in the snapshot
	invalid  int              // of these, ignored
	faults   map[string]error // of these, which are logged
	source   error            // of the last reading of the policies; nil: it succeeded
	read     bool             // the policies have been read once
	reported bool             // source is in the log, or was nil once
	line     policy.Line      // of the snapshots that were read, with the cached one
	rivals   []string         // see Stats.Rivals
	backends map[string]*Backend

	stopAging context.CancelFunc // ends what age has started

	cacheMu  sync.Mutex   // held while the cache file is written
	replicas atomic.Int64 // of the cluster, at the last count; 0 = never counted
}

// Open starts a Limiter: it reads the policies and follows them until Close. ctx bounds the
// opening only. If the policies cannot be read within Config.OpenTimeout, Open uses those of the
// cache file, logs this and keeps trying; without a cache file it fails. Open fails at once on an
// error of the policy source, unless the error has a method Timeout that returns true: then the
// store has not answered.
func Open(ctx context.Context, cfg Config) (*Limiter, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("dispatch: open: %w", err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &Limiter{
		cfg: cfg, log: cfg.Logger, stop: stop, stopAging: func() {},
		backends: map[string]*Backend{},
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

// withDefaults returns the config with its defaults. The error joins all faults.
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
		cfg.Logger = slog.Default()
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

// Close ends the Limiter and waits for its goroutines. Waiting callers get ErrClosed, and unused
// permits are given back. A second call does nothing.
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
