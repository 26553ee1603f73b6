package dispatch_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

func divided(t testing.TB, text string, groups ...string) policy.Policy {
	t.Helper()
	p := rate(t, text)
	p.Sharing.Mode, p.Sharing.Groups, p.Sharing.PoolTTL = policy.Groups, groups, policy.Duration(poolTTL)
	return p
}

// Each worker group has the same part of the limit, however many workers it has. The others get
// what a group leaves, except a fifth of its part.
func TestGroups(t *testing.T) {
	t.Parallel()
	for how, wants := range appetites {
		fleets(t, how, divided(t, "1000/s", "eu", "us"), func(t *testing.T, f *fleet) {
			for i := range 3 {
				f.joinGroup(i, "group", "eu").greedy(wants)
			}
			us := f.joinGroup(3, "group", "us")
			us.greedy(wants)
			time.Sleep(11 * second)
			eu := func(from, to time.Duration) (n int) {
				for i := range 3 {
					n += f.by(i, from, to)
				}
				return n
			}
			within(t, "eu", eu(second, 11*second), 4900, 5050)
			within(t, "us", f.by(3, second, 11*second), 4900, 5050)
			within(t, "any second", f.window(second, 0), 950, 1150)
			us.stop() // its worker stays, without demand
			time.Sleep(11 * second)
			within(t, "eu, with us idle", eu(12*second, 22*second), 8800, 9050)
			us.ctx, us.stop = f.ctx, func() {}
			us.greedy(wants)
			time.Sleep(11 * second)
			within(t, "us, back", f.by(3, 23*second, 33*second), 4900, 5050)
		})
	}
}

// A long period opens evenly, and a worker that is in none of the groups gets nothing.
func TestGroupsOfALongPeriod(t *testing.T) {
	t.Parallel()
	fleets(t, "", divided(t, "60/1m", "eu", "us"), func(t *testing.T, f *fleet) {
		f.joinGroup(0, "group", "eu").greedy(1)
		f.joinGroup(1, "group", "us").greedy(1)
		other := f.joinGroup(2, "group", "asia")
		other.greedy(1)
		time.Sleep(5 * time.Minute)
		within(t, "eu", f.by(0, 0, 5*time.Minute), 145, 152)
		within(t, "us", f.by(1, 0, 5*time.Minute), 145, 152)
		within(t, "any ten seconds", f.window(10*second, 0), 9, 13)
		assert.Zero(t, f.by(2, 0, 5*time.Minute))
		s := other.lim.Stats().Subscriptions[0]
		assert.Equal(t, dispatch.ReasonNoGroup, s.Reason)
		assert.Equal(t, "asia", s.Limits[0].Group)
	})
}

// In a network partition, each side uses only its own part: the side without the permit store
// continues with its group's part, and the other side leaves that alone.
func TestGroupsUnderAPartition(t *testing.T) {
	t.Parallel()
	for loss, without := range map[policy.OnOutage]int{policy.OutageShare: 500, policy.OutageStop: 0} {
		p := divided(t, "1000/s", "eu", "us")
		p.OnOutage = loss
		fleets(t, string(loss), p, func(t *testing.T, f *fleet) {
			for i := range 2 {
				f.joinGroup(i, "group", "eu").greedy(100)
			}
			us := []*replica{f.joinGroup(2, "group", "us"), f.joinGroup(3, "group", "us")}
			for _, r := range us {
				r.greedy(100)
			}
			time.Sleep(3 * second)
			cut := func(yes bool) {
				f.store.Locked(func() { us[0].link.Cut, us[1].link.Cut = yes, yes })
			}
			cut(true)
			time.Sleep(8 * second)
			within(t, "eu", f.by(0, 5*second, 11*second)+f.by(1, 5*second, 11*second), 2900, 3050)
			within(t, "us, cut off", f.by(2, 5*second, 11*second)+f.by(3, 5*second, 11*second),
				6*without*95/100, 6*without+10)
			time.Sleep(6 * poolTTL)
			gone := time.Since(f.start)
			time.Sleep(second)
			assert.Zero(t, f.by(2, gone, gone+second), "stops before it is forgotten")
			cut(false)
			time.Sleep(5 * second)
			back := time.Since(f.start) - 3*second
			within(t, "both", f.between(back, back+3*second), 2900, 3100)
			within(t, "any second", f.window(second, second), 950, 1250) // 1230 at other phases
		})
	}
}
