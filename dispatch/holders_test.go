package dispatch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
)

// A holder acquires permits, holds them, and then uses or gives back each Grant, again and again.
type holder struct {
	n    int           // permits at a time
	hold time.Duration // of the Grants
	wait time.Duration // from the first Grant until they are used or given back
	used func(i int) bool
}

func (h holder) run(r *replica) {
	for r.ctx.Err() == nil {
		var grants []dispatch.Grant
		began := time.Now()
		collecting, cancel := context.WithTimeout(r.ctx, h.wait)
		for n := h.n; n > 0; {
			g, err := r.sub.Acquire(collecting, n)
			if err != nil {
				break
			}
			g.Hold(h.hold)
			n -= g.N()
			grants = append(grants, g)
		}
		cancel()
		sleep(r.ctx, h.wait-time.Since(began))
		for i := range grants {
			used := 0
			if h.used(i) {
				used = grants[i].N()
				r.record(r.id, used)
			}
			grants[i].Done(used, 0)
		}
		sleep(r.ctx, time.Millisecond)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// TestHolders: however many permits are held, by however many replicas, and given back and held
// again, in any interval t at most rate x (t + the longest Hold + 0.25 s) is used, even if callers
// come that use all they get. Those who use what they hold get the limit.
func TestHolders(t *testing.T) {
	const ms = time.Millisecond
	never := func(int) bool { return false }
	always := func(int) bool { return true }
	half := func(i int) bool { return i%2 == 0 }
	for name, c := range map[string]struct {
		rate    int64 // a second
		holders []holder
		least   float64 // part of the limit that is used; 0 = any
	}{
		"never used":          {100, []holder{{10_000, 3000 * ms, 2950 * ms, never}}, 0},
		"at different times":  {100, []holder{{300, 3000 * ms, 2950 * ms, never}, {200, 3000 * ms, 1900 * ms, never}, {100, 3000 * ms, 700 * ms, half}}, 0},
		"a poller of 1 s":     {100, []holder{{1000, 1000 * ms, 990 * ms, never}}, 0},
		"half of it":          {100, []holder{{100, 1000 * ms, 900 * ms, half}}, 0.5},
		"half, in half of it": {100, []holder{{300, 3000 * ms, 1500 * ms, half}}, 0.85},
		"all, late":           {100, slices.Repeat([]holder{{100, 3000 * ms, 2950 * ms, always}}, 4), 0.85},
		"all, one at a time":  {100, slices.Repeat([]holder{{1, 1000 * ms, 10 * ms, always}}, 2), 0.95},
		"slow":                {1, []holder{{3, 3000 * ms, 2950 * ms, never}, {1, 3000 * ms, 2900 * ms, half}}, 0},
		"fast":                {10_000, []holder{{5000, 500 * ms, 450 * ms, half}, {1000, 500 * ms, 450 * ms, never}}, 0.3},
	} {
		for _, replicas := range []int{1, 3, 8} {
			for _, seed := range permitstest.Seeds(t, 1, 20) {
				t.Run(fmt.Sprintf("%s/%d/%d", name, replicas, seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f := newFleet(t, seed, perSecond(c.rate))
						rng := rand.New(rand.NewPCG(seed, uint64(replicas)))
						for id := range replicas {
							r := f.join(id, "group")
							for _, h := range c.holders {
								f.wg.Go(func() { h.run(r) })
							}
							time.Sleep(time.Duration(rng.Int64N(int64(50 * ms))))
						}
						time.Sleep(20*second - time.Since(f.start))
						for _, r := range f.joined[:(replicas+1)/2] {
							r.greedy(1000)
						}
						time.Sleep(5 * second)
						f.end()
						longest := c.holders[0].hold
						for _, d := range []time.Duration{10 * ms, 300 * ms, second, 3 * second, 10 * second} {
							most := float64(c.rate) * (d + longest + 250*ms).Seconds()
							assert.LessOrEqual(t, float64(f.window(d, 0)), most+float64(replicas), "in %v", d)
						}
						assert.GreaterOrEqual(t, float64(f.between(0, 20*second)), c.least*float64(c.rate)*20)
					})
				})
			}
		}
	}
}
