package permitstest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// A Recorded is a permit store whose history is recorded. Its functions are called on the test's
// goroutine.
type Recorded struct {
	Stores []dispatch.PermitStore          // one for each client
	Faults map[string]func(time.Duration)  // each begins a fault and, after that time, ends it
	Log    func(keys []string) [][]Version // of each key, once the clients have their replies
	Redis  bool                            // it takes waiters, and its clock can step
}

// Histories records one history for each seed, with faults in between, and checks that all are
// linearizable. open returns a permit store that has no data of others.
func Histories(t *testing.T, seeds []uint64, open func(t *testing.T) Recorded) {
	var requests, failed, unanswered int
	for _, seed := range seeds {
		ok := t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			h, logs := record(t, open(t), seed)
			if err := h.Check(logs); err != nil {
				t.Errorf("%v\nreplay with THROTTLE_SEED=%d", err, seed)
			}
			all, without, done := h.size()
			requests, failed, unanswered = requests+all, failed+without, unanswered-done
			for _, log := range logs {
				for i, v := range log {
					if v.made() && (i == 0 || !v.Equal(log[i-1])) { // else the request was late
						unanswered++
					}
				}
			}
		})
		if !ok {
			return
		}
	}
	t.Logf("%d histories from seed %d: %d allocations; %d failed, %d of these were carried out",
		len(seeds), seeds[0], requests, failed, unanswered)
}

// A Proxy is between a client and its store.
type Proxy interface {
	Cut()
	Freeze()
	Latency(time.Duration)
	Restore()
}

// ProxyFaults are the faults of proxies, which break three of them at once.
func ProxyFaults[P Proxy](proxies []P) map[string]func(time.Duration) {
	each := func(f func(P), d time.Duration) {
		for _, p := range proxies[:3] {
			f(p)
		}
		time.Sleep(d)
		for _, p := range proxies[:3] {
			p.Restore()
		}
	}
	return map[string]func(time.Duration){
		"three clients cut off": func(d time.Duration) { each(P.Cut, d) },
		"three clients disconnected, again and again": func(d time.Duration) {
			for range 5 {
				each(P.Cut, time.Millisecond)
				time.Sleep(d / 5)
			}
		},
		"three clients frozen":   func(d time.Duration) { each(P.Freeze, d) },
		"three clients far away": func(d time.Duration) { each(func(p P) { p.Latency(d / 2) }, d) },
	}
}

// faultsEach is how many faults a history has; maxEach, how many requests of each client.
const (
	faultsEach = 3
	maxEach    = 200
)

// record runs clients and faults.
func record(t *testing.T, b Recorded, seed uint64) (*History, map[string][]Version) {
	rng := rand.New(rand.NewPCG(seed, 4))
	h, keys := NewHistory(), []string{newKey(), newKey()}
	limits := []*recordedLimit{drawLimit(rng, keys[0], b.Redis), drawLimit(rng, keys[1], b.Redis)}
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i, store := range b.Stores {
		c := &client{h: h, id: i, clients: len(b.Stores), store: store, rng: rand.New(rand.NewPCG(seed, 5+uint64(i)))}
		clients.Go(func() { c.run(ctx, limits) })
	}
	time.Sleep(time.Duration(rng.Int64N(int64(40 * time.Millisecond))))
	for range faultsEach {
		name := pick(rng, slices.Sorted(maps.Keys(b.Faults))...)
		d := time.Duration(rng.Int64N(int64(120 * time.Millisecond)))
		t.Logf("%v: %s for %v", time.Since(h.start), name, d)
		b.Faults[name](d)
		time.Sleep(time.Duration(rng.Int64N(int64(40 * time.Millisecond))))
	}
	stop()
	clients.Wait()
	logs := map[string][]Version{}
	for i, log := range b.Log(keys) {
		logs[keys[i]] = log
	}
	return h, logs
}

func pick[T any](rng *rand.Rand, choices ...T) T { return choices[rng.IntN(len(choices))] }

// A recordedLimit is a limit with the policies that it has one after the other.
type recordedLimit struct {
	key     string
	strict  bool
	queue   bool
	bounds  bool // of the clock, in requests
	rule    busy.Rule
	rates   []float64
	ramps   []schedule.Ramp
	request atomic.Int64 // how many there have been: the policy changes with them
}

func drawLimit(rng *rand.Rand, key string, redis bool) *recordedLimit {
	l := &recordedLimit{key: key, strict: rng.IntN(3) == 0, bounds: redis}
	l.queue = redis && l.strict && rng.IntN(2) == 0
	if !l.strict && rng.IntN(3) == 0 {
		l.rule = busy.Rule{
			Mode: pick(rng, busy.ByFraction, busy.ByCount), MinRate: 1, Tolerance: 0.01, RecoverRate: 1,
		}
	}
	rate := pick(rng, 20, 1000, 1e6)
	for range 4 {
		rate *= pick(rng, 0.5, 1, 2)
		l.rates, l.ramps = append(l.rates, rate), append(l.ramps, schedule.Ramp{})
		if rng.IntN(3) == 0 {
			l.ramps[len(l.ramps)-1] = schedule.Ramp{
				From: rate / 10, Over: 2, TTL: pick(rng, 0, 1.0), Relaxed: rng.IntN(2) == 0,
			}
		}
	}
	return l
}

// A client allocates as a replica does, with arguments at random.
type client struct {
	h       *History
	id      int
	clients int // of a history
	store   dispatch.PermitStore
	rng     *rand.Rand
	known   map[string]heard
	again   sync.WaitGroup
}

// heard is the last reply to a client's request for a key.
type heard struct {
	sent, received time.Time
	reply          schedule.Reply
}

func (c *client) run(ctx context.Context, limits []*recordedLimit) {
	c.known = map[string]heard{}
	for n := 0; n < maxEach && ctx.Err() == nil; n++ {
		l := pick(c.rng, limits...)
		r := c.request(l)
		if c.rng.IntN(20) == 0 { // a second time, perhaps later than the next one
			later := time.Duration(c.rng.Int64N(int64(20 * time.Millisecond)))
			c.again.Go(func() {
				time.Sleep(later)
				_, _ = c.h.Allocate(context.WithoutCancel(ctx), c.clients+c.id, c.store, l.key, r)
			})
		}
		sent := time.Now()
		reply, err := c.h.Allocate(context.WithoutCancel(ctx), c.id, c.store, l.key, r)
		if err == nil && !reply.Late && c.rng.IntN(10) > 0 { // else the reply is lost
			c.known[l.key] = heard{sent, time.Now(), reply}
		}
		time.Sleep(time.Duration(c.rng.Int64N(int64(3 * time.Millisecond))))
	}
	c.again.Wait()
}

func (c *client) request(l *recordedLimit) schedule.Request {
	rng, known := c.rng, c.known[l.key]
	policy := min(len(l.rates)-1, int(l.request.Add(1)/50))
	if policy > 0 && rng.IntN(4) == 0 {
		policy-- // it has not heard yet
	}
	rate := l.rates[policy]
	r := schedule.Request{
		Subscription: fmt.Sprint("group ", c.id/2), Weight: pick(rng, 1, 2, 0.01),
		Reserved: pick(rng, 0, 0, rate/4), Demand: rate * rng.Float64() * 2,
		Want: pick(rng, 0, 1, 7.5, rate/10), Returned: float64(rng.IntN(3)), Held: float64(rng.IntN(10)),
		Lead: rng.Float64() / 5, RTT: rng.Float64() / 100, Round: 0.1, Burst: pick(rng, 0, 0, 50.0),
		Rate: rate, Ramp: l.ramps[policy], Rev: schedule.Revision{Epoch: 1, Number: int64(1 + policy)},
		Nonce: 1 + rng.Int64N(1<<52), Strict: l.strict, MaxReserved: pick(rng, 0, 1, 64.0), Rule: l.rule,
		Carry: known.reply.Carry,
	}
	if l.queue && rng.IntN(2) == 0 {
		r.Waiter = fmt.Sprintf("history|%d", c.id)
	}
	if l.rule.Mode != busy.None {
		r.Answers = schedule.Answers{OK: pick(rng, 0, 10.0), Busy: pick(rng, 0, 0, 3.0)}
	}
	if !known.received.IsZero() {
		if rng.IntN(2) == 0 {
			r.NotAfter = known.reply.Now + time.Since(known.received).Seconds() + 0.05
		}
		if l.bounds && rng.IntN(2) == 0 {
			r.Low = known.reply.Now + time.Since(known.received).Seconds()
			r.High = known.reply.Now + time.Since(known.sent).Seconds()
		}
	}
	return r
}
