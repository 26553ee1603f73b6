package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

const topic = "kafka://public/default/orders"

// errCut is what a call to a store that cannot be reached returns.
var errCut = errors.New("store cut off")

// A store is a simulated ledger server: one state, a clock of its own, and faults.
type store struct {
	mu     sync.Mutex
	rng    *rand.Rand
	limits map[string]*stored
	values map[string][]byte
	rtt    func() time.Duration
	frozen time.Time // until then, calls wait; then they all run
	skew   time.Duration
	trips  int
	late   sync.WaitGroup
	start  time.Time
	wakers map[string]func(string) // by process
	deaf   bool                    // nobody hears that his turn has come
	wakes  int

	loseCalls, loseReplies, duplicate float64 // probabilities
}

type stored struct {
	state schedule.State
	subs  map[string]schedule.Sub
}

func newStore(seed uint64) *store {
	s := &store{rng: rand.New(rand.NewPCG(seed, 1)), limits: map[string]*stored{}, values: map[string][]byte{}, wakers: map[string]func(string){}, start: time.Now()}
	s.rtt = func() time.Duration { // 0.2-0.8 ms, 1 % of them 4 ms more
		d := 200*time.Microsecond + time.Duration(s.rng.Int64N(int64(600*time.Microsecond)))
		if s.rng.Float64() < 0.01 {
			d += 4 * time.Millisecond
		}
		return d
	}
	return s
}

// clone is the store as a failover that lost what came later would bring it back.
func (s *store) clone() map[string]*stored {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := map[string]*stored{}
	for k, v := range s.limits {
		subs := map[string]schedule.Sub{}
		maps.Copy(subs, v.subs)
		c[k] = &stored{v.state, subs}
	}
	return c
}

func (s *store) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *store) book(b schedule.Booking) schedule.Reply {
	m := s.limits[b.Key]
	if m == nil {
		m = &stored{subs: map[string]schedule.Sub{}}
		s.limits[b.Key] = m
	}
	now := 1e6 + (time.Since(s.start) + s.skew).Seconds()
	var r schedule.Reply
	m.state, m.subs[b.Request.Subscription], r = schedule.Book(m.state, m.subs[b.Request.Subscription], b.Request, now)
	if process, _, ok := strings.Cut(r.Wake, "|"); ok && !s.deaf {
		s.wakes++
		woken, rtt := s.wakers[process], s.rtt()
		s.late.Go(func() {
			time.Sleep(rtt / 2)
			woken(r.Wake)
		})
	}
	return r
}

// A link is one replica's way to the store.
type link struct {
	*store
	cut bool // guarded by store.mu
}

const linkTimeout = 200 * time.Millisecond

// Update is by the same rules as Book, without its delays.
func (l *link) Update(_ context.Context, key string, _ time.Duration, f func([]byte, float64) []byte) error {
	l.mu.Lock()
	cut := l.cut || l.rng.Float64() < l.loseCalls
	lost := l.rng.Float64() < l.loseReplies
	rtt, frozen := l.rtt(), l.frozen
	l.mu.Unlock()
	if cut || time.Until(frozen) > linkTimeout {
		time.Sleep(linkTimeout)
		return errCut
	}
	time.Sleep(max(rtt/2, time.Until(frozen)))
	l.mu.Lock()
	l.values[key] = f(l.values[key], 1e6+(time.Since(l.start)+l.skew).Seconds())
	l.mu.Unlock()
	time.Sleep(rtt - rtt/2)
	if lost {
		time.Sleep(linkTimeout)
		return errCut
	}
	return nil
}

func (l *link) Wakes(ctx context.Context, process string, woken func(string)) error {
	l.set(func() { l.wakers[process] = woken })
	<-ctx.Done()
	return nil
}

func (l *link) Timeout() time.Duration { return linkTimeout }
func (l *link) Close() error           { return nil }
func (l *link) State(context.Context, string) (schedule.State, float64, error) {
	return schedule.State{}, 0, nil
}
func (l *link) Publish(context.Context, string, string, []byte, time.Duration) error { return nil }
func (l *link) Published(context.Context, string) ([][]byte, error)                  { return nil, nil }

func (l *link) Book(_ context.Context, bookings []schedule.Booking) []schedule.Booked {
	sent := time.Now()
	fail := func() []schedule.Booked {
		time.Sleep(time.Until(sent.Add(linkTimeout)))
		return slices.Repeat([]schedule.Booked{{Err: errCut}}, len(bookings))
	}
	l.mu.Lock()
	l.trips += len(bookings)
	rtt := l.rtt()
	cut := l.cut || l.rng.Float64() < l.loseCalls
	lost := l.rng.Float64() < l.loseReplies
	twice := l.rng.Float64() < l.duplicate
	frozen := l.frozen
	l.mu.Unlock()
	if cut {
		return fail()
	}
	booked := make([]schedule.Booked, len(bookings))
	run := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for i, b := range bookings {
			booked[i].Reply = l.book(b)
			if twice {
				l.book(b)
			}
		}
	}
	if frozen.Sub(sent) > linkTimeout { // the caller has given up when the server runs the call
		l.late.Go(func() {
			time.Sleep(time.Until(frozen))
			run()
		})
		return fail()
	}
	time.Sleep(max(rtt/2, time.Until(frozen)))
	run()
	time.Sleep(rtt - rtt/2)
	if lost || time.Since(sent) > linkTimeout {
		return fail()
	}
	return booked
}

// An event is n permits dispatched by a replica.
type event struct {
	at      time.Duration
	n       int
	replica int
}

// A fleet is replicas in a synctest bubble that share one store.
type fleet struct {
	t        *testing.T
	store    *store
	policies *policies
	start    time.Time
	stop     context.CancelFunc
	ctx      context.Context
	wg       sync.WaitGroup
	joined   []*replica
	group    func() string // of workers, that the next one is in; nil: none

	mu     sync.Mutex
	events []event
	waits  map[int][]time.Duration
}

// policies is a PolicySource that a test changes.
type policies struct {
	mu       sync.Mutex
	snapshot policy.Snapshot
	changed  chan struct{}
}

func (p *policies) set(s *policy.Set) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.snapshot = policy.Snapshot{Set: s, Identity: "test", Revision: p.snapshot.Revision + 1}
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *policies) Snapshots(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
	return func(yield func(policy.Snapshot, error) bool) {
		for ctx.Err() == nil {
			p.mu.Lock()
			s, changed := p.snapshot, p.changed
			p.mu.Unlock()
			if !yield(s, nil) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
}

func newFleet(t *testing.T, seed uint64, p policy.Policy) *fleet {
	t.Helper()
	f := &fleet{t: t, store: newStore(seed), policies: &policies{changed: make(chan struct{})}, start: time.Now(), waits: map[int][]time.Duration{}}
	f.ctx, f.stop = context.WithCancel(t.Context())
	f.policies.set(policy.Single(p))
	t.Logf("seed %d", seed)
	return f
}

// A replica is a simulated process.
type replica struct {
	*fleet
	id   int
	link *link
	lim  *dispatch.Limiter
	sub  *dispatch.Subscription
	stop context.CancelFunc
	ctx  context.Context
}

func (f *fleet) join(id int, subscription string) *replica {
	if f.group != nil {
		return f.joinGroup(id, subscription, f.group())
	}
	return f.joinGroup(id, subscription, "")
}

// joinGroup joins as a worker of a group.
func (f *fleet) joinGroup(id int, subscription, group string) *replica {
	r := &replica{fleet: f, id: id, link: &link{store: f.store}}
	var err error
	r.lim, err = dispatch.Open(f.ctx, dispatch.Config{Policies: f.policies, Ledger: r.link, Group: group, Rand: rand.New(rand.NewPCG(uint64(id), 7))})
	require.NoError(f.t, err)
	r.sub, err = r.lim.Subscription(topic, subscription)
	require.NoError(f.t, err)
	r.ctx, r.stop = context.WithCancel(f.ctx)
	f.joined = append(f.joined, r)
	return r
}

func (f *fleet) record(replica, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, event{time.Since(f.start), n, replica})
}

// greedy takes up to max permits at a time, without end.
func (r *replica) greedy(max int) {
	r.wg.Go(func() {
		for {
			g, err := r.sub.Acquire(r.ctx, max)
			if err != nil {
				return
			}
			r.record(r.id, g.N())
		}
	})
}

// poisson asks for one permit at random times, rate a second on average, and notes how long each waited.
func (r *replica) poisson(rate float64, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, uint64(r.id)))
	r.wg.Go(func() {
		next := time.Now()
		for r.ctx.Err() == nil {
			next = next.Add(time.Duration(rng.ExpFloat64() / rate * float64(time.Second)))
			time.Sleep(time.Until(next))
			arrived := next
			if _, err := r.sub.Acquire(r.ctx, 1); err != nil {
				return
			}
			r.record(r.id, 1)
			r.mu.Lock()
			r.waits[r.id] = append(r.waits[r.id], time.Since(arrived))
			r.mu.Unlock()
		}
	})
}

// leave ends the replica as a clean stop does.
func (r *replica) leave() {
	r.stop()
	require.NoError(r.t, r.lim.Close())
}

// crash cuts the replica off, so that nothing it does reaches anybody.
func (r *replica) crash() {
	r.store.set(func() { r.link.cut = true })
	r.stop()
}

// chaos has replicas join, leave and crash, and the store freeze for up to a time, in so many steps of up to half as
// long; as many calls and replies as lost says, at most, do not arrive.
func (f *fleet) chaos(rng *rand.Rand, steps int, lost float64, freeze time.Duration, joined func(*replica)) {
	f.store.set(func() { f.store.loseCalls, f.store.loseReplies = rng.Float64()*lost, rng.Float64()*lost })
	alive := map[int]*replica{}
	for i := range steps {
		switch rng.IntN(6) {
		case 0, 1, 2:
			alive[i] = f.join(i, "group")
			joined(alive[i])
		case 3:
			if len(alive) > 0 {
				id := slices.Sorted(maps.Keys(alive))[rng.IntN(len(alive))]
				if rng.IntN(2) == 0 {
					alive[id].leave()
				} else {
					alive[id].crash()
				}
				delete(alive, id)
			}
		case 4:
			f.store.set(func() { f.store.frozen = time.Now().Add(time.Duration(rng.Int64N(int64(freeze)))) })
		}
		time.Sleep(time.Duration(rng.Int64N(int64(freeze / 2))))
	}
}

func (f *fleet) end() {
	f.stop()
	f.wg.Wait()
	for _, r := range f.joined {
		require.NoError(f.t, r.lim.Close())
	}
	f.store.late.Wait()
}

// between counts what was dispatched in [from, to).
func (f *fleet) between(from, to time.Duration) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if e.at >= from && e.at < to {
			n += e.n
		}
	}
	return n
}

// by counts what one replica dispatched in [from, to).
func (f *fleet) by(id int, from, to time.Duration) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if e.replica == id && e.at >= from && e.at < to {
			n += e.n
		}
	}
	return n
}

// window is the most dispatched in any interval of length d that begins at from or later.
func (f *fleet) window(d, from time.Duration) (most int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum, tail := 0, 0
	for _, e := range f.events {
		if e.at < from {
			tail++
			continue
		}
		sum += e.n
		for f.events[tail].at <= e.at-d {
			sum -= f.events[tail].n
			tail++
		}
		most = max(most, sum)
	}
	return most
}

// p99 is the 99th percentile of a replica's waits.
func (f *fleet) p99(id int) time.Duration {
	f.mu.Lock()
	w := slices.Sorted(slices.Values(f.waits[id]))
	f.mu.Unlock()
	if len(w) == 0 {
		return 0
	}
	return w[len(w)*99/100]
}

func (f *fleet) tripsPerMessage() float64 {
	f.store.mu.Lock()
	trips := f.store.trips
	f.store.mu.Unlock()
	return float64(trips) / float64(max(1, f.between(0, time.Hour)))
}

func (f *fleet) String() string {
	return fmt.Sprintf("dispatched %d, any second %d, %.4f trips a message", f.between(0, time.Hour), f.window(time.Second, 0), f.tripsPerMessage())
}
