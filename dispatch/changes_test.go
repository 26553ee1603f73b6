package dispatch_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// ways are policies of all sharing modes, at a rate.
func ways(t testing.TB, text string) map[string]policy.Policy {
	t.Helper()
	p := rate(t, text)
	p.Sharing.Groups, p.Sharing.PoolTTL = []string{"eu", "us"}, policy.Duration(poolTTL)
	all := map[string]policy.Policy{}
	for _, sharing := range []policy.SharingMode{policy.Fair, policy.Strict, policy.Split, policy.Groups} {
		p.Sharing.Mode = sharing
		all[string(sharing)] = p
	}
	p.Sharing.Mode, p.Sharing.Wait, p.Sharing.MaxReserved = policy.Strict, policy.WaitQueue, new(int64(0))
	all["queue"] = p
	p.Sharing.Mode, p.Sharing.Replicas = policy.Split, new(int64(2))
	all["fixed split"] = p
	p.Sharing.Mode, p.Sharing.Replicas, p.Ramp.Over = policy.Fair, nil, policy.Duration(time.Hour)
	all["ramp"] = p
	return all
}

// A changed limit is in force at once, whatever its rate and sharing mode were before.
func TestEveryChangeHolds(t *testing.T) {
	t.Parallel()
	for before, from := range ways(t, "2/1h") {
		for after, to := range ways(t, "100/s") {
			if after == "ramp" { // starts low
				continue
			}
			fleets(t, before+" to "+after, from, func(t *testing.T, f *fleet) {
				f.joinGroup(0, "group", "eu").greedy(10)
				f.joinGroup(1, "group", "us").greedy(10)
				time.Sleep(5 * second)
				f.policies.Set(policy.Single(to))
				time.Sleep(5*second + 3*poolTTL) // the replicas have to agree on the pool
				since := time.Since(f.start)
				time.Sleep(10 * second)
				lowest := 930
				if after == "queue" { // no slot is allocated ahead, so each is a round trip late
					lowest = 890
				}
				within(t, "ten seconds", f.between(since, since+10*second), lowest, 1010)
			})
		}
	}
}

// The same while the permit store is unavailable, with another sharing mode in between.
func TestEveryChangeHoldsWhenThePermitStoreIsBack(t *testing.T) {
	for name, detour := range ways(t, "2/1h") {
		fleets(t, name, rate(t, "1/1h"), func(t *testing.T, f *fleet) {
			r := f.joinGroup(0, "group", "eu")
			f.store.Locked(func() { r.link.Cut = true })
			r.greedy(1)
			time.Sleep(5 * second)
			f.policies.Set(policy.Single(detour))
			time.Sleep(5 * second)
			f.policies.Set(policy.Single(rate(t, "100/s")))
			time.Sleep(5 * second)
			f.store.Locked(func() { r.link.Cut = false })
			time.Sleep(2 * second)
			since := time.Since(f.start)
			time.Sleep(10 * second)
			within(t, "ten seconds", f.between(since, since+10*second), 950, 1010)
		})
	}
}

// With `open`, a replica throttles again when the permit store is available again.
func TestOpenAndBack(t *testing.T) {
	for name, p := range ways(t, "10/s") {
		if name == "fixed split" || name == "ramp" { // needs no permit store; starts low
			continue
		}
		p.OnOutage = policy.OutageOpen
		fleets(t, name, p, func(t *testing.T, f *fleet) {
			r := f.joinGroup(0, "group", "eu")
			r.paced(200)
			time.Sleep(10 * second)
			f.store.Locked(func() { r.link.Cut = true })
			time.Sleep(20 * second)
			within(t, "a second without the permit store", f.between(29*second, 30*second), 190, 201)
			f.store.Locked(func() { r.link.Cut = false })
			time.Sleep(25 * second)
			within(t, "five with it again", f.between(50*second, 55*second), 44, 52)
		})
	}
}

// A ramp that starts low grants the permits that accrue along it, not one every 1/from.
func TestRampsFromLow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate        string
		from        policy.Rate
		over, watch time.Duration
		want        int
	}{
		{"1/1h", policy.Rate{}, time.Minute, 20 * time.Hour, 20},
		{"100/s", policy.Rate{Permits: 1, Period: time.Hour}, time.Minute, 2 * time.Minute, 9_000},
		{"10/s", policy.Rate{}, time.Hour, 350 * second, 171},
	} {
		for _, sharing := range []policy.SharingMode{policy.Fair, policy.Strict} {
			p := rate(t, c.rate)
			p.Sharing.Mode, p.Ramp.From, p.Ramp.Over = sharing, c.from, policy.Duration(c.over)
			fleets(t, fmt.Sprint(sharing, c), p, func(t *testing.T, f *fleet) {
				f.join(0, "group").greedy(1)
				time.Sleep(c.watch)
				within(t, "messages", f.between(0, c.watch), c.want*90/100, c.want*103/100+1)
			})
		}
	}
}

// A split limit follows its ramp with a fixed pool size, too, and stays at the top while the
// permit store is unavailable.
func TestRampOfASplit(t *testing.T) {
	for _, replicas := range []int64{0, 1} {
		p := rate(t, "1000/s")
		p.Sharing.Mode, p.Sharing.Replicas, p.Sharing.PoolTTL = policy.Split, &replicas, policy.Duration(poolTTL)
		p.Ramp.From, p.Ramp.Over, p.Ramp.TTL = policy.PerSecond(10), policy.Duration(5*second),
			policy.Duration(10*second)
		fleets(t, fmt.Sprint(replicas), p, func(t *testing.T, f *fleet) {
			r := f.join(0, "group")
			r.greedy(1 << 20)
			time.Sleep(15 * second)
			within(t, "at the top", f.between(13*second, 14*second), 990, 1001)
			f.store.Locked(func() { r.link.Cut = true })
			time.Sleep(20 * second)
			within(t, "long without the permit store", f.between(33*second, 34*second), 990, 1001)
		})
	}
}

// A caller that gives up leaves the queue at once, and the callers behind it move up.
func TestQueueMovesUp(t *testing.T) {
	fleets(t, "", queueing(t, "1/10s", 0), func(t *testing.T, f *fleet) {
		take := func(r *replica, ctx context.Context) {
			r.wg.Go(func() {
				if _, err := r.sub.Acquire(ctx, 1); err == nil {
					r.record(r.id, 1)
				}
			})
		}
		take(f.join(0, "group"), f.ctx)
		time.Sleep(100 * time.Millisecond)
		impatient, cancel := context.WithCancel(f.ctx)
		for i := range 20 {
			take(f.join(1+i, "group"), impatient)
			time.Sleep(10 * time.Millisecond)
		}
		take(f.join(50, "group"), f.ctx)
		time.Sleep(2 * second)
		cancel()
		time.Sleep(100 * time.Millisecond)
		f.store.Locked(func() {
			for _, l := range f.store.Limits {
				within(t, "waiters, with one left", len(l.State.Queue), 1, 1)
			}
		})
		time.Sleep(10 * second)
		within(t, "the patient caller, in its turn", f.by(50, 0, 11*second), 1, 1)
	})
}

// TestStatsWhileClosing: Stats does not see a half-finished return of permits. The race detector
// checks this.
func TestStatsWhileClosing(t *testing.T) {
	for range 20 {
		lim, err := dispatch.Open(t.Context(), dispatch.Config{
			Policies: dispatch.Fixed(policy.Policy{
				MessageRate: policy.PerSecond(1000), CaughtUp: policy.CaughtUp{Throttle: new(true)},
			}),
		})
		require.NoError(t, err)
		sub, err := lim.Subscription("kafka://public/default/orders", "billing")
		require.NoError(t, err)
		g, err := sub.Acquire(t.Context(), 10)
		require.NoError(t, err)
		g.Done(0, 0)
		stop := make(chan struct{})
		var watching sync.WaitGroup
		watching.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = sub.Stats()
				}
			}
		})
		require.NoError(t, lim.Close())
		close(stop)
		watching.Wait()
	}
}

// After a low limit is raised, replicas do not all get the same slot.
func TestRaiseKeepsThePace(t *testing.T) {
	for _, to := range []string{"141/1m", "4"} {
		fleets(t, to, rate(t, "35/1m"), func(t *testing.T, f *fleet) {
			for i := range 8 {
				f.join(i, "group").greedy(1)
			}
			time.Sleep(20 * second)
			f.policies.Set(policy.Single(rate(t, to)))
			changed := time.Since(f.start)
			time.Sleep(20 * second)
			perSec := rate(t, to).MessageRate.PerSec()
			within(t, "excess, permits", f.excess(perSec, changed).Seconds()*perSec, 0, 3)
			within(t, "in 20 s", float64(f.between(changed, changed+20*second)), 20*perSec*0.95-1, 20*perSec+3)
		})
	}
}

// A raised limit is in force at once, even if the next slot of the low limit was far away.
func TestRaiseOfALowRate(t *testing.T) {
	for _, low := range []string{"1/h", "1/6s", "10/s"} {
		fleets(t, low, rate(t, low), func(t *testing.T, f *fleet) {
			f.join(0, "group").greedy(1)
			time.Sleep(10*second + 50*time.Millisecond)
			f.policies.Set(policy.Single(perSecond(1000)))
			changed := time.Since(f.start)
			time.Sleep(second)
			within(t, "the first 100 ms", f.between(changed, changed+100*time.Millisecond), 80, 110)
			within(t, "the first second", f.between(changed, changed+second), 970, 1010)
		})
	}
}

// After a deep cut, no permits of the old line are dispatched in addition to the new one.
func TestDeepCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to string
		minutes  int // of messages, in ten
	}{{"10000", "10", 6000}, {"1000000", "10", 6000}, {"1000", "1/6s", 100}} {
		for _, replicas := range []int{1, 8} {
			name := fmt.Sprintf("%s to %s, %d replicas", c.from, c.to, replicas)
			fleets(t, name, rate(t, c.from), func(t *testing.T, f *fleet) {
				for i := range replicas {
					f.join(i, "group").greedy(1000)
				}
				time.Sleep(2 * second)
				f.policies.Set(policy.Single(rate(t, c.to)))
				changed := time.Since(f.start)
				time.Sleep(600 * second)
				within(t, "ten minutes", f.between(changed+second/10, changed+600*second),
					c.minutes*98/100, c.minutes*101/100+replicas)
			})
		}
	}
}

// After a deep cut, nobody waits for the slots of a crashed replica; nor if the state is lost.
func TestLostAfterADeepCut(t *testing.T) {
	fleets(t, "", perSecond(1000), func(t *testing.T, f *fleet) {
		f.join(0, "group").greedy(1)
		crashed := f.join(1, "group")
		crashed.greedy(1)
		time.Sleep(2 * second)
		crashed.crash()
		f.policies.Set(policy.Single(perSecond(10)))
		time.Sleep(100 * time.Millisecond)
		f.store.Locked(func() { clear(f.store.Limits) })
		lost := time.Since(f.start)
		time.Sleep(4 * second)
		within(t, "the first second", f.between(lost, lost+second), 8, 11)
		within(t, "two seconds, a little later", f.between(lost+3*second/2, lost+7*second/2), 18, 22)
	})
}

// While the permit store is unavailable, a share follows the limit.
func TestCutWhileThePermitStoreIsAway(t *testing.T) {
	fleets(t, "", perSecond(1000), func(t *testing.T, f *fleet) {
		for i := range 8 {
			f.join(i, "group").greedy(1)
		}
		time.Sleep(3 * second)
		f.store.Locked(func() {
			for _, r := range f.joined {
				r.link.Cut = true
			}
		})
		time.Sleep(3 * second)
		f.policies.Set(policy.Single(perSecond(100)))
		changed := time.Since(f.start)
		time.Sleep(5 * second)
		for range 4 {
			changed += second
			within(t, "a second", f.between(changed, changed+second), 90, 110)
		}
	})
}
