package dispatch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/policy"
)

func splitting(t testing.TB, text string) policy.Policy {
	t.Helper()
	p := rate(t, text)
	p.Sharing.Mode, p.Sharing.PoolTTL = policy.Split, policy.Duration(2*time.Second)
	return p
}

const poolTTL = 2 * time.Second

// Each replica gets the same part, whatever its demand, and the parts add up to the limit.
func TestSplit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate     string
		replicas int
		seconds  int
		all      int
	}{{"1000/s", 4, 10, 10_000}, {"1000/s", 7, 10, 10_000}, {"10/s", 20, 20, 200}, {"1/1m", 3, 600, 10}} {
		name := fmt.Sprintf("%s, %d replicas", c.rate, c.replicas)
		fleets(t, name, splitting(t, c.rate), func(t *testing.T, f *fleet) {
			for i := range c.replicas {
				f.join(i, "group").greedy(1 << 20)
			}
			from := 3 * poolTTL
			d := time.Duration(c.seconds) * second
			time.Sleep(from + d)
			within(t, "all", f.between(from, from+d), c.all*99/100-1, c.all+c.replicas)
			within(t, "any second", f.window(second, 0), 0, c.all/c.seconds+c.replicas+1)
			for i := range c.replicas {
				within(t, "a replica's", f.by(i, from, from+d), c.all/c.replicas*97/100-1, c.all/c.replicas*103/100+2)
			}
		})
	}
}

// The pool grows, shrinks, and recovers from a crash and a rolling restart. In any second, the sum
// never exceeds the limit plus the pool size.
func TestSplitPoolChanges(t *testing.T) {
	fleets(t, "", splitting(t, "1000/s"), func(t *testing.T, f *fleet) {
		var all []*replica
		join := func(n int) {
			for range n {
				r := f.join(len(f.joined), "group")
				r.greedy(1 << 20)
				all = append(all, r)
			}
		}
		settled := func(what string) {
			t.Helper()
			time.Sleep(poolTTL + 200*time.Millisecond)
			from := time.Since(f.start)
			time.Sleep(2 * second)
			within(t, what, f.between(from, from+2*second), 1980, 2007)
		}
		join(4)
		time.Sleep(poolTTL)
		settled("four")
		join(3)
		settled("seven")
		for range 4 {
			all[0].leave()
			all = all[1:]
		}
		settled("three")
		all[0].crash()
		all = all[1:]
		settled("two, after a crash")
		for range 2 { // a rolling restart
			all[0].leave()
			all = all[1:]
			join(1)
			time.Sleep(second)
		}
		settled("restarted")
		within(t, "any second", f.window(second, 0), 900, 1007)
	})
}

// A pool size in the policy needs no permit store.
func TestSplitByAFixedCount(t *testing.T) {
	p := splitting(t, "100/s")
	p.Sharing.Replicas = new(int64(4))
	fleets(t, "", p, func(t *testing.T, f *fleet) {
		for i := range 4 {
			f.join(i, "group").greedy(1)
		}
		time.Sleep(10 * second)
		within(t, "all", f.between(second, 10*second), 880, 910)
		assert.Zero(t, f.store.Requests)
		assert.Empty(t, f.store.Values)
	})
}

// A permit store that is unavailable, at the start or later, is logged once. Replicas continue as
// the policy says, and use the store when it is available again.
func TestSplitWithoutAPermitStore(t *testing.T) {
	for loss, without := range map[policy.OnOutage]int{policy.OutageShare: 1000, policy.OutageStop: 0} {
		p := splitting(t, "100/s")
		p.OnOutage = loss
		fleets(t, string(loss), p, func(t *testing.T, f *fleet) {
			cut := func(yes bool) {
				f.store.Locked(func() {
					for _, r := range f.joined {
						r.link.Cut = yes
					}
				})
			}
			for i := range 4 {
				f.join(i, "group").greedy(1)
			}
			cut(true)
			time.Sleep(5 * second)
			assert.Zero(t, f.between(0, 5*second), "no replica knows the others")
			assert.True(t, f.joined[0].lim.Stats().Permits.Unavailable)
			cut(false)
			time.Sleep(3*poolTTL + 10*second)
			within(t, "with it", f.between(5*second+3*poolTTL, 15*second+3*poolTTL), 980, 1004)
			cut(true)
			time.Sleep(poolTTL)
			gone := time.Since(f.start)
			time.Sleep(10 * second)
			within(t, "without it", f.between(gone, gone+10*second), without*98/100, without+4)
			cut(false)
			time.Sleep(3 * poolTTL)
			back := time.Since(f.start)
			time.Sleep(10 * second)
			within(t, "and with it again", f.between(back, back+10*second), 980, 1004)
			assert.False(t, f.joined[0].lim.Stats().Permits.Unavailable)
		})
	}
}
