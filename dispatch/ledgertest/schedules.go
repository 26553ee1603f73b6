package ledgertest

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Backend is where the limits of random schedules are. The zero value simulates one.
type Backend struct {
	// Open returns the ledger of one schedule, which shares nothing with those of others. Nil: it is simulated.
	Open func(t *testing.T) dispatch.Ledger

	// Lose makes the ledger forget everything. Nil: a real one does not.
	Lose func()

	// RealTime says that the ledger cannot live in a synctest bubble: timers are as late as the machine has them.
	RealTime bool
}

// Seeds are those to run: that of THROTTLE_SEED, or as many as THROTTLE_SEEDS says, or as a short or, with THROTTLE_LONG, a
// long run takes.
func Seeds(t *testing.T, short, long int) (all []uint64) {
	if text := os.Getenv("THROTTLE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		return []uint64{seed}
	}
	if text := os.Getenv("THROTTLE_SEEDS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		short = n
	} else if os.Getenv("THROTTLE_LONG") != "" {
		short = long
	}
	for seed := range short {
		all = append(all, uint64(seed))
	}
	return all
}

// Run runs random schedules of every way to share on a backend: joins, leaves, crashes, links that are cut for a while, rates that
// change, a store that freezes, forgets, comes back old, loses and doubles what it is sent, and whose clock steps. A schedule that
// breaks what its way promises is made as short as it can be, and printed. (The clocks of clients cannot break anything: no
// Limiter reads the time of day.)
func Run(t *testing.T, b Backend, seeds []uint64) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range seeds {
				if t.Failed() {
					return
				}
				steps := m.draw(seed, b)
				if wrong := b.try(t, m, seed, steps); wrong != "" {
					steps, wrong = b.shrink(t, m, seed, steps, wrong)
					t.Errorf("%s; replay with THROTTLE_SEED=%d\nthe shortest schedule found:\n%s", wrong, seed, text(steps))
				}
			}
		})
	}
}

// A step is something that happens. All that is random in it was drawn beforehand, so that it does the same in a shorter schedule.
type step struct {
	op    string
	n     int // of which, or how much
	d     time.Duration
	pause time.Duration // after it
}

func (s step) String() string { return fmt.Sprintf("%s %d %v, then %v pass", s.op, s.n, s.d, s.pause) }

func text(steps []step) string {
	var lines []string
	for _, s := range steps {
		lines = append(lines, "\t"+s.String())
	}
	return strings.Join(lines, "\n")
}

// A mode is a way to share, what may happen to it, and what it promises.
type mode struct {
	name   string
	rate   int64
	policy policy.Policy
	ops    []string // beside those of everybody
	right  func(*run) string
}

var everybody = []string{"join", "join", "join", "leave", "crash", "cut", "freeze", "lossy", "lossless"}

const ttl = time.Second

var modes = []mode{
	{"booked", 400, policy.Policy{}, []string{"rate", "rate", "forget", "keep", "restore", "double", "skew"}, (*run).neverOver},
	{"strict", 20, policy.Policy{Sharing: policy.Strict}, []string{"double"}, (*run).neverNear},
	{"strict, in a queue", 20, policy.Policy{Sharing: policy.Strict, Wait: policy.WaitQueue, MaxReserved: new(int64(2))}, []string{"double"}, (*run).neverNear},
	{"split", 100, policy.Policy{Sharing: policy.Split, PoolTTL: policy.Duration(ttl)}, []string{"ramp"}, (*run).neverMore},
	{"groups", 100, policy.Policy{Sharing: policy.Divide, PoolTTL: policy.Duration(ttl), Groups: "0,1"}, []string{"ramp"}, (*run).neverMore},
}

// draw makes a schedule.
func (m mode) draw(seed uint64, b Backend) (steps []step) {
	rng := rand.New(rand.NewPCG(seed, 3))
	ops := append(slices.Clone(everybody), m.ops...)
	steps = append(steps, step{"join", rng.IntN(100), 0, 0})
	n := 10 + rng.IntN(6)
	if b.RealTime {
		n /= 2
	}
	for range n {
		s := step{ops[rng.IntN(len(ops))], rng.IntN(100), time.Duration(rng.Int64N(int64(time.Second))), time.Duration(rng.Int64N(int64(600 * time.Millisecond)))}
		if b.can(s.op) {
			steps = append(steps, s)
		}
	}
	return steps
}

// can says which steps a backend knows.
func (b Backend) can(op string) bool {
	switch op {
	case "keep", "restore", "skew":
		return b.Open == nil
	case "forget":
		return b.Open == nil || b.Lose != nil
	}
	return true
}

// shrink leaves out steps for as long as what is left is still wrong.
func (b Backend) shrink(t *testing.T, m mode, seed uint64, steps []step, wrong string) ([]step, string) {
	for i := 0; i < len(steps); {
		fewer := slices.Delete(slices.Clone(steps), i, i+1)
		if still := b.try(t, m, seed, fewer); still != "" {
			steps, wrong, i = fewer, still, 0
		} else {
			i++
		}
	}
	return steps, wrong
}

// try runs a schedule, and says what was wrong with it.
func (b Backend) try(t *testing.T, m mode, seed uint64, steps []step) (wrong string) {
	once := func(t *testing.T) {
		r := b.start(t, m, seed)
		for _, s := range steps {
			r.do(s)
			time.Sleep(s.pause)
		}
		if seed%10 == 3 {
			r.recover()
		}
		r.end()
		if wrong = r.right(); wrong == "" {
			wrong = r.stuck
		}
	}
	if b.RealTime {
		once(t)
	} else {
		synctest.Test(t, once)
	}
	return wrong
}

// A run is one schedule under way.
type run struct {
	mode
	t       *testing.T
	backend Backend
	seed    uint64
	store   *Store
	start   time.Time
	ctx     context.Context
	stop    context.CancelFunc
	wg      sync.WaitGroup
	alive   []*replica
	all     []*replica
	policy  policy.Policy
	changes chan struct{} // closed at each
	rev     int64
	periods []period
	losses  []time.Duration
	old     map[string]*Limit
	stuck   string

	mu     sync.Mutex
	events []event
}

type replica struct {
	link    *Link
	crashed bool
	lim     *dispatch.Limiter
	stop    context.CancelFunc
}

// An event is n permits dispatched by a replica.
type event struct {
	at time.Duration
	n  int
}

// A period is when a rate was in force.
type period struct {
	from time.Duration
	rate int64
}

func (b Backend) start(t *testing.T, m mode, seed uint64) *run {
	var real dispatch.Ledger
	if b.Open != nil {
		real = b.Open(t)
	}
	r := &run{
		mode: m, t: t, backend: b, seed: seed, store: NewStore(seed, real), start: time.Now(), changes: make(chan struct{}),
		periods: []period{{0, m.rate}}, policy: m.policy,
	}
	r.ctx, r.stop = context.WithCancel(t.Context())
	r.policy.MessageRate, r.policy.OnLedgerLoss = policy.PerSecond(m.rate), policy.LossStop
	r.change(func() {})
	return r
}

func (r *run) now() time.Duration { return time.Since(r.start) }

// change changes the policy.
func (r *run) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	r.rev++
	close(r.changes)
	r.changes = make(chan struct{})
}

// Snapshots makes a run a PolicySource.
func (r *run) Snapshots(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
	return func(yield func(policy.Snapshot, error) bool) {
		for ctx.Err() == nil {
			r.mu.Lock()
			s, changed := policy.Snapshot{Set: policy.Single(r.policy), Identity: "schedules", Revision: r.rev}, r.changes
			r.mu.Unlock()
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

// most is how many replicas are alive at once.
const most = 6

func (r *run) do(s step) {
	if len(r.alive) == 0 && s.op != "join" {
		return
	}
	switch s.op {
	case "join":
		if len(r.alive) < most {
			r.join(s.n)
		}
	case "leave", "crash":
		if len(r.alive) < 2 {
			return
		}
		i := s.n % len(r.alive)
		gone := r.alive[i]
		r.alive = slices.Delete(r.alive, i, i+1)
		if s.op == "crash" {
			r.store.Do(func() { gone.link.Cut, gone.crashed = true, true })
		}
		gone.stop()
		if s.op == "leave" {
			require.NoError(r.t, gone.lim.Close())
		}
	case "cut":
		one := r.alive[s.n%len(r.alive)]
		r.store.Do(func() { one.link.Cut = true })
		r.wg.Go(func() {
			time.Sleep(s.d)
			r.store.Do(func() { one.link.Cut = one.crashed })
		})
	case "freeze":
		r.store.Do(func() { r.store.Frozen = time.Now().Add(s.d) })
	case "lossy":
		r.store.Do(func() { r.store.LoseCalls, r.store.LoseReplies = float64(s.n)/2000, float64(100-s.n)/2000 })
	case "lossless":
		r.store.Do(func() { r.store.LoseCalls, r.store.LoseReplies, r.store.Duplicate = 0, 0, 0 })
	case "double":
		r.store.Do(func() { r.store.Duplicate = float64(s.n) / 1000 })
	case "rate", "ramp":
		r.change(func() {
			if s.op == "rate" {
				rate := []int64{20, 100, 400}[s.n%3]
				r.policy.MessageRate = policy.PerSecond(rate)
				r.periods = append(r.periods, period{r.now(), rate})
			}
			r.policy.RampFrom, r.policy.RampOver, r.policy.RampTTL = policy.Rate{}, 0, 0
			if s.n%4 == 0 {
				r.policy.RampFrom, r.policy.RampOver, r.policy.RampTTL = policy.PerSecond(10), policy.Duration(2*time.Second), policy.Duration(time.Second)
				r.policy.Ramp = []policy.RampMode{policy.RampScheduled, policy.RampRelaxed}[s.n/4%2]
			}
		})
	case "forget":
		r.losses = append(r.losses, r.now())
		if r.backend.Lose != nil {
			r.backend.Lose()
		}
		r.store.Do(func() { clear(r.store.Limits) })
	case "keep":
		r.old = r.store.Copy()
	case "restore":
		if r.old != nil {
			r.losses = append(r.losses, r.now())
			r.store.Do(func() { r.store.Limits = r.old })
			r.old = nil
		}
	case "skew":
		r.losses = append(r.losses, r.now())
		r.store.Do(func() { r.store.Skew += time.Duration(s.n%11-5) * time.Second })
	}
}

// join starts a replica; n says of which subscription, in which group, and how much it wants.
func (r *run) join(n int) {
	one := &replica{link: &Link{Store: r.store}}
	var err error
	one.lim, err = dispatch.Open(r.ctx, dispatch.Config{
		Policies: r, Ledger: one.link, Group: strconv.Itoa(n % 2), Rand: rand.New(rand.NewPCG(r.seed, uint64(len(r.all)))),
	})
	require.NoError(r.t, err)
	sub, err := one.lim.Subscription("kafka://public/default/orders", strconv.Itoa(n%3))
	require.NoError(r.t, err)
	var ctx context.Context
	ctx, one.stop = context.WithCancel(r.ctx)
	wants := 1
	if n%4 == 0 && r.mode.policy.Sharing != policy.Strict {
		wants = 1 << 20
	}
	for range 1 + n%2 {
		r.wg.Go(func() {
			for {
				g, err := sub.Acquire(ctx, wants)
				if err != nil {
					return
				}
				r.mu.Lock()
				r.events = append(r.events, event{r.now(), g.N()})
				r.mu.Unlock()
			}
		})
	}
	r.alive, r.all = append(r.alive, one), append(r.all, one)
}

// recover ends all trouble, and looks whether somebody new is served soon, and the limit used.
func (r *run) recover() {
	r.do(step{op: "lossless"})
	r.store.Do(func() {
		r.store.Frozen = time.Time{}
		for _, one := range r.alive {
			one.link.Cut = false
		}
	})
	r.change(func() { r.policy.RampOver, r.policy.RampFrom, r.policy.RampTTL = 0, policy.Rate{}, 0 })
	r.join(0)
	r.join(1) // of the other group: one whose workers have crashed is left alone for long
	time.Sleep(4 * ttl)
	from := r.now()
	time.Sleep(2 * time.Second)
	want := r.periods[len(r.periods)-1].rate
	if got := r.between(from, from+2*time.Second); float64(got) < 0.6*2*float64(want) {
		r.stuck = fmt.Sprintf("with all trouble over, %d of %d dispatched in two seconds", got, 2*want)
	}
}

func (r *run) end() {
	r.stop()
	r.wg.Wait()
	for _, one := range r.all {
		assert.NoError(r.t, one.lim.Close())
	}
	r.store.Wait()
}

func (r *run) right() string { return r.mode.right(r) }

func (r *run) between(from, to time.Duration) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.at >= from && e.at < to {
			n += e.n
		}
	}
	return n
}

// intervals yields, for each event and each length, what was dispatched in the interval that ends with it.
func (r *run) intervals(lengths ...time.Duration) iter.Seq2[time.Duration, event] {
	return func(yield func(time.Duration, event) bool) {
		for _, d := range lengths {
			sum, tail := 0, 0
			for _, e := range r.events {
				sum += e.n
				for r.events[tail].at <= e.at-d {
					sum -= r.events[tail].n
					tail++
				}
				if !yield(d, event{e.at, sum}) {
					return
				}
			}
		}
	}
}

// neverOver: no interval has more than rate x (d + 0.25 s).
func (r *run) neverOver() string {
	for d, e := range r.intervals(100*time.Millisecond, 500*time.Millisecond, time.Second, 3*time.Second) {
		if most := r.allowed(e.at-d, e.at); float64(e.n) > most {
			return fmt.Sprintf("%d dispatched in the %v before %v, at most %.0f allowed", e.n, d, e.at, most)
		}
	}
	return ""
}

// allowed is the most that may be dispatched in [from, to): the rates in force, a quarter of a second of slack,
// and for each state lost what others held, which after a cut of the rate lasts for seconds.
func (r *run) allowed(from, to time.Duration) float64 {
	sum, lately, before := 0.0, int64(0), int64(0)
	for i, p := range r.periods {
		end := to
		if i+1 < len(r.periods) {
			end = min(to, r.periods[i+1].from)
		}
		if begin := max(from, p.from); begin < end {
			sum += float64(p.rate) * (end - begin).Seconds()
		}
		if p.from < to && end+2*time.Second > from { // booked at that rate
			lately = max(lately, p.rate)
		}
		if p.from < to && end+5*time.Second > from {
			before = max(before, p.rate)
		}
	}
	held := 0.0
	for _, at := range r.losses {
		if at >= from-5*time.Second && at < to {
			held = 0.2 * float64(before)
		}
	}
	return sum + 0.25*float64(lately) + held + 3*float64(len(r.all)) // the lightest shares hold a permit in each batch
}

// neverNear: no two calls are nearer than the period, but for slow replies and late timers.
func (r *run) neverNear() string {
	least := time.Second/time.Duration(r.rate) - 5*time.Millisecond
	if r.backend.RealTime {
		least -= 25 * time.Millisecond
	}
	for i := 1; i < len(r.events); i++ {
		if gap := r.events[i].at - r.events[i-1].at; gap < least {
			return fmt.Sprintf("two calls %v apart, at %v", gap, r.events[i].at)
		}
	}
	return ""
}

// neverMore: what is split has the limit and one for each replica; what is divided over groups, what 0.8 s have beyond it: as much may have opened, or been drawn, before.
func (r *run) neverMore() string {
	slack := float64(len(r.all))
	if r.mode.policy.Sharing == policy.Divide {
		slack += 0.8*float64(r.rate) + 4 // each of two groups keeps one permit, and rounds up
	}
	if r.backend.RealTime {
		slack += 0.1 * float64(r.rate)
	}
	for d, e := range r.intervals(time.Second, 3*time.Second) {
		if most := d.Seconds()*float64(r.rate) + slack; float64(e.n) > most {
			return fmt.Sprintf("%d dispatched in the %v before %v, at most %.0f allowed", e.n, d, e.at, most)
		}
	}
	return ""
}
