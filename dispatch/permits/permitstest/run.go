package permitstest

import (
	"context"
	"fmt"
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
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
	"github.com/dispatchthrottle/throttle/tests/window"
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
	source  throttletest.Policies
	periods []period
	losses  []time.Duration
	old     map[string]*Limit
	stuck   string

	dispatched *window.Record
}

type replica struct {
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
		dispatched: window.NewRecord(),
		periods:    []period{{0, m.rate}}, policy: m.policy,
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

// maxAhead is for how long slots may be allocated after all faults. Over 50,000 sequences, at most
// 2.3 s were.
const maxAhead = 20 * time.Second

// maxAlive is how many replicas are alive at once.
const maxAlive = 6

func (r *run) do(s step) {
	if len(r.alive) == 0 && s.op != "join" {
		return
	}
	switch s.op {
	case "join":
		if len(r.alive) < maxAlive {
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
		r.store.Locked(func() { clear(r.store.Limits) })
	case "keep":
		r.old = r.store.Copy()
	case "restore":
		if r.old != nil {
			r.losses = append(r.losses, r.now())
			r.store.Locked(func() { r.store.Limits, r.store.Server = r.old, r.store.Server+1 })
			r.old = nil
		}
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
	one := &replica{link: &Link{Store: r.store}}
	var err error
	one.lim, err = dispatch.Open(r.ctx, dispatch.Config{
		Policies: &r.source, Permits: one.link, Group: strconv.Itoa(n % 2),
		Rand: rand.New(rand.NewPCG(r.seed, uint64(len(r.all)))),
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
				r.dispatched.Add(0, g.N())
			}
		})
	}
	r.alive, r.all = append(r.alive, one), append(r.all, one)
}

// recover ends all faults, and checks that the limit is used soon, and by new replicas. Slots that
// nobody holds any more, after a crash or a lost reply, stay allocated: their time passes first.
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
	r.join(0)
	r.join(1) // of the other group: one whose replicas have crashed keeps its permits for long
	time.Sleep(4 * ttl)
	ahead := r.ahead()
	if ahead > maxAhead {
		r.stuck = fmt.Sprintf("after all faults, slots are allocated for %v", ahead)
		return
	}
	time.Sleep(ahead)
	const d = 2 * time.Second
	want := int(r.periods[len(r.periods)-1].rate) * int(d/time.Second)
	tries := 1
	if r.backend.RealTime { // another process may have the machine for a while
		tries = 5
	}
	got := 0
	for range tries {
		from := r.now()
		time.Sleep(d)
		if got = r.dispatched.Between(from, from+d); 10*got >= 6*want {
			return
		}
	}
	r.stuck = fmt.Sprintf("after all faults, %d of %d permits were granted in %v", got, want, d)
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
}

func (r *run) right() string { return r.mode.right(r) }
