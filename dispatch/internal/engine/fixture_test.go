package engine_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

const ms = time.Millisecond

// A store is a memory permit store that may be slow, unavailable or damaged.
type store struct {
	*memory.Store

	mu       sync.Mutex // guards the fields below
	rtt      time.Duration
	down     string            // requests fail whose keys have this suffix
	damage   error             // reported with each answer
	noWakes  error             // Wakes fails with it
	woken    func(string)      // wakes a share by its name
	requests []permits.Request // all requests so far, without their answers

	slowRecords time.Duration // what heartbeats and draws take on top of rtt
	mixed       int           // calls with those and with allocations
}

// Do answers after half of the rtt, and returns after the other half. An rtt of 0 is a store that
// answers at once, on the goroutine of the loop.
func (s *store) Do(ctx context.Context, requests []*permits.Request) {
	s.mu.Lock()
	rtt, down, damage := s.rtt, s.down, s.damage
	records := 0
	for _, r := range requests {
		if r.Allocate == nil {
			rtt = max(rtt, s.rtt+s.slowRecords)
			records++
		}
		asked := *r
		if r.Allocate != nil {
			a := *r.Allocate
			asked.Allocate = &a
		}
		s.requests = append(s.requests, asked)
	}
	if records > 0 && records < len(requests) {
		s.mixed++
	}
	s.mu.Unlock()
	time.Sleep(rtt / 2)
	var up []*permits.Request
	for _, r := range requests {
		r.Damage = damage
		if strings.HasSuffix(r.Key, down) {
			r.Err = errors.New("down")
		} else {
			up = append(up, r)
		}
	}
	s.Store.Do(ctx, up)
	time.Sleep(rtt - rtt/2)
}

// Wakes implements engine.Waker.
func (s *store) Wakes(ctx context.Context, process string, woken func(string)) error {
	s.mu.Lock()
	s.woken = woken
	err := s.noWakes
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.Store.Wakes(ctx, process, woken)
}

// nothing is the suffix of no key.
const nothing = "nothing"

func (s *store) Timeout() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rtt > 0 {
		return 300 * ms
	}
	return 0
}

// set changes how the store answers.
func (s *store) set(change func(s *store)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// setDown makes the store unavailable, or available again.
func (s *store) setDown(down bool) {
	s.set(func(s *store) {
		s.down = nothing
		if down {
			s.down = ""
		}
	})
}

// asked returns the requests so far.
func (s *store) asked() []permits.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// A fixture is an engine in virtual time.
type fixture struct {
	*engine.Engine
	t      *testing.T
	store  *store
	log    *bytes.Buffer
	start  time.Time
	number int64 // revision of the policies in force
	closed bool
}

// Most tests are about the subscription billing of the topic orders.
const (
	orders  = "kafka://acme/shop/orders"
	billing = orders + "?subscription=billing"
)

// run runs a test in virtual time with a store of this rtt. policies are in lines as
// throttletest.SetOf reads them.
func run(t *testing.T, rtt time.Duration, policies string, f func(t *testing.T, e *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &fixture{t: t, log: &bytes.Buffer{}, start: time.Now()}
		e.store = &store{Store: memory.New(), rtt: rtt, down: nothing}
		e.Engine = engine.Start(engine.Config{
			Store: e.store, Cluster: "c", WorkerGroup: "eu", Replica: "r",
			Rand: rand.New(rand.NewPCG(1, 2)), Log: slog.New(slog.NewTextHandler(e.log, nil)),
		})
		defer e.close()
		e.apply(policies)
		f(t, e)
	})
}

// close closes the engine, once.
func (e *fixture) close() {
	if !e.closed {
		e.closed = true
		e.Close()
	}
}

// apply puts policies in force.
func (e *fixture) apply(policies string) {
	e.t.Helper()
	e.number++
	set := throttletest.SetOf(e.t, policies)
	e.ApplyPolicies(policy.Snapshot{Set: set, Identity: "store", Revision: e.number}, e.Match(set))
}

// laneOf is the lane of billing for messages with a tag; "" = without one.
func laneOf(tag string) resolve.LaneID {
	topic, err := policy.ParseTopic(orders)
	if err != nil {
		panic(err)
	}
	owner := resolve.Owner{Tag: tag}
	return resolve.LaneID{Topic: topic, Subscription: "billing", Owner: owner}
}

// open opens a handle of billing for messages with a tag; "" = without one.
func (e *fixture) open(tag string) *handle {
	e.t.Helper()
	return e.openLane(laneOf(tag))
}

func (e *fixture) openLane(id resolve.LaneID) *handle {
	e.t.Helper()
	h := &handle{engine: e.Engine}
	require.NoError(e.t, e.Open(&h.Handle, id))
	return h
}

// A handle knows its engine.
type handle struct {
	engine.Handle
	engine *engine.Engine
}

func (h *handle) Stats() engine.Stats { return h.engine.LaneStats(h.Lane) }

func (h *handle) Close() { h.engine.CloseAll([]*engine.Handle{&h.Handle}) }

func (h *handle) ReportBacklog(messages int64) { h.engine.ReportBacklog(&h.Handle, messages) }

func (h *handle) reportOutcome(o resolve.Outcome, retryAfter time.Duration) {
	if h.Lane.CountOutcome(o, retryAfter) {
		h.engine.SlowDown(h.Lane)
	}
}

// acquire acquires permits of messages of size bytes; -1 = unknown. If it cannot, its goroutine
// ends, which need not be the test's.
func (e *fixture) acquire(h *handle, max int, size int64) engine.Grant {
	e.t.Helper()
	g, err := h.Lane.Acquire(e.t.Context(), max, size)
	if !assert.NoError(e.t, err) {
		runtime.Goexit()
	}
	return g
}

// acquireFor acquires one permit after the other for d.
func (e *fixture) acquireFor(d time.Duration, h *handle, size int64) {
	e.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		e.acquire(h, 1, size)
	}
}

// empty takes all permits that are available now.
func (e *fixture) empty(h *handle) {
	for {
		if _, _, ok := h.Lane.TryAcquire(1); !ok {
			return
		}
	}
}

// only is the state of the lane's first limit.
func only(h *handle) sharing.Stats { return h.Stats().Limits[0] }

// limitOf is the state of the lane's limit with that reason and rate.
func limitOf(t *testing.T, h *handle, reason string, rate float64) sharing.Stats {
	t.Helper()
	for _, l := range h.Stats().Limits {
		if l.Reason == reason && l.Rate == rate {
			return l
		}
	}
	t.Fatalf("no limit of %v for %s", rate, reason)
	return sharing.Stats{}
}

// logged counts a text in the log.
func (e *fixture) logged(text string) int {
	synctest.Wait()
	return strings.Count(e.log.String(), text)
}

// since is the time since the test began.
func (e *fixture) since() time.Duration { return time.Since(e.start) }

// A call is an Acquire on a goroutine of its own.
type call struct {
	done  chan struct{}
	grant engine.Grant
	err   error
	took  time.Duration
}

// wait starts an Acquire, and returns once it waits or is over.
func (e *fixture) wait(ctx context.Context, h *handle, max int, size int64) *call {
	c := &call{done: make(chan struct{})}
	from := time.Now()
	go func() {
		defer close(c.done)
		c.grant, c.err = h.Lane.Acquire(ctx, max, size)
		c.took = time.Since(from)
	}()
	synctest.Wait()
	return c
}

// over reports whether the call has returned.
func (c *call) over() bool {
	synctest.Wait()
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}
