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

// A Store is the memory permit store: all Limiters of a process that use the same one share
// their limits. Any number of goroutines may use it at once.
type Store struct {
	start time.Time

	mu     sync.Mutex // guards the fields below
	limits map[string]*limit
	values map[string]status            // records, and those of Update
	status map[string]map[string]status // by cluster and replica
	sweep  time.Time                    // when to forget what has expired
	wakers map[string]func(string)      // of Wakes, by process
}

type limit struct {
	state   schedule.State
	subs    map[string]schedule.Sub
	expires float64
}

type status struct {
	text    []byte
	expires time.Time
}

// alive is the text until it expires.
func (s status) alive() []byte {
	if time.Now().After(s.expires) {
		return nil
	}
	return s.text
}

// New returns an empty permit store, whose clock is the process's own.
func New() *Store {
	return &Store{start: time.Now(), limits: map[string]*limit{}, values: map[string]status{}, status: map[string]map[string]status{}, wakers: map[string]func(string){}}
}

// Do answers all requests at once. A record of a newer version fails; nothing else does.
func (l *Store) Do(_ context.Context, requests []*permits.Request) {
	l.mu.Lock()
	l.forget()
	now := l.now()
	for _, r := range requests {
		if r.Allocate != nil {
			r.Err, r.Allocate.Reply = nil, l.allocate(r.Key, r.Allocate.Request, now)
		}
	}
	for _, r := range permits.Records(requests) {
		if next := r.Apply(l.values[r.Key].alive(), now); next != nil {
			l.values[r.Key] = status{next, time.Now().Add(r.TTL)}
		}
	}
	l.mu.Unlock()
	for _, r := range requests {
		if r.Allocate != nil {
			l.wake(r.Allocate.Reply.Wake)
		}
	}
}

// wake tells a waiter that his turn has come.
func (l *Store) wake(waiter string) {
	if waiter == "" {
		return
	}
	process, _, _ := strings.Cut(waiter, "|")
	l.mu.Lock()
	woken := l.wakers[process]
	l.mu.Unlock()
	if woken != nil {
		woken(waiter)
	}
}

// Wakes has the permit store wake the waiters of a process. woken is called by whoever calls Do.
func (l *Store) Wakes(ctx context.Context, process string, woken func(waiter string)) error {
	l.mu.Lock()
	l.wakers[process] = woken
	l.mu.Unlock()
	<-ctx.Done()
	l.mu.Lock()
	delete(l.wakers, process)
	l.mu.Unlock()
	return nil
}

func (l *Store) allocate(key string, r schedule.Request, now float64) schedule.Reply {
	m := l.limits[key]
	if m == nil || now > m.expires {
		m = &limit{subs: map[string]schedule.Sub{}}
	}
	r.Sole = true
	state, sub, reply := schedule.Allocate(m.state, m.subs[r.Subscription], r, now)
	if reply.Late {
		return reply
	}
	l.limits[key] = m
	m.expires = now + state.Lifetime(r.Strict, now)
	if state.Epoch != m.state.Epoch {
		for name, s := range m.subs { // those of older epochs count for nothing
			if s.Epoch < state.Epoch-1 {
				delete(m.subs, name)
			}
		}
	}
	m.state, m.subs[r.Subscription] = state, sub
	return reply
}

// forget drops what has expired, every ten minutes.
func (l *Store) forget() {
	now := time.Now()
	if now.Before(l.sweep) {
		return
	}
	l.sweep = now.Add(10 * time.Minute)
	maps.DeleteFunc(l.limits, func(_ string, m *limit) bool { return l.now() > m.expires })
	maps.DeleteFunc(l.values, func(_ string, s status) bool { return now.After(s.expires) })
	for cluster, replicas := range l.status {
		maps.DeleteFunc(replicas, func(_ string, s status) bool { return now.After(s.expires) })
		if len(replicas) == 0 {
			delete(l.status, cluster)
		}
	}
}

// now is the permit store's clock: seconds since it was made, and one, so that 0 stays "never".
func (l *Store) now() float64 { return 1 + time.Since(l.start).Seconds() }

// Timeout is 0: Do answers at once.
func (l *Store) Timeout() time.Duration { return 0 }

// Update never fails.
func (l *Store) Update(_ context.Context, key string, ttl time.Duration, f func([]byte, float64) []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
	if text := f(l.values[key].alive(), l.now()); text != nil {
		l.values[key] = status{text, time.Now().Add(ttl)}
	} else {
		delete(l.values, key)
	}
	return nil
}

// Value returns what Update keeps under key.
func (l *Store) Value(_ context.Context, key string) ([]byte, float64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.values[key].alive(), l.now(), nil
}

// State returns the schedule under key.
func (l *Store) State(_ context.Context, key string) (schedule.State, float64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.limits[key]; m != nil && l.now() <= m.expires {
		return m.state, l.now(), nil
	}
	return schedule.State{}, l.now(), nil
}

// Publish keeps a copy of text for ttl.
func (l *Store) Publish(_ context.Context, cluster, replica string, text []byte, ttl time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
	if l.status[cluster] == nil {
		l.status[cluster] = map[string]status{}
	}
	l.status[cluster][replica] = status{slices.Clone(text), time.Now().Add(ttl)}
	return nil
}

// Published returns what the replicas of a cluster last published, unless it has expired.
func (l *Store) Published(_ context.Context, cluster string) ([][]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var texts [][]byte
	for replica, s := range l.status[cluster] {
		if time.Now().After(s.expires) {
			delete(l.status[cluster], replica)
			continue
		}
		texts = append(texts, s.text)
	}
	return texts, nil
}

// Close does nothing: the schedules live as long as the Permit store is used.
func (l *Store) Close() error { return nil }
