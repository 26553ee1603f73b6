package dispatch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// beside opens another subscription in the replica's process. What it dispatches counts under id.
func (r *replica) beside(id int, subscription string, options ...dispatch.SubscriptionOption) *replica {
	other := *r
	var err error
	other.id = id
	other.sub, err = r.lim.Subscription(topic, subscription, options...)
	require.NoError(r.t, err)
	return &other
}

// TestTurns: the subscriptions of a process take turns at the slots of a strict limit, however many
// callers each has.
func TestTurns(t *testing.T) {
	t.Parallel()
	waits := map[string]policy.WaitMode{"at random": "", "in a queue": policy.WaitQueue}
	for how, wait := range waits {
		for _, limit := range []string{"20/s", "500/s", "1/2s"} {
			for _, callers := range [][]int{{50, 1}, {50, 2}, {2, 1}, {20, 1, 1, 1}, {3, 30, 1}} {
				p := strictly(t, limit)
				p.Sharing.Wait = wait
				fleets(t, fmt.Sprint(how, ", ", limit, " among ", callers), p, func(t *testing.T, f *fleet) {
					process := f.join(0, "subscription 0")
					for i, n := range callers {
						r := process
						if i > 0 {
							r = process.beside(i, fmt.Sprint("subscription ", i))
						}
						for range n {
							r.greedy(1)
						}
					}
					period := time.Duration(float64(time.Second) / p.MessageRate.PerSec())
					from, end := max(3*second, 10*period), max(3*second, 10*period)+300*period
					time.Sleep(end)
					_, n := f.gaps(from, end)
					within(t, "all", n, 294, 301)
					for i := range callers {
						share := 300 / len(callers)
						within(t, fmt.Sprint("subscription ", i), f.by(i, from, end), share*95/100, share*105/100+1)
					}
				})
			}
		}
	}
}

// TestTurnsOfOwners: a subscription has one turn, however many owners its messages have.
func TestTurnsOfOwners(t *testing.T) {
	fleets(t, "", strictly(t, "20/s"), func(t *testing.T, f *fleet) {
		process := f.join(0, "sole")
		process.greedy(1)
		for i := range 10 {
			process.beside(1+i, "many", dispatch.WithTenantGroup(fmt.Sprint("owner-", i))).greedy(1)
		}
		time.Sleep(100 * second)
		within(t, "all", f.between(0, 100*second), 1999, 2001)
		within(t, "requests a message", f.requestsPerMessage(), 0, 1.1)
		within(t, "sole", f.by(0, 0, 100*second), 980, 1020)
		for i := range 10 {
			within(t, fmt.Sprint("owner ", i), f.by(1+i, 0, 100*second), 70, 130)
		}
	})
}

// TestTurnsOfQuiet: a caller that comes now and then is served in its turn, and neither it nor
// callers that give up cost the others a slot.
func TestTurnsOfQuiet(t *testing.T) {
	fleets(t, "", strictly(t, "20/s"), func(t *testing.T, f *fleet) {
		process := f.join(0, "greedy")
		for range 30 {
			process.greedy(1)
		}
		quiet := process.beside(1, "quiet")
		quiet.poisson(2, 1)
		impatient := process.beside(2, "impatient")
		impatient.wg.Go(func() {
			for time.Since(f.start) < 80*second {
				ctx, cancel := context.WithTimeout(impatient.ctx, 30*time.Millisecond)
				if g, err := impatient.sub.Acquire(ctx, 1); err == nil {
					impatient.record(2, g.N())
				}
				cancel()
				time.Sleep(83 * time.Millisecond)
			}
		})
		time.Sleep(100 * second)
		within(t, "all", f.between(0, 100*second), 1960, 2001)
		within(t, "the quiet caller's wait", f.p99(1), 0, 500*time.Millisecond)
		within(t, "the impatient caller's", f.by(2, 0, 100*second), 100, 1000)
		within(t, "requests a message", f.requestsPerMessage(), 0, 1.2)
		for _, s := range process.lim.Stats().Subscriptions {
			if s.Subscription == "impatient" {
				assert.Zero(t, s.Limits[0].Held, "it has been away for long")
			}
		}
	})
}

// TestTurnsOfNewcomers: callers of ever new subscriptions take turns with those that stay.
func TestTurnsOfNewcomers(t *testing.T) {
	fleets(t, "", strictly(t, "20/s"), func(t *testing.T, f *fleet) {
		process := f.join(0, "stays")
		process.greedy(1)
		process.wg.Go(func() {
			for i := 0; process.ctx.Err() == nil; i++ {
				process.wg.Go(func() {
					newcomer := process.beside(1, fmt.Sprint("newcomer ", i))
					ctx, cancel := context.WithTimeout(process.ctx, 100*time.Millisecond)
					defer cancel()
					if g, err := newcomer.sub.Acquire(ctx, 1); err == nil {
						newcomer.record(1, g.N())
					}
					assert.NoError(t, newcomer.sub.Close())
				})
				time.Sleep(29 * time.Millisecond)
			}
		})
		time.Sleep(100 * second)
		within(t, "all", f.between(0, 100*second), 1960, 2001)
		within(t, "the one that stays", f.by(0, 0, 100*second), 280, 600)
		within(t, "the newcomers", f.by(1, 0, 100*second), 1000, 1750)
	})
}

// TestTurnsHindered: a subscription that another limit holds up takes no turns.
func TestTurnsHindered(t *testing.T) {
	p := strictly(t, "20/s")
	fleets(t, "", p, func(t *testing.T, f *fleet) {
		parsed, err := policy.ParseTopic(topic)
		require.NoError(t, err)
		slow := perSecond(1)
		slow.Sharing.Mode = policy.Fair
		set, err := policy.NewSet([]policy.Entry{
			{Scope: policy.TopicScope(parsed), Settings: p},
			{Scope: policy.SubscriptionScope(parsed, "slow"), Settings: slow},
		})
		require.NoError(t, err)
		f.policies.Set(set)
		process := f.join(0, "fast")
		for range 50 {
			process.greedy(1)
		}
		process.beside(1, "slow").greedy(1)
		time.Sleep(100 * second)
		within(t, "all", f.between(0, 100*second), 1960, 2001)
		within(t, "slow", f.by(1, 0, 100*second), 95, 102)
	})
}

// TestTurnsBesideAPacedOne: a subscription with a slower strict limit of its own takes slots of the
// topic's line that it does not use. The other callers' slots stay a period apart.
func TestTurnsBesideAPacedOne(t *testing.T) {
	t.Parallel()
	for how, row := range map[string]struct {
		sharing policy.Sharing
		least   int
	}{
		"at random":  {policy.Sharing{}, 980},
		"in a queue": {policy.Sharing{Wait: policy.WaitQueue}, 980},
		"no slot ahead": { // callers that find no free slot come back at random
			policy.Sharing{MaxReserved: new(int64(0))}, 400,
		},
	} {
		for _, own := range []string{"1/s", "5/s"} {
			for _, processes := range []int{1, 4} {
				name := fmt.Sprint(how, ", ", own, " beside ", processes)
				fleets(t, name, policy.Policy{}, func(t *testing.T, f *fleet) {
					fast := strictly(t, "20/s")
					fast.Sharing.Wait, fast.Sharing.MaxReserved = row.sharing.Wait, row.sharing.MaxReserved
					f.policies.Set(set(t, map[string]policy.Policy{
						topic: fast, topic + "?subscription=slow": strictly(t, own),
					}))
					for i := range processes {
						process := f.join(1+i, "fast")
						for range 50 {
							process.greedy(1)
						}
						process.beside(0, "slow").greedy(1)
					}
					time.Sleep(60 * second)
					within(t, "all", f.between(10*second, 60*second), row.least, 1001)
					shortest, _ := f.gaps(10*second, 60*second, 1, 2, 3, 4)
					within(t, "the shortest gap of the others", shortest, 45*time.Millisecond, time.Hour)
				})
			}
		}
	}
}

// TestTurnsThroughAChange: slots of the old rate are not used, also those of subscriptions that are
// closed while it changes.
func TestTurnsThroughAChange(t *testing.T) {
	for seed := range uint64(20) {
		fleets(t, fmt.Sprint(seed), strictly(t, "20/s"), func(t *testing.T, f *fleet) {
			rng := rand.New(rand.NewPCG(seed, 3))
			f.store.Locked(func() { f.store.RTT = func() time.Duration { return 45 * time.Millisecond } })
			process := f.join(0, "stays")
			for range 3 {
				process.greedy(1)
			}
			for i := range 4 {
				leaves := process.beside(1, fmt.Sprint("leaves ", i))
				for range 5 {
					leaves.greedy(1)
				}
				closed := 3*second + time.Duration(rng.IntN(40_000))*time.Microsecond
				leaves.wg.Go(func() {
					time.Sleep(closed)
					assert.NoError(t, leaves.sub.Close())
				})
			}
			time.Sleep(3*second + 40*time.Millisecond)
			f.policies.Set(policy.Single(strictly(t, "2/s")))
			changed := time.Since(f.start)
			time.Sleep(5 * second)
			shortest, _ := f.gaps(changed+110*time.Millisecond, changed+5*second)
			within(t, "the shortest gap", shortest, 470*time.Millisecond, time.Hour)
		})
	}
}
