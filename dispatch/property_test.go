package dispatch_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/policy"
)

// seeds are those to run: the one of THROTTLE_SEED, or as many as a short or a long run takes.
func seeds(t *testing.T, short, long int) (all []uint64) {
	if text := os.Getenv("THROTTLE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		assert.NoError(t, err)
		return []uint64{seed}
	}
	if os.Getenv("THROTTLE_LONG") != "" {
		short = long
	}
	for seed := range short {
		all = append(all, uint64(seed))
	}
	return all
}

// A period is when a rate was in force.
type period struct {
	from time.Duration
	rate int64
}

// chaos is one random schedule: what happened, so that what is allowed can be said.
type chaos struct {
	*fleet
	rng     *rand.Rand
	periods []period
	losses  []time.Duration // when the state was lost or came back old
	alive   []*replica
	next    int
	steps   []string
}

func (c *chaos) now() time.Duration { return time.Since(c.start) }

func (c *chaos) note(format string, args ...any) {
	c.steps = append(c.steps, fmt.Sprintf("%v ", c.now())+fmt.Sprintf(format, args...))
}

func (c *chaos) join() {
	subscription := fmt.Sprint("group ", c.rng.IntN(3))
	r := c.fleet.join(c.next, subscription)
	c.next++
	c.alive = append(c.alive, r)
	switch c.rng.IntN(4) {
	case 0:
		rate := 5 + c.rng.Float64()*200
		c.note("%d joins %s, Poisson %.0f", r.id, subscription, rate)
		r.poisson(rate, c.rng.Uint64())
	case 1:
		c.note("%d joins %s, wants no end", r.id, subscription)
		r.greedy(1 << 20)
	default:
		c.note("%d joins %s, wants one at a time", r.id, subscription)
		r.greedy(1)
	}
}

// pick takes a replica out of those alive.
func (c *chaos) pick() *replica {
	if len(c.alive) < 2 {
		return nil
	}
	i := c.rng.IntN(len(c.alive))
	r := c.alive[i]
	c.alive = append(c.alive[:i], c.alive[i+1:]...)
	return r
}

func (c *chaos) step(old *map[string]*stored) {
	switch c.rng.IntN(12) {
	case 0, 1, 2:
		if len(c.alive) < 12 {
			c.join()
		}
	case 3:
		if r := c.pick(); r != nil {
			c.note("%d leaves", r.id)
			r.leave()
		}
	case 4:
		if r := c.pick(); r != nil {
			c.note("%d crashes", r.id)
			r.crash()
		}
	case 5:
		rate := []int64{50, 200, 1000, 3000}[c.rng.IntN(4)]
		c.periods = append(c.periods, period{c.now(), rate})
		p := perSecond(rate)
		p.OnLedgerLoss = policy.LossStop
		if c.rng.IntN(3) == 0 {
			p.Ramp = []policy.RampMode{policy.RampScheduled, policy.RampRelaxed}[c.rng.IntN(2)]
			p.RampFrom, p.RampOver, p.RampTTL = policy.PerSecond(10), policy.Duration(3*second), policy.Duration(second)
		}
		c.note("rate %d, ramp %s", rate, p.Ramp)
		c.policies.set(policy.Single(p))
	case 6:
		d := time.Duration(c.rng.Int64N(int64(time.Second)))
		c.note("store frozen for %v", d)
		c.store.set(func() { c.store.frozen = time.Now().Add(d) })
	case 7:
		c.note("state lost")
		c.losses = append(c.losses, c.now())
		c.store.set(func() { clear(c.store.limits) })
	case 8:
		if *old == nil {
			*old = c.store.clone()
		} else {
			c.note("old state comes back")
			c.losses = append(c.losses, c.now())
			c.store.set(func() { c.store.limits = *old })
			*old = nil
		}
	case 9:
		c.note("calls and replies are lost")
		c.store.set(func() { c.store.loseCalls, c.store.loseReplies = 0.02, 0.02 })
	case 10:
		c.note("calls and replies arrive")
		c.store.set(func() { c.store.loseCalls, c.store.loseReplies = 0, 0 })
	case 11: // time passes
	}
	time.Sleep(time.Duration(c.rng.Int64N(int64(600 * time.Millisecond))))
}

// allowed is the most that may be dispatched in [from, to): the rates in force, a quarter of a second of slack,
// and for each state lost what others held, which after a cut of the rate lasts for seconds.
func (c *chaos) allowed(from, to time.Duration) float64 {
	sum, lately, before := 0.0, int64(0), int64(0)
	for i, p := range c.periods {
		end := to
		if i+1 < len(c.periods) {
			end = min(to, c.periods[i+1].from)
		}
		if begin := max(from, p.from); begin < end {
			sum += float64(p.rate) * (end - begin).Seconds()
		}
		if p.from < to && end+2*second > from { // booked at that rate
			lately = max(lately, p.rate)
		}
		if p.from < to && end+5*second > from {
			before = max(before, p.rate)
		}
	}
	held := 0.0
	for _, at := range c.losses {
		if at >= from-5*second && at < to {
			held = 0.2 * float64(before)
		}
	}
	return sum + 0.25*float64(lately) + held + 3*float64(len(c.joined)) // the lightest shares hold a permit in each batch
}

// TestNeverOver: whatever joins, leaves, crashes and freezes, however rates change and states are
// lost, no interval has more than rate x (d + 0.25 s). Replay a failure with THROTTLE_SEED.
func TestNeverOver(t *testing.T) {
	for _, seed := range seeds(t, 60, 400) {
		synctest.Test(t, func(t *testing.T) {
			p := perSecond(1000)
			p.OnLedgerLoss = policy.LossStop
			f := newFleet(t, seed, p)
			c := &chaos{fleet: f, rng: rand.New(rand.NewPCG(seed, 3)), periods: []period{{0, 1000}}}
			c.join()
			var old map[string]*stored
			for range 25 {
				c.step(&old)
			}
			f.end()
			for _, d := range []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, second, 3 * second} {
				sum, tail := 0, 0
				for _, e := range f.events {
					sum += e.n
					for f.events[tail].at <= e.at-d {
						sum -= f.events[tail].n
						tail++
					}
					if most := c.allowed(e.at-d, e.at); float64(sum) > most {
						t.Errorf("seed %d: %d dispatched in the %v before %v, at most %.0f allowed; replay with THROTTLE_SEED=%d\n%s",
							seed, sum, d, e.at, most, seed, c.steps)
						return
					}
				}
			}
		})
	}
}

// TestNothingWasted: while somebody wants more than there is, the rate is dispatched, whoever comes and goes.
func TestNothingWasted(t *testing.T) {
	for _, seed := range seeds(t, 40, 120) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, seed, perSecond(1000))
			c := &chaos{fleet: f, rng: rand.New(rand.NewPCG(seed, 4))}
			f.join(1000, "group 0").greedy(1 + c.rng.IntN(2)*1000) // always there
			for range 10 {
				if r := c.pick(); r != nil && c.rng.IntN(2) == 0 {
					c.note("%d leaves", r.id)
					r.leave()
				} else {
					c.join()
				}
				time.Sleep(time.Duration(c.rng.Int64N(int64(second))))
			}
			time.Sleep(second) // to settle
			from := c.now()
			time.Sleep(5 * second)
			got := f.between(from, from+5*second)
			f.end()
			assert.GreaterOrEqual(t, got, 4850, "seed %d: replay with THROTTLE_SEED=%d\n%v", seed, seed, c.steps)
			assert.LessOrEqual(t, got, 5250, "seed %d", seed)
		})
	}
}

// TestFair: subscriptions that want more than their share get the same, however many replicas they have,
// and so do the replicas of each.
func TestFair(t *testing.T) {
	for _, seed := range seeds(t, 20, 80) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			f := newFleet(t, seed, perSecond(1000))
			groups := 2 + rng.IntN(3)
			members := make([][]*replica, groups)
			id := 0
			for g := range groups {
				for range 1 + rng.IntN(4) {
					r := f.join(id, fmt.Sprint("group ", g))
					r.greedy([]int{1, 50, 1 << 20}[rng.IntN(3)])
					members[g] = append(members[g], r)
					id++
					time.Sleep(time.Duration(rng.Int64N(int64(200 * time.Millisecond))))
				}
			}
			time.Sleep(2 * second)
			from := time.Since(f.start)
			time.Sleep(10 * second)
			f.end()
			for g, replicas := range members {
				share := 10_000.0 / float64(groups*len(replicas))
				for _, r := range replicas {
					assert.InEpsilon(t, share, f.by(r.id, from, from+10*second), 0.08,
						"seed %d: replica %d of group %d of %d", seed, r.id, g, groups)
				}
			}
		})
	}
}
