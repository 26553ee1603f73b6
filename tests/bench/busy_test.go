package bench

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
)

// A caller calls request as soon as its limiter permits, and reports the answer to the limiter. An
// error of request means busy.
type caller func(ctx context.Context, request func() error)

// callers are the limiters to measure. Each opens the callers of two processes: ours share a permit
// store, the others have nothing to share.
var callers = []struct {
	name string
	open func(tb testing.TB) []caller
}{
	{"none", func(testing.TB) []caller { return []caller{unlimited, unlimited} }},
	{"throttle", func(tb testing.TB) []caller {
		permits := memory.New()
		return []caller{outcomes(tb, permits), outcomes(tb, permits)}
	}},
	{"aimd", func(testing.TB) []caller { return []caller{newAIMD().call, newAIMD().call} }},
	{"failsafe-go", func(testing.TB) []caller { return []caller{adaptive(), adaptive()} }},
}

func unlimited(_ context.Context, request func() error) { _ = request() }

// outcomes limits by a dispatch.Subscription to which the outcomes are reported.
func outcomes(tb testing.TB, permits dispatch.PermitStore) caller {
	tb.Helper()
	sub := subscribe(tb, dispatch.Config{Permits: permits})
	return func(ctx context.Context, request func() error) {
		g, err := sub.Acquire(ctx, 1)
		if err != nil {
			return
		}
		sub.ReportOutcome(dispatch.OutcomeOf(request()))
		g.Done(1, 0)
	}
}

// adaptive limits the requests under way by the time that they take. A busy answer does not count
// as such a time.
func adaptive() caller {
	l := adaptivelimiter.NewWithDefaults[any]()
	return func(ctx context.Context, request func() error) {
		permit, err := l.AcquirePermit(ctx)
		if err != nil {
			return
		}
		if request() == nil {
			permit.Record()
		} else {
			permit.Drop()
		}
	}
}

// An aimd limits the requests under way by additive increase and multiplicative decrease, as TCP
// does to avoid congestion: the limit grows by one after as many good answers as it allows
// requests, and is halved by a busy answer.
type aimd struct {
	mu       sync.Mutex
	changed  sync.Cond // of limit and underWay
	limit    float64
	underWay int
	cuts     int
}

func newAIMD() *aimd {
	a := &aimd{limit: 1}
	a.changed.L = &a.mu
	return a
}

func (a *aimd) call(_ context.Context, request func() error) {
	cuts := a.begin()
	a.end(cuts, request())
}

func (a *aimd) begin() (cuts int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for float64(a.underWay+1) > a.limit {
		a.changed.Wait()
	}
	a.underWay++
	return a.cuts
}

func (a *aimd) end(cuts int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.underWay--
	switch {
	case err == nil:
		a.limit += 1 / a.limit
	case cuts == a.cuts: // a request that was sent before the last cut tells nothing new
		a.limit = max(1, a.limit/2)
		a.cuts++
	}
	a.changed.Broadcast()
}

const (
	busyCapacity = 400 // requests a second
	busyQueue    = 20  // requests
	busyService  = 3 * time.Millisecond
	busyWorkers  = 64 // in all
	busyPause    = 10 * time.Millisecond
)

// A busyServer starts one request every interval. busyQueue requests wait; it answers all others at
// once, as busy.
type busyServer struct {
	mu       sync.Mutex
	interval time.Duration
	next     time.Time // when the next request that arrives is started
	ok, busy int
}

func (s *busyServer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	wait, ok := s.admit(time.Now())
	if !ok {
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	time.Sleep(wait + busyService)
}

func (s *busyServer) admit(now time.Time) (wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next.Before(now) {
		s.next = now
	}
	wait = s.next.Sub(now)
	if wait > busyQueue*s.interval {
		s.busy++
		return 0, false
	}
	s.next = s.next.Add(s.interval)
	s.ok++
	return wait, true
}

func (s *busyServer) can(capacity int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interval = time.Second / time.Duration(capacity)
}

// count waits for d. It returns the good answers in that time in % of the capacity, and the busy
// ones in % of all answers.
func (s *busyServer) count(d time.Duration) (good, busy float64) {
	s.mu.Lock()
	s.ok, s.busy = 0, 0
	s.mu.Unlock()
	time.Sleep(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	good = 100 * float64(s.ok) * s.interval.Seconds() / d.Seconds()
	return good, 100 * float64(s.busy) / float64(max(1, s.ok+s.busy))
}

// BenchmarkBusyServer has two processes, with 32 workers each and an endless backlog, call a server
// whose capacity is a ninth of what they would call. It measures the part of the capacity that they
// use, the busy answers, and the part of a doubled capacity that they use 8 s to 10 s later.
func BenchmarkBusyServer(b *testing.B) {
	for _, c := range callers {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				s := &busyServer{}
				s.can(busyCapacity)
				stop := s.flood(b, c.open(b))
				time.Sleep(5 * time.Second)
				good, busy := s.count(10 * time.Second)
				s.can(2 * busyCapacity)
				time.Sleep(8 * time.Second)
				regained, _ := s.count(2 * time.Second)
				stop()
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(good, "%-goodput")
				b.ReportMetric(busy, "%-busy")
				b.ReportMetric(regained, "%-regained")
			}
		})
	}
}

// flood starts the workers of all callers. They call the server until stop.
func (s *busyServer) flood(tb testing.TB, callers []caller) (stop func()) {
	tb.Helper()
	server := httptest.NewServer(s)
	ctx, cancel := context.WithCancel(tb.Context())
	var all sync.WaitGroup
	for _, call := range callers {
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: busyWorkers}}
		get := func() error {
			response, err := client.Get(server.URL)
			check(err == nil)
			response.Body.Close()
			if response.StatusCode == http.StatusTooManyRequests {
				return &dispatch.BusyError{}
			}
			return nil
		}
		for range busyWorkers / len(callers) {
			all.Go(func() {
				for ctx.Err() == nil {
					call(ctx, get)
					time.Sleep(busyPause)
				}
			})
		}
		tb.Cleanup(client.CloseIdleConnections)
	}
	return func() {
		cancel()
		all.Wait()
		server.Close()
	}
}

// TestBusyServer: the server starts as many requests as its capacity allows, at any rate of calls.
func TestBusyServer(t *testing.T) {
	s, now := &busyServer{}, time.Now()
	s.can(busyCapacity)
	for range 10_000 { // ten times its capacity, for 2.5 s
		s.admit(now)
		now = now.Add(250 * time.Microsecond)
	}
	if want := 1000 + busyQueue; s.ok < want || s.ok > want+1 {
		t.Errorf("%d answered well, want %d", s.ok, want)
	}
	for range 1000 {
		now = now.Add(time.Second / busyCapacity)
		if _, ok := s.admit(now); !ok {
			t.Fatal("busy within its capacity")
		}
	}
}

// TestAIMD: the limit grows by one after as many good answers as it allows requests. Busy answers
// to requests that were sent before a cut do not cut again.
func TestAIMD(t *testing.T) {
	a := newAIMD()
	a.limit = 8
	busy := &dispatch.BusyError{}
	first, second := a.begin(), a.begin()
	a.end(first, busy)
	a.end(second, busy)
	if a.limit != 4 {
		t.Errorf("limit = %v after busy answers, want 4", a.limit)
	}
	for range 4 {
		a.end(a.begin(), nil)
	}
	if a.limit < 4.8 || a.limit > 5 {
		t.Errorf("limit = %v after 4 good answers, want nearly 5", a.limit)
	}
}
