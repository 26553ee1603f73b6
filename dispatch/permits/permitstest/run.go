package permitstest

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/policy"
)

// A run is one sequence under way.
type run struct {
	mode
	t       *testing.T
	backend Backend
	seed    uint64
	store   *Store
	ctx     context.Context
	stop    context.CancelFunc
	wg      sync.WaitGroup
	alive   []*replica
	all     []*replica
	policy  policy.Policy
	source  Policies
	periods []period
	losses  []time.Duration
	old     map[string]*Limit
	stuck   string
	wrong   string // how the promise was broken; "" if it was not

	dispatched *window.Record
	done       map[string]int // steps, by kind
	least      float64        // part of the limit that was granted without faults
}

type replica struct {
	n       int // see join
	source  int // of permits, in dispatched
	link    *Link
	crashed bool
	lim     *dispatch.Limiter
	stop    context.CancelFunc
}

// A period is one in which a rate was in force.
type period struct {
	from time.Duration
	rate int64
}

func (b Backend) start(t *testing.T, m mode, seed uint64) *run {
	var real dispatch.PermitStore
	if b.Open != nil {
		real = b.Open(t)
	}
	r := &run{
		mode: m, t: t, backend: b, seed: seed, store: NewStore(seed, real),
		dispatched: window.NewRecord(), done: map[string]int{}, least: 1,
		periods: []period{{0, m.rate}}, policy: m.policy,
	}
	r.store.Sole = false
	r.ctx, r.stop = context.WithCancel(t.Context())
	r.policy.MessageRate, r.policy.OnOutage = policy.PerSecond(m.rate), policy.OutageStop
	r.change(func() {})
	return r
}

func (r *run) now() time.Duration { return r.dispatched.Now() }

// change changes the policy.
func (r *run) change(f func()) {
	f()
	r.source.Set(policy.Single(r.policy))
}

const topic = "kafka://public/default/orders"

// patience is how long a store in real time may take until the limit is used again. It is reached
// only in failure, however busy the machine is.
const patience = 2 * time.Minute

// maxAhead is for how long slots may be allocated after all faults. Over 50,000 sequences, at most
// 2.3 s were.
const maxAhead = 20 * time.Second

// maxAlive is how many replicas are alive at once.
const maxAlive = 6

// can reports whether a step can be done now.
func (r *run) can(s step) bool {
	switch s.op {
	case "join":
		return len(r.alive) < maxAlive
	case "leave", "crash":
		return len(r.alive) > 1
	case "restore":
		return r.old != nil
	}
	return len(r.alive) > 0
}

func (r *run) do(s step) {
	if !r.can(s) {
		return
	}
	r.done[s.op]++
	switch s.op {
	case "join":
		r.join(s.n)
	case "leave", "crash":
		i := s.n % len(r.alive)
		gone := r.alive[i]
		r.alive = slices.Delete(r.alive, i, i+1)
		if s.op == "crash" {
			r.store.Locked(func() { gone.link.Cut, gone.crashed = true, true })
		}
		gone.stop()
		if s.op == "leave" {
			require.NoError(r.t, gone.lim.Close())
		}
	case "cut":
		one := r.alive[s.n%len(r.alive)]
		r.store.Locked(func() { one.link.Cut = true })
		r.wg.Go(func() {
			time.Sleep(s.d)
			r.store.Locked(func() { one.link.Cut = one.crashed })
		})
	case "freeze":
		r.store.Locked(func() { r.store.Frozen = time.Now().Add(s.d) })
	case "lossy":
		r.store.Locked(func() {
			r.store.LoseCalls, r.store.LoseReplies = float64(s.n)/2000, float64(100-s.n)/2000
		})
	case "lossless":
		r.store.Locked(func() {
			r.store.LoseCalls, r.store.LoseReplies, r.store.Duplicate = 0, 0, 0
		})
	case "double":
		r.store.Locked(func() { r.store.Duplicate = float64(s.n) / 1000 })
	case "rate", "ramp":
		r.change(func() {
			if s.op == "rate" {
				rate := []int64{20, 100, 400}[s.n%3]
				r.policy.MessageRate = policy.PerSecond(rate)
				r.periods = append(r.periods, period{r.now(), rate})
			}
			ramp := &r.policy.Ramp
			ramp.From, ramp.Over, ramp.TTL = policy.Rate{}, 0, 0
			if s.n%4 == 0 {
				ramp.From = policy.PerSecond(10)
				ramp.Over, ramp.TTL = policy.Duration(2*time.Second), policy.Duration(time.Second)
				ramp.Mode = []policy.RampMode{policy.RampScheduled, policy.RampRelaxed}[s.n/4%2]
			}
		})
	case "forget":
		r.losses = append(r.losses, r.now())
		if r.backend.Lose != nil {
			r.backend.Lose()
		}
		r.store.Locked(func() { clear(r.store.Limits); clear(r.store.Values) })
	case "keep":
		r.old = r.store.Copy()
	case "restore":
		r.losses = append(r.losses, r.now())
		r.store.Locked(func() { r.store.Limits, r.store.Server = r.old, r.store.Server+1 })
		r.old = nil
	case "skew a little": // a step of under 20 ms is not noticed
		r.store.Locked(func() {
			r.store.Skew += time.Duration(25+s.n*2) * time.Millisecond * time.Duration(1-s.n%2*2)
		})
	case "skew":
		r.losses = append(r.losses, r.now())
		r.store.Locked(func() { r.store.Skew += time.Duration(s.n%11-5) * time.Second })
	}
}

// join starts a replica; n says of which subscription, in which worker group, and how much it
// wants.
func (r *run) join(n int) {
	one := &replica{n: n, source: len(r.all), link: &Link{Store: r.store}}
	var err error
	one.lim, err = dispatch.Open(r.ctx, dispatch.Config{
		Policies: &r.source, Permits: one.link, Group: strconv.Itoa(n % 2),
		Rand:   rand.New(rand.NewPCG(r.seed, uint64(len(r.all)))),
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(r.t, err)
	sub, err := one.lim.Subscription(topic, strconv.Itoa(n%3))
	require.NoError(r.t, err)
	var ctx context.Context
	ctx, one.stop = context.WithCancel(r.ctx)
	wants := 1
	if n%4 == 0 && r.mode.policy.Sharing.Mode != policy.Strict {
		wants = 1 << 20
	}
	for range 1 + n%2 {
		r.wg.Go(func() {
			for {
				g, err := sub.Acquire(ctx, wants)
				if err != nil {
					return
				}
				r.dispatched.Add(one.source, g.N())
			}
		})
	}
	r.alive, r.all = append(r.alive, one), append(r.all, one)
}

// recover ends all faults, and checks that the replicas that are left use the limit, and then new
// ones too. Slots that nobody holds any more, after a crash or a lost reply, stay allocated: their
// time passes first.
func (r *run) recover() {
	r.do(step{op: "lossless"})
	r.store.Locked(func() {
		r.store.Frozen = time.Time{}
		for _, one := range r.alive {
			one.link.Cut = false
		}
	})
	r.change(func() {
		ramp := &r.policy.Ramp
		ramp.From, ramp.Over, ramp.TTL = policy.Rate{}, 0, 0
	})
	for group := range 2 { // one whose replicas have crashed keeps its permits for long
		if !slices.ContainsFunc(r.alive, func(one *replica) bool { return one.n%2 == group }) {
			r.join(group)
		}
	}
	time.Sleep(4 * ttl)
	ahead := r.ahead()
	if ahead > maxAhead {
		r.stuck = fmt.Sprintf("after all faults, slots are allocated for %v", ahead)
		return
	}
	time.Sleep(ahead)
	if r.stuck = r.unused(); r.stuck == "" {
		r.join(0)
		r.join(1)
		time.Sleep(time.Second)
		r.stuck = r.unused()
	}
}

// minShare is the least part of a limit that is granted without faults, however many there were
// before. Over 10,000 sequences, at least 93 % were.
const minShare = 0.9

// unused returns what of the limit is not used, all replicas wanting more; "" if nothing: enough
// is granted, and some of it to each replica. In real time, that takes as long as the machine
// needs.
func (r *run) unused() (stuck string) {
	const d = 2 * time.Second
	due := float64(r.periods[len(r.periods)-1].rate) * d.Seconds()
	from := r.now()
	for {
		time.Sleep(d)
		now := r.now()
		got := float64(r.dispatched.Between(from, now))
		starved := slices.IndexFunc(r.alive, func(one *replica) bool {
			return r.dispatched.By(one.source, from, now) == 0
		})
		r.least = min(r.least, got/due)
		switch {
		case got < minShare*due:
			stuck = fmt.Sprintf("after all faults, %v of %v permits were granted in %v", got, due, now-from)
		case starved >= 0:
			stuck = fmt.Sprintf("after all faults, none of %v permits in %v was granted to replica %d",
				got, now-from, r.alive[starved].source)
		default:
			return ""
		}
		if !r.backend.RealTime || now-from > patience {
			return stuck
		}
	}
}

// ahead is for how long slots of the limit are allocated; 0 if the store does not say.
func (r *run) ahead() time.Duration {
	scope, err := policy.ParseScope(topic)
	require.NoError(r.t, err)
	key := permits.LimitKey("standalone", scope, false) // the default of [dispatch.Config]
	s, now, err := r.alive[0].link.State(r.ctx, key)
	if err != nil {
		return 0
	}
	return time.Duration(max(0, s.Tail-now) * float64(time.Second))
}

func (r *run) end() {
	r.stop()
	r.wg.Wait()
	for _, one := range r.all {
		assert.NoError(r.t, one.lim.Close())
	}
	r.store.Wait()
	assert.Empty(r.t, r.store.Damaged)
}

func (r *run) right() string { return r.mode.right(r) }
