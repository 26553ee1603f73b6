// Package memory keeps the schedules of one process, for tests and programs that run alone.
package memory

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// A Store is the memory permit store: all Limiters of a process that use the same one share their
// limits. Any number of goroutines may use it at once. Times are seconds on the store's clock.
type Store struct {
	start time.Time

	mu      sync.Mutex // guards the fields below
	limits  map[string]*limit
	values  map[string]record           // of pools and groups, and those of Update
	rows    map[string]*rows            // by the key of the value that they belong to
	status  map[string]map[string]value // by cluster and replica
	sweepAt float64                     // when to remove what has expired
	wakers  map[string]func(string)     // of Wakes, by process
}

type limit struct {
	state   schedule.State
	subs    map[string]*schedule.Sub
	expires float64
}

type value struct {
	text    []byte
	expires float64
}

type record struct {
	permits.Record
	expires float64
}

// at is the record, none once it has expired.
func (r record) at(now float64) permits.Record {
	if now > r.expires {
		return permits.Record{}
	}
	return r.Record
}

// New returns an empty permit store, whose clock is the process's own.
func New() *Store {
	return &Store{
		start: time.Now(), limits: map[string]*limit{}, values: map[string]record{},
		rows: map[string]*rows{}, status: map[string]map[string]value{}, wakers: map[string]func(string){},
	}
}

// now is the store's clock: seconds since it was made, and one, so that 0 stays "never".
func (s *Store) now() float64 { return 1 + time.Since(s.start).Seconds() }

// Do answers all requests at once. Only a record of a newer version fails.
func (s *Store) Do(_ context.Context, requests []*permits.Request) {
	s.mu.Lock()
	now := s.now()
	s.sweep(now)
	for _, r := range requests {
		if r.Allocate != nil {
			r.Err = nil
			s.allocate(r.Key, r.Allocate, now)
		}
	}
	for _, r := range permits.PoolRecords(requests) {
		if next, ok := r.Replace(s.values[r.Key].at(now), now); ok {
			s.values[r.Key] = record{next, now + r.TTL.Seconds()}
		}
	}
	s.mu.Unlock()
	for _, r := range requests {
		if r.Allocate != nil {
			s.wake(r.Allocate.Reply.Wake)
		}
	}
}

// allocate sets the reply. A request that is too late leaves nothing in the maps.
func (s *Store) allocate(key string, a *permits.Allocate, now float64) {
	m := s.limits[key]
	unknown := m == nil || now > m.expires
	if unknown {
		m = &limit{subs: map[string]*schedule.Sub{}}
	}
	sub := m.subs[a.Subscription]
	first := sub == nil
	if first {
		sub = &schedule.Sub{}
	}
	r := a.Request
	r.Sole = true
	var state schedule.State
	if state, *sub, a.Reply = schedule.Allocate(m.state, *sub, r, now); a.Reply.Late {
		return
	}
	if unknown {
		s.limits[key] = m
	}
	if first && !r.Strict { // a strict schedule counts no subscriptions
		m.subs[a.Subscription] = sub
	}
	m.expires = now + state.Lifetime(r.Strict, now)
	if state.Epoch != m.state.Epoch { // subscriptions of older epochs do not count
		old := func(_ string, sub *schedule.Sub) bool { return sub.Epoch < state.Epoch-1 }
		maps.DeleteFunc(m.subs, old)
	}
	m.state = state
}

// wake wakes a waiter whose turn has come.
func (s *Store) wake(waiter string) {
	if waiter == "" {
		return
	}
	process, _, _ := strings.Cut(waiter, "|")
	s.mu.Lock()
	woken := s.wakers[process]
	s.mu.Unlock()
	if woken != nil {
		woken(waiter)
	}
}

// Wakes calls woken with the waiters of a process whose turn has come, on the goroutine that calls
// Do.
func (s *Store) Wakes(ctx context.Context, process string, woken func(waiter string)) error {
	s.mu.Lock()
	s.wakers[process] = woken
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	delete(s.wakers, process)
	s.mu.Unlock()
	return nil
}

// sweep removes what has expired, every ten minutes.
func (s *Store) sweep(now float64) {
	if now < s.sweepAt {
		return
	}
	s.sweepAt = now + 600
	alive := func(v value) bool { return now <= v.expires }
	s.limits = filter(s.limits, func(m *limit) bool { return now <= m.expires })
	s.values = filter(s.values, func(r record) bool { return now <= r.expires })
	s.rows = filter(s.rows, func(r *rows) bool { return now <= r.expires })
	for cluster, replicas := range s.status {
		s.status[cluster] = filter(replicas, alive)
	}
	s.status = filter(s.status, func(m map[string]value) bool { return len(m) > 0 })
}

// filter returns a map of the entries to keep. It is a new one, since a map never frees the memory
// that its largest size has taken.
func filter[V any](m map[string]V, keep func(V) bool) map[string]V {
	kept := map[string]V{}
	for key, v := range m {
		if keep(v) {
			kept[key] = v
		}
	}
	return kept
}

// Timeout is 0: Do answers at once.
func (s *Store) Timeout() time.Duration { return 0 }

// Update never fails.
func (s *Store) Update(
	_ context.Context, key string, ttl time.Duration, f func([]byte, float64) []byte,
) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.sweep(now)
	if text := f(s.values[key].at(now).Text(), now); text != nil {
		s.values[key] = record{permits.RecordOf(text), now + ttl.Seconds()}
	} else {
		delete(s.values, key)
	}
	return nil
}

// Value returns the value that Update keeps under key.
func (s *Store) Value(_ context.Context, key string) ([]byte, float64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	return s.values[key].at(now).Text(), now, nil
}

// State returns the schedule of the limit with that key.
func (s *Store) State(_ context.Context, key string) (schedule.State, float64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if m := s.limits[key]; m != nil && now <= m.expires {
		return m.state, now, nil
	}
	return schedule.State{}, now, nil
}

// Publish keeps a copy of a replica's status record for ttl.
func (s *Store) Publish(
	_ context.Context, cluster, replica string, status []byte, ttl time.Duration,
) error {
	if err := permits.CheckRecord(status); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.sweep(now)
	if s.status[cluster] == nil {
		s.status[cluster] = map[string]value{}
	}
	s.status[cluster][replica] = value{slices.Clone(status), now + ttl.Seconds()}
	return nil
}

// Published returns the status records that have not expired, up to [permits.MaxRecords] and
// [permits.MaxRecordsBytes].
func (s *Store) Published(ctx context.Context, cluster string) ([][]byte, error) {
	names, err := s.Publishers(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return s.PublishedBy(ctx, cluster, names)
}

// Publishers returns the names of the replicas whose status records have not expired, up to
// [permits.MaxRecords].
func (s *Store) Publishers(_ context.Context, cluster string) (names []string, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for name, v := range s.status[cluster] {
		if now <= v.expires && len(names) < permits.MaxRecords {
			names = append(names, name)
		}
	}
	return names, nil
}

// PublishedBy returns the status records of some replicas that have not expired, up to
// [permits.MaxRecordsBytes].
func (s *Store) PublishedBy(
	_ context.Context, cluster string, replicas []string,
) (alive [][]byte, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, free := s.now(), permits.MaxRecordsBytes
	for _, name := range replicas {
		if v, ok := s.status[cluster][name]; ok && now <= v.expires && len(v.text) <= free {
			alive = append(alive, v.text)
			free -= len(v.text)
		}
	}
	return alive, nil
}

// Close does nothing: the schedules live as long as the store is used.
func (s *Store) Close() error { return nil }
