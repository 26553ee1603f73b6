// Package permitstest is the conformance suite of permit stores. [Check] checks the methods of a
// store. [Run] runs random sequences of faults, under which each sharing mode must keep its
// guarantees. A [Store] is a permit store with faults on request.
package permitstest

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// ErrCut is the error of a request to a store that cannot be reached.
var ErrCut = errors.New("store cut off")

// Timeout is that of a Link to a simulated store.
const Timeout = 200 * time.Millisecond

// A Store is the server of a permit store, with faults on request: a simulated one with a
// clock of its own, or a real one behind it. Its exported fields are changed within Locked.
type Store struct {
	RTT      func() time.Duration // of a request; default 0.2 to 0.8 ms, 1 % of them 4 ms more
	Frozen   time.Time            // until then requests wait; then they all run
	Skew     time.Duration        // of a simulated store's clock
	Down     bool                 // requests fail at once
	Calls    []time.Time          // of Do with allocations, that reached the store
	NoWakes  bool                 // no waiter is woken
	Requests int                  // allocations
	Server   float64              // a simulated store's number; it changes with a failover
	Sole     bool                 // what a simulated store says in schedule.Request; default true
	Woken    int                  // waiters woken by a simulated store
	Damaged  []error              // what requests said of what was stored

	LoseCalls, LoseReplies, Duplicate float64 // probabilities

	Limits map[string]*Limit         // of a simulated store
	Values map[string]permits.Record // likewise

	mu        sync.Mutex
	rng       *rand.Rand
	real      dispatch.PermitStore // nil: simulated
	late      sync.WaitGroup
	start     time.Time
	wakers    map[string]func(string) // by process
	published map[string]bool         // replicas
}

// A Limit is what a simulated store keeps of a limit.
type Limit struct {
	State schedule.State
	Subs  map[string]schedule.Sub
}

// NewStore returns a store in front of a permit store; of nil, a simulated one.
func NewStore(seed uint64, real dispatch.PermitStore) *Store {
	s := &Store{
		Limits: map[string]*Limit{}, Values: map[string]permits.Record{},
		wakers: map[string]func(string){}, published: map[string]bool{},
		rng: rand.New(rand.NewPCG(seed, 1)), real: real, start: time.Now(), Sole: true,
	}
	s.RTT = func() time.Duration {
		d := 200*time.Microsecond + time.Duration(s.rng.Int64N(int64(600*time.Microsecond)))
		if s.rng.Float64() < 0.01 {
			d += 4 * time.Millisecond
		}
		return d
	}
	return s
}

// Locked runs f while nothing uses the store.
func (s *Store) Locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// Wait waits for the requests whose senders have given up.
func (s *Store) Wait() { s.late.Wait() }

// Copy returns the limits as a failover would bring them back that lost all later requests.
func (s *Store) Copy() map[string]*Limit {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := map[string]*Limit{}
	for k, v := range s.Limits {
		c[k] = &Limit{v.State, maps.Clone(v.Subs)}
	}
	return c
}

func (s *Store) now() float64 { return 1e6 + (time.Since(s.start) + s.Skew).Seconds() }

// answer answers the requests on the simulated store.
func (s *Store) answer(requests []*permits.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range requests {
		if r.Allocate != nil {
			r.Err, r.Allocate.Reply = nil, s.allocate(r.Key, r.Allocate.Request)
		}
	}
	for _, r := range permits.PoolRecords(requests) {
		if next, ok := r.Replace(s.Values[r.Key], s.now()); ok {
			s.Values[r.Key] = next
		}
	}
}

func (s *Store) allocate(key string, r schedule.Request) (reply schedule.Reply) {
	m := s.Limits[key]
	if m == nil {
		m = &Limit{Subs: map[string]schedule.Sub{}}
		s.Limits[key] = m
	}
	r.Sole, r.Server = s.Sole, s.Server
	sub := m.Subs[r.Subscription]
	m.State, sub, reply = schedule.Allocate(m.State, sub, r, s.now())
	m.Subs[r.Subscription] = sub
	if process, _, ok := strings.Cut(reply.Wake, "|"); ok && !s.NoWakes {
		s.Woken++
		woken, rtt := s.wakers[process], s.RTT()
		s.late.Go(func() {
			time.Sleep(rtt / 2)
			if woken != nil {
				woken(reply.Wake)
			}
		})
	}
	return reply
}

// A Link is a permit store: one replica's connection to a Store. Its fields are used within the
// store's Locked.
type Link struct {
	*Store
	Cut  bool
	Sent int // requests, and calls of Update
}

// Timeout is the real permit store's, or [Timeout].
func (l *Link) Timeout() time.Duration {
	if l.real != nil {
		return l.real.Timeout()
	}
	return Timeout
}

// fate returns what is to happen to a request.
func (l *Link) fate() (cut, lost, twice bool, rtt time.Duration, frozen time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	cut = l.Cut || l.rng.Float64() < l.LoseCalls
	lost = l.rng.Float64() < l.LoseReplies
	twice = l.rng.Float64() < l.Duplicate
	return cut, lost, twice, l.RTT(), l.Frozen
}

// Do answers the requests, or fails. An allocation may arrive twice, or after its sender has
// given up. A record is compared and swapped, so that neither changes it.
func (l *Link) Do(ctx context.Context, requests []*permits.Request) {
	sent := time.Now()
	fail := func() {
		for _, r := range requests {
			r.Err = ErrCut
		}
	}
	failLate := func() {
		time.Sleep(time.Until(sent.Add(l.Timeout())))
		fail()
	}
	var allocations []*permits.Request
	for _, r := range requests {
		if r.Allocate != nil {
			allocations = append(allocations, r)
		}
	}
	cut, lost, twice, rtt, frozen := l.fate()
	down := false
	l.Locked(func() {
		l.Requests += len(allocations)
		l.Sent += len(requests)
		if down = l.Down; !down && !cut && len(allocations) > 0 {
			l.Calls = append(l.Calls, sent)
		}
	})
	switch {
	case down:
		fail()
		return
	case cut:
		failLate()
		return
	}
	run := func(requests []*permits.Request) {
		if l.real == nil {
			l.answer(requests)
		} else {
			l.real.Do(ctx, requests)
		}
		l.Locked(func() {
			for _, r := range requests {
				r.Check()
				if r.Damaged() != nil {
					l.Damaged = append(l.Damaged, r.Damaged())
				}
			}
		})
	}
	if frozen.Sub(sent) > l.Timeout() { // the caller has given up when the server runs the call
		late := copies(allocations)
		l.late.Go(func() {
			time.Sleep(time.Until(frozen))
			run(late)
			if twice {
				run(late)
			}
		})
		failLate()
		return
	}
	time.Sleep(max(rtt/2, time.Until(frozen)))
	run(requests)
	if twice {
		run(allocations)
	}
	time.Sleep(rtt - rtt/2)
	if lost || time.Since(sent) > l.Timeout() {
		failLate()
	}
}

// copies returns copies of allocations that have an answer of their own.
func copies(allocations []*permits.Request) (all []*permits.Request) {
	for _, r := range allocations {
		a := *r.Allocate
		all = append(all, &permits.Request{Key: r.Key, Allocate: &a})
	}
	return all
}

// Update updates a value, or fails.
func (l *Link) Update(
	ctx context.Context, key string, ttl time.Duration, f func([]byte, float64) []byte,
) error {
	cut, lost, _, rtt, frozen := l.fate()
	l.Locked(func() { l.Sent++ })
	if cut || time.Until(frozen) > l.Timeout() {
		time.Sleep(l.Timeout())
		return ErrCut
	}
	time.Sleep(max(rtt/2, time.Until(frozen)))
	var err error
	if l.real != nil {
		err = l.real.Update(ctx, key, ttl, f)
	} else {
		l.Locked(func() { l.Values[key] = permits.RecordOf(f(l.Values[key].Text(), l.now())) })
	}
	time.Sleep(rtt - rtt/2)
	if lost {
		time.Sleep(l.Timeout())
		return ErrCut
	}
	return err
}

// Value reads a value, or fails.
func (l *Link) Value(ctx context.Context, key string) (value []byte, now float64, err error) {
	cut, lost, _, rtt, frozen := l.fate()
	if cut || lost || time.Until(frozen) > l.Timeout() {
		time.Sleep(l.Timeout())
		return nil, 0, ErrCut
	}
	time.Sleep(max(rtt, time.Until(frozen)))
	if l.real != nil {
		return l.real.Value(ctx, key)
	}
	l.Locked(func() { value, now = l.Values[key].Text(), l.now() })
	return value, now, nil
}

// SetRows sets rows in the real permit store; a simulated one has none.
func (l *Link) SetRows(
	ctx context.Context, key string, head []byte, ttl time.Duration, rows map[string][]byte,
) (bool, error) {
	if cut, _, _, _, _ := l.fate(); cut {
		return false, ErrCut
	}
	if l.real == nil {
		return true, nil
	}
	return l.real.SetRows(ctx, key, head, ttl, rows)
}

// Rows reads rows of the real permit store, or fails.
func (l *Link) Rows(ctx context.Context, key string, names []string) ([][]byte, error) {
	if cut, _, _, _, _ := l.fate(); cut {
		return nil, ErrCut
	}
	if l.real == nil {
		return make([][]byte, len(names)), nil
	}
	return l.real.Rows(ctx, key, names)
}

// RowNames reads the names of rows of the real permit store, or fails.
func (l *Link) RowNames(ctx context.Context, key string) ([]string, error) {
	if cut, _, _, _, _ := l.fate(); cut || l.real == nil {
		return nil, ErrCut
	}
	return l.real.RowNames(ctx, key)
}

// Wakes wakes waiters if the permit store does.
func (l *Link) Wakes(ctx context.Context, process string, woken func(string)) error {
	if l.real != nil {
		if waker, ok := l.real.(dispatch.Waker); ok {
			return waker.Wakes(ctx, process, woken)
		}
		return nil
	}
	l.Locked(func() { l.wakers[process] = woken })
	<-ctx.Done()
	return nil
}

// State returns the state of a limit, whatever the faults.
func (l *Link) State(ctx context.Context, key string) (s schedule.State, now float64, err error) {
	if l.real != nil {
		return l.real.State(ctx, key)
	}
	l.Locked(func() {
		if m := l.Limits[key]; m != nil {
			s = m.State
		}
		now = l.now()
	})
	return s, now, nil
}

// Publish keeps the replica's name.
func (l *Link) Publish(_ context.Context, _, replica string, _ []byte, _ time.Duration) error {
	l.Locked(func() { l.published[replica] = true })
	return nil
}

// Replicas counts the replicas that have published.
func (l *Link) Replicas(context.Context, string) (n int, _ error) {
	l.Locked(func() { n = len(l.published) })
	return n, nil
}

// Published returns nothing.
func (l *Link) Published(context.Context, string) ([][]byte, error) { return nil, nil }

// Publishers returns nothing.
func (l *Link) Publishers(context.Context, string) ([]string, error) { return nil, nil }

// PublishedBy returns nothing.
func (l *Link) PublishedBy(context.Context, string, []string) ([][]byte, error) { return nil, nil }

// Close does nothing: the real permit store is shared.
func (l *Link) Close() error { return nil }
