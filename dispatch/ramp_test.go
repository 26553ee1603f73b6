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
	p.Ramp.Mode, p.Ramp.From, p.Ramp.Over, p.Ramp.TTL = mode, policy.PerSecond(150), policy.Duration(10*second),
		policy.Duration(5*second)
	return p
}

// rampedIn returns the number of messages that the ramp allows in a second of it. Second 0 starts
// with the first slot.
func rampedIn(second int) int { return min(150+45*second, 600) }

// All replicas follow one ramp, whatever the sharing mode: they share the permits of each second,
// and the ramp continues when replicas are replaced.
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
				if sharing == policy.Split { // no permits are used before
					first = poolTTL
				}
				time.Sleep(first + 4*second)
				for i := range 4 {
					at := time.Duration(i) * second
					if sharing == policy.Split {
						within(t, "a second of the ramp", f.between(first+at, first+at+second),
							0, rampedIn(i+int(first/second))+3)
						continue
					}
					within(t, "a second of the ramp", f.between(at, at+second),
						rampedIn(i)*93/100, rampedIn(i)*104/100+2)
				}
				for _, r := range old { // all replicas are replaced, two seconds later
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
					if mode == policy.RampRelaxed { // the seconds without requests
						steps -= 2
					}
					if sharing == policy.Split { // new replicas first ask for the pool size
						within(t, "resumed", f.between(at, at+second), 0, rampedIn(steps+1)+4)
						continue
					}
					within(t, "resumed", f.between(at, at+second), rampedIn(steps)*93/100, rampedIn(steps)*104/100+2)
				}
				time.Sleep(6 * second)
				from = time.Since(f.start)
				time.Sleep(second)
				within(t, "at the top", f.between(from, from+second), 580, 606)
			})
		}
	}
}

// A relaxed ramp pauses while there are no requests; a scheduled one does not. After a silence of
// its ttl, each starts again.
func TestRampWithoutTraffic(t *testing.T) {
	for _, c := range []struct {
		mode  policy.RampMode
		pause time.Duration
		steps int
	}{
		{policy.RampRelaxed, 4 * second, 2},
		{policy.RampScheduled, 4 * second, 6},
		{policy.RampRelaxed, 7 * second, 0},
		{policy.RampScheduled, 7 * second, 0},
	} {
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
			within(t, "the first second after", f.between(from, from+second),
				rampedIn(c.steps)*93/100, rampedIn(c.steps)*104/100+2)
		})
	}
}

// A limit that is changed during its ramp continues from the present rate.
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
