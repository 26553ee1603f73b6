package engine_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
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

// A store is a memory permit store that may be slow or unavailable.
type store struct {
	*memory.Store
	rtt time.Duration // 0: it answers at once, on the loop's goroutine

	mu    sync.Mutex // guards the fields below
	down  bool
	calls int

	slowRecords time.Duration     // what heartbeats and draws take on top of rtt
	requests    []permits.Request // without their answers
}

func (s *store) Do(ctx context.Context, requests []*permits.Request) {
	time.Sleep(s.rtt / 2)
	s.mu.Lock()
	s.calls++
	slow := s.slowRecords
	s.mu.Unlock()
	if slow > 0 && slices.ContainsFunc(requests, func(r *permits.Request) bool { return r.Allocate == nil }) {
		time.Sleep(slow)
	}
	s.mu.Lock()
	for _, r := range requests {
		asked := *r
		if r.Allocate != nil {
			a := *r.Allocate
			asked.Allocate = &a
		}
		s.requests = append(s.requests, asked)
	}
	down := s.down
	s.mu.Unlock()
	if down {
		for _, r := range requests {
			r.Err = errors.New("down")
		}
	} else {
		s.Store.Do(ctx, requests)
	}
	time.Sleep(s.rtt - s.rtt/2)
}

func (s *store) Timeout() time.Duration {
	if s.rtt > 0 {
		return 300 * ms
	}
	return 0
}

func (s *store) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// asked are the requests so far.
func (s *store) asked() []permits.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// A fixture is an engine in a bubble.
type fixture struct {
	*engine.Engine
	t      *testing.T
	store  *store
	log    *bytes.Buffer
	start  time.Time
	number int64 // of the last policies
	closed bool
}

// orders is the scope of most tests, and billing the subscription.
const orders = "kafka://acme/shop/orders"

// run runs a test in virtual time, with policies in lines of "SCOPE FIELD=VALUE ...". A request
// takes rtt.
func run(t *testing.T, rtt time.Duration, policies string, f func(t *testing.T, e *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &fixture{t: t, store: &store{Store: memory.New(), rtt: rtt}, log: &bytes.Buffer{}, start: time.Now()}
		e.Engine = engine.Start(engine.Config{
			Store: e.store, Cluster: "c", WorkerGroup: "eu", Replica: "r", Rand: rand.New(rand.NewPCG(1, 2)),
			Log: slog.New(slog.NewTextHandler(e.log, nil)),
		})
		defer func() {
			if !e.closed {
				e.Close()
			}
		}()
		e.apply(policies)
		f(t, e)
	})
}

// apply puts policies in force.
func (e *fixture) apply(policies string) {
	e.t.Helper()
	e.number++
	e.ApplyPolicies(policy.Snapshot{
		Set: throttletest.SetOf(e.t, policies), Identity: "store", Revision: e.number,
	})
}

func laneOf(tag string) resolve.Lane {
	topic, err := policy.ParseTopic(orders)
	if err != nil {
		panic(err)
	}
	return resolve.Lane{Topic: topic, Subscription: "billing", Owner: resolve.Owner{Tag: tag}}
}

// open opens a handle of billing, for messages of a tag.
func (e *fixture) open(tag string) *engine.Handle {
	e.t.Helper()
	h := &engine.Handle{}
	require.NoError(e.t, e.Open(h, laneOf(tag)))
	return h
}

// acquire waits for permits, which are there in time.
func (e *fixture) acquire(h *engine.Handle, max int, size int64) engine.Grant {
	e.t.Helper()
	g, err := h.Lane.Acquire(e.t.Context(), max, size)
	require.NoError(e.t, err)
	return g
}

// empty takes all permits that are there now.
func (e *fixture) empty(h *engine.Handle) {
	for {
		if _, _, ok := h.Lane.TryAcquire(1); !ok {
			return
		}
	}
}

// only is the state of the lane's one limit.
func only(h *engine.Handle) sharing.State { return h.State().Limits[0] }

// since is the time since the test began.
func (e *fixture) since() time.Duration { return time.Since(e.start) }

// A call is a caller that waits on a goroutine of its own.
type call struct {
	done  chan struct{}
	grant engine.Grant
	err   error
	took  time.Duration
}

// wait has a caller wait.
func (e *fixture) wait(ctx context.Context, h *engine.Handle, max int, size int64) *call {
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

// over reports whether the call has its answer.
func (c *call) over() bool {
	synctest.Wait()
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func TestUnlimited(t *testing.T) {
	run(t, 0, "", func(t *testing.T, e *fixture) {
		h := e.open("")
		assert.Nil(t, h.Lane.Admission())
		g := e.acquire(h, 7, -1)
		assert.Equal(t, 7, g.N)
		assert.Nil(t, g.Admission)
		g, _, ok := h.Lane.TryAcquire(7)
		assert.True(t, ok)
		assert.Equal(t, 7, g.N)
		g, err := h.Lane.Acquire(t.Context(), -1, -1)
		assert.NoError(t, err)
		assert.Zero(t, g.N)
		_, _, ok = h.Lane.TryAcquire(0)
		assert.True(t, ok)
		assert.Empty(t, e.States(true, 9))
		assert.Len(t, e.States(false, 9), 1)
	})
}

// TestClose: callers that wait get ErrClosed, permits go back, and nothing opens any more.
func TestClose(t *testing.T) {
	for _, rtt := range []time.Duration{0, 20 * ms} {
		run(t, rtt, orders+" messageRate=100 round=1s\n"+orders+"?subscription=billing messageRate=200", func(t *testing.T, e *fixture) {
			h := e.open("")
			for e.since() < 3*time.Second {
				e.acquire(h, 1, -1)
			}
			waiting := []*call{e.wait(t.Context(), h, 1<<20, -1), e.wait(t.Context(), h, 5, -1), e.wait(t.Context(), h, 1, -1)}
			time.Sleep(ms)
			before := len(e.store.asked())
			e.Close()
			e.closed = true
			for _, c := range waiting {
				assert.True(t, c.over())
			}
			assert.ErrorIs(t, waiting[2].err, engine.ErrClosed)
			_, err := h.Lane.Acquire(t.Context(), 1, -1)
			assert.ErrorIs(t, err, engine.ErrClosed)
			_, next, ok := h.Lane.TryAcquire(1)
			assert.False(t, ok)
			assert.Equal(t, time.Minute, time.Until(next))
			assert.ErrorIs(t, e.Open(&engine.Handle{}, laneOf("")), engine.ErrClosed)
			returned := 0.0
			for _, r := range e.store.asked()[before:] {
				assert.Zero(t, r.Allocate.Want)
				returned += r.Allocate.Returned
			}
			assert.Greater(t, returned, 40.0, "what it held of both limits")
			assert.Len(t, e.store.asked()[before:], 2, "each is drained once")
			h.Close()
			h.Close()
		})
	}
}

// TestCloseWhileUnavailable does not ask a store that fails.
func TestCloseWhileUnavailable(t *testing.T) {
	run(t, 20*ms, orders+" messageRate=100", func(t *testing.T, e *fixture) {
		h := e.open("")
		e.acquire(h, 1, -1)
		e.store.setDown(true)
		c := e.wait(t.Context(), h, 100, -1)
		time.Sleep(100 * ms)
		for !c.over() {
			time.Sleep(ms)
		}
		last := e.wait(t.Context(), h, 100, -1)
		time.Sleep(500 * ms)
		calls := len(e.store.asked())
		from := time.Now()
		e.Close()
		e.closed = true
		assert.LessOrEqual(t, len(e.store.asked()), calls+1, "the one that was on its way")
		assert.LessOrEqual(t, time.Since(from), 20*ms)
		assert.True(t, last.over())
	})
}

// TestSteps: one caller that always waits costs a few steps a permit, and a request for two.
func TestSteps(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=20", func(t *testing.T, e *fixture) {
		h := e.open("")
		g := e.acquire(h, 1, -1)
		from, asked := g.Taken, len(e.store.asked())
		for range 200 {
			g = e.acquire(h, 1, -1)
		}
		assert.LessOrEqual(t, g.Taken-from, uint64(600), "steps: without the lane being covered it is 700")
		assert.LessOrEqual(t, len(e.store.asked())-asked, 110)
		assert.InDelta(t, 10, e.since().Seconds(), 0.3)
	})
}

// TestAvailability logs an outage and its end once, and one limit whose requests fail.
func TestAvailability(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=100", func(t *testing.T, e *fixture) {
		h := e.open("")
		work := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				e.acquire(h, 1, -1)
			}
		}
		work(2 * time.Second)
		e.store.setDown(true)
		work(200 * ms)
		assert.False(t, e.Availability().Unavailable, "not for half a second yet")
		assert.Empty(t, e.log.String())
		work(3 * time.Second)
		e.store.setDown(false)
		assert.True(t, e.Availability().Unavailable)
		work(3 * time.Second)
		a := e.Availability()
		assert.False(t, a.Unavailable)
		assert.Equal(t, len(e.store.asked()), int(a.Requests))
		assert.Positive(t, a.Errors)
		assert.Zero(t, a.Late)
		assert.Equal(t, 1, strings.Count(e.log.String(), "the permit store is unavailable"), e.log)
		assert.Equal(t, 1, strings.Count(e.log.String(), "available again"), e.log)
		assert.Equal(t, 2, strings.Count(e.log.String(), "\n"), e.log)
	})
}

// TestLateAnswers are counted: the store got the request after its sender had given up.
func TestLateAnswers(t *testing.T) {
	run(t, 10*ms, orders+" messageRate=100", func(t *testing.T, e *fixture) {
		h := e.open("")
		for range 100 {
			e.acquire(h, 1, -1)
		}
		e.store.rtt = 800 * ms // its timeout is 300
		for range 3 {
			e.acquire(h, 1, -1)
			time.Sleep(time.Second)
		}
		assert.Positive(t, e.Availability().Late)
		assert.LessOrEqual(t, e.Availability().Late, e.Availability().Requests)
	})
}

// TestTies are logged once.
func TestTies(t *testing.T) {
	run(t, 0, "pattern:orders messageRate=5\npattern:rder.$ messageRate=6", func(t *testing.T, e *fixture) {
		e.open("")
		e.open("bulk")
		e.apply("pattern:orders messageRate=5\npattern:rder.$ messageRate=7")
		assert.Equal(t, 1, strings.Count(e.log.String(), "two patterns tie"), e.log)
	})
}

// TestRecordsDelayNoAllocation: heartbeats, whose records many replicas change, do not hold up the
// allocations of other limits.
func TestRecordsDelayNoAllocation(t *testing.T) {
	policies := orders + " messageRate=100 sharing.mode=split\n" +
		orders + "?subscription=billing messageRate=50 sharing.mode=fair"
	run(t, 2*ms, policies, func(t *testing.T, e *fixture) {
		e.store.slowRecords = 250 * ms
		h := e.open("")
		time.Sleep(10 * time.Second) // the replica has joined the pool
		longest := time.Duration(0)
		for e.since() < 60*time.Second {
			from := time.Now()
			e.acquire(h, 1, -1)
			longest = max(longest, time.Since(from))
		}
		assert.Less(t, longest, 200*ms)
	})
}
