package dispatch_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/policy"
)

// ramped is the vector 60/15/10 s, in tens of permits.
func ramped(t testing.TB, sharing policy.SharingMode, mode policy.RampMode) policy.Policy {
	p := rate(t, "600/s")
	p.Sharing.Mode, p.Sharing.PoolTTL = sharing, policy.Duration(poolTTL)
	p.Ramp.Mode, p.Ramp.From, p.Ramp.Over, p.Ramp.TTL = mode, policy.PerSecond(150), policy.Duration(10*second), policy.Duration(5*second)
	return p
}

// budgets says what should be dispatched in the second after the first slot, and the next one, and
// so on.
func budgets(steps int) (n int) { return min(150+45*steps, 600) }

// A ramp is one line for the whole pool, whatever the sharing: each second's budget is shared by
// all, and the ramp goes on when replicas are replaced.
func TestRamps(t *testing.T) {
	t.Parallel()
	for _, sharing := range []policy.SharingMode{policy.Fair, policy.Strict, policy.Split} {
		for _, mode := range []policy.RampMode{policy.RampScheduled, policy.RampRelaxed} {
			fleets(t, string(sharing)+", "+string(mode), ramped(t, sharing, mode), func(t *testing.T, f *fleet) {
				wants := 1 << 20
				if sharing == policy.Strict {
					wants = 1
				}
				join := func(n int) (all []*replica) {
					for range n {
						r := f.join(len(f.joined), "group")
						for range 4 {
							r.greedy(wants)
						}
						all = append(all, r)
					}
					return all
				}
				old := join(2)
				first := time.Duration(0)
				if sharing == policy.Split { // nobody spends before
					first = poolTTL
				}
				time.Sleep(first + 4*second)
				for i := range 4 {
					at := time.Duration(i) * second
					if sharing == policy.Split {
						within(t, "a second of the ramp", f.between(first+at, first+at+second), 0, budgets(i+int(first/second))+3)
						continue
					}
					within(t, "a second of the ramp", f.between(at, at+second), budgets(i)*93/100, budgets(i)*104/100+2)
				}
				for _, r := range old { // all are replaced, two seconds later
					r.leave()
				}
				from := time.Since(f.start) + 2*second
				time.Sleep(2 * second)
				assert.Zero(t, f.between(from-second, from))
				join(3)
				time.Sleep(first + second + 5*second)
				for i := int(first / second); i < 5; i++ {
					at := from + time.Duration(i)*second
					steps := int(at / second)
					if mode == policy.RampRelaxed { // the seconds in which nobody asked
						steps -= 2
					}
					if sharing == policy.Split { // newcomers ask before they may spend
						within(t, "resumed", f.between(at, at+second), 0, budgets(steps+1)+4)
						continue
					}
					within(t, "resumed", f.between(at, at+second), budgets(steps)*93/100, budgets(steps)*104/100+2)
				}
				time.Sleep(6 * second)
				from = time.Since(f.start)
				time.Sleep(second)
				within(t, "at the top", f.between(from, from+second), 580, 606)
			})
		}
	}
}

// A relaxed ramp stands still while nobody asks, a scheduled one does not; after a silence of its
// ttl each begins again.
func TestRampWithoutTraffic(t *testing.T) {
	for _, c := range []struct {
		mode  policy.RampMode
		pause time.Duration
		steps int
	}{{policy.RampRelaxed, 4 * second, 2}, {policy.RampScheduled, 4 * second, 6}, {policy.RampRelaxed, 7 * second, 0}, {policy.RampScheduled, 7 * second, 0}} {
		fleets(t, string(c.mode)+" "+c.pause.String(), ramped(t, policy.Fair, c.mode), func(t *testing.T, f *fleet) {
			burst := func() {
				r := f.join(len(f.joined), "group")
				r.greedy(100)
				time.Sleep(2 * second)
				r.leave()
			}
			burst()
			time.Sleep(c.pause)
			from := time.Since(f.start)
			burst()
			within(t, "the first second after", f.between(from, from+second), budgets(c.steps)*93/100, budgets(c.steps)*104/100+2)
		})
	}
}

// A limit that is changed on its ramp goes on from where it was.
func TestRampOfAnotherLimit(t *testing.T) {
	fleets(t, "", ramped(t, policy.Fair, policy.RampScheduled), func(t *testing.T, f *fleet) {
		for i := range 3 {
			f.join(i, "group").greedy(1 << 20)
		}
		time.Sleep(4 * second)
		p := ramped(t, policy.Fair, policy.RampScheduled)
		p.MessageRate = policy.PerSecond(1150) // steps of 100
		f.policies.Set(policy.Single(p))
		time.Sleep(2 * second)
		within(t, "the second after", f.between(5*second, 6*second), 415, 500) // 330 + 100, or 285 + 200
		p.Ramp.Mode = policy.RampNone
		f.policies.Set(policy.Single(p))
		time.Sleep(2 * second)
		within(t, "without", f.between(7*second, 8*second), 1130, 1170)
		p = ramped(t, policy.Fair, policy.RampScheduled)
		f.policies.Set(policy.Single(p))
		time.Sleep(2 * second)
		within(t, "the ramp begins when it is set", f.between(8*second, 9*second), 145, 250)
	})
}
