package engine

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Config says what an Engine works with.
type Config struct {
	Store       Store
	Cluster     string
	WorkerGroup string // of this process; "" = none
	Replica     string // the name of this process in what it publishes
	Log         *slog.Logger
	Rand        *rand.Rand // for the engine alone
}

// Start returns an engine in which nothing is limited, with its loop running.
func Start(cfg Config) *Engine {
	running, stop := context.WithCancel(context.Background())
	e := &Engine{
		log: cfg.Log, store: cfg.Store, instant: cfg.Store.Timeout() == 0, stop: stop,
		journal: journal{log: cfg.Log},
		terms: resolve.Terms{
			Cluster: cfg.Cluster, WorkerGroup: cfg.WorkerGroup,
			Policies: policy.Snapshot{Set: policy.Single(policy.Policy{})},
		},
		lanes: map[resolve.LaneID]*Lane{}, ended: map[resolve.LaneID]*Lane{},
		subscriptions: map[name]*subscription{},
		ties:          map[[2]policy.Scope]bool{}, started: map[quota.ID]int64{},
	}
	e.availability.journal = &e.journal
	e.start, e.callers.New, e.inbox.wakeup = time.Now(), newCaller, make(chan struct{}, 1)
	e.env.Replica, e.env.Process = cfg.Replica, fmt.Sprintf("%x", cfg.Rand.Uint64())
	e.env.Rand, e.env.Serve = cfg.Rand, e.serveShare
	e.timeout = cfg.Store.Timeout
	e.env.Timeout = func() float64 { return cfg.Store.Timeout().Seconds() }
	e.waiters.init(&e.inbox, func() {
		if waker, ok := cfg.Store.(Waker); ok {
			e.running.Go(func() { e.waiters.await(running, waker, e.env.Process, e.log) })
		}
	})
	e.running.Go(func() { e.run(running) })
	return e
}

// serveShare has the lane of a strict share stepped in this step of the loop.
func (e *Engine) serveShare(s *sharing.Share, now float64) {
	if w, ok := e.waiters.byName[s.Waiter]; ok {
		e.agenda.set(w.lane, now)
	}
}

// Close ends the engine and joins what it started. Callers that wait get ErrClosed; permits that
// are allocated and not spent are given back. Close is called once.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	lanes := e.lanes
	e.lanes = map[resolve.LaneID]*Lane{}
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
