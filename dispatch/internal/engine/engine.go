// Package engine decides when the callers of a process get their permits: it keeps a lane of
// callers for each subscription, and one loop that releases permits, serves callers and sends
// requests to the permit store.
//
// Any number of goroutines may call its exported methods. Unexported methods are called with
// Engine.mu held, unless their comment says otherwise. Callers in a hurry read atomics only.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// ErrClosed reports an Acquire on an engine or lane that has been closed.
var ErrClosed = errors.New("dispatch: closed")

// A Store is what the engine needs of a permit store; see dispatch.PermitStore.
type Store interface {
	Do(ctx context.Context, requests []*permits.Request)
	Timeout() time.Duration
}

// A Config says what an Engine works with.
type Config struct {
	Store       Store
	Cluster     string
	WorkerGroup string // of this process; "" = none
	Replica     string // the name of this process in what it publishes
	Log         *slog.Logger
	Rand        *rand.Rand // for the engine alone
}

// An Engine is the lanes of one process, and their loop.
type Engine struct {
	log   *slog.Logger
	env   sharing.Env
	start time.Time
	store Store
	availability
	loop
	queue
	callers sync.Pool // of *caller

	mu            sync.Mutex // guards these, and fields of lanes and subscriptions that say so
	closed        bool
	terms         resolve.Terms
	ratesReadAt   time.Time // when the rates in terms were read
	lanes         map[resolve.Lane]*Lane
	ended         map[resolve.Lane]*Lane // without handles, but with what a new lane takes over
	subscriptions map[name]*subscription
	ties          map[[2]policy.Scope]bool                  // that have been logged
	started       map[quota.ID]int64                        // messages since the last call of Started
	withQuota     int                                       // of lanes, how many have a quota
	peaks         struct{ lanes, ended, subscriptions int } // largest sizes of these maps
}

// Start returns an engine in which nothing is limited, with its loop running.
func Start(cfg Config) *Engine {
	e := &Engine{
		log: cfg.Log, start: time.Now(), store: cfg.Store,
		env: sharing.Env{
			Replica: cfg.Replica, Process: fmt.Sprintf("%x", cfg.Rand.Uint64()),
			Rand: cfg.Rand, Timeout: func() float64 { return cfg.Store.Timeout().Seconds() },
		},
		terms: resolve.Terms{
			Cluster: cfg.Cluster, WorkerGroup: cfg.WorkerGroup,
			Policies: policy.Snapshot{Set: policy.Single(policy.Policy{})},
		},
		lanes: map[resolve.Lane]*Lane{}, ended: map[resolve.Lane]*Lane{},
		subscriptions: map[name]*subscription{},
		ties:          map[[2]policy.Scope]bool{}, started: map[quota.ID]int64{},
	}
	e.env.Serve = e.serveShare
	e.callers.New = newCaller
	running, stop := context.WithCancel(context.Background())
	e.queue.init(running, e)
	e.loop.init(stop, e.store.Timeout() == 0)
	e.running.Go(func() { e.run(running) })
	return e
}

// Close ends the engine and joins what it started. Callers that wait get ErrClosed; permits that
// are allocated and not spent are given back. Close is called once.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	lanes := e.lanes
	e.lanes = map[resolve.Lane]*Lane{}
	for _, l := range lanes {
		l.admission.Store(closedAdmission(l))
	}
	e.mu.Unlock()
	e.stop()
	e.running.Wait()
	for _, l := range lanes {
		l.serve(time.Now())
	}
}

// SetReplicas sets how many replicas the cluster has: a replica that has no share of its own when
// the permit store becomes unavailable goes on at the limit divided by it. 0 = unknown.
func (e *Engine) SetReplicas(n int64) { e.env.Replicas.Store(n) }

// clock is the engine's: seconds since it was started, and one, so that 0 stays "never". No lock
// is needed.
func (e *Engine) clock(t time.Time) float64 { return 1 + t.Sub(e.start).Seconds() }

// time is the inverse of clock, and a microsecond later: a caller that comes then is not before
// the loop's step of that moment. No lock is needed.
func (e *Engine) time(at float64) time.Time { return e.start.Add(seconds(at-1) + time.Microsecond) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
