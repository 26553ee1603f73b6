package sharing

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/policy"
)

// bound is how long a caller may wait for the first permit of a new replica, in seconds.
func bound(rate float64) float64 { return math.Max(2, 2/rate) + 0.01 }

// waits is how long a new replica's caller waits, in seconds.
func (w *world) waits(limit resolve.Limit) float64 {
	c := w.join(limit)
	c.once = 1
	from := w.now
	for len(c.got) == 0 && w.now < from+20/limit.Rate+100 {
		w.run(0.01 + 0.001/limit.Rate)
	}
	if len(c.got) == 0 {
		return math.Inf(1)
	}
	return c.got[0] - from
}

// kill ends a replica without a word.
func (c *client) kill() { c.due, c.answerAt = math.Inf(1), math.Inf(1) }

// TestBoundBesideTheDead: however many replicas request permits and are killed, or give up, one
// after the other or all at once, a new one waits for two periods or two seconds at most, also
// after the limit was removed and set again.
func TestBoundBesideTheDead(t *testing.T) {
	ends := map[string]func(c *client){
		"are killed": (*client).kill,
		"give up": func(c *client) {
			c.once = 0
			c.touch()
		},
		"close": func(c *client) {
			c.once, c.closing = 0, true
			c.touch()
		},
	}
	for _, mode := range []policy.SharingMode{policy.Fair, policy.Strict} {
		for _, rate := range []float64{10, 1, 0.2, 0.01, 1.0 / 3600} {
			for _, others := range []int{1, 8, 100} {
				for end, leave := range ends {
					for _, after := range []float64{0, 0.03, 0.7} { // 0 = all at once
						for _, queue := range []bool{false, mode == policy.Strict} {
							w, limit := newWorld(), limited(mode, rate)
							limit.MaxReserved, limit.Queue, limit.Expiry = 64, queue, 0.1
							for range others {
								c := w.join(limit)
								c.once = 1
								if w.run(after); after > 0 {
									leave(c)
								}
							}
							w.run(0.3)
							for _, c := range w.clients {
								leave(c)
							}
							what := fmt.Sprintf("%s %v/s queue=%v, %d %s after %v s", mode, rate, queue, others, end, after)
							assert.LessOrEqual(t, w.waits(limit), bound(rate), what)
							again := at(limit, rate) // removed and set
							assert.LessOrEqual(t, w.waits(again), bound(rate), "removed and set: "+what)
						}
					}
				}
			}
		}
	}
}

// TestBoundAmongTheImpatient: processes whose callers give up and come again and again do not keep
// a new caller waiting, nor the limit unused.
func TestBoundAmongTheImpatient(t *testing.T) {
	for _, rate := range []float64{10, 0.2} {
		for _, patience := range []float64{0.05, 0.7} {
			w, limit := newWorld(), limited(policy.Fair, rate)
			for range 20 {
				w.join(limit)
			}
			for i := range int(20 / patience) {
				c := w.clients[i%20]
				c.once = 1
				c.touch()
				w.run(patience / 2)
				c.once = 0
				c.touch()
				w.run(patience / 2)
			}
			assert.LessOrEqual(t, w.waits(limit), bound(rate), "%v/s, %v s", rate, patience)
		}
	}
}

// TestRefusedReplicaAsksAgain: a refused replica that is to come back much later notices that the
// limit has changed, also while it has no caller, and that the others have given up.
func TestRefusedReplicaAsksAgain(t *testing.T) {
	for name, change := range map[string]func(w *world, c *client){
		"a higher limit": func(_ *world, c *client) { c.Apply(at(c.Limit, 1000)) },
		"a higher limit, while nobody waits": func(w *world, c *client) {
			c.callers = 0
			c.touch()
			w.run(5)
			c.Apply(at(c.Limit, 1000))
			c.touch()
			w.run(5)
			c.once = 1
		},
		"the others give up": func(w *world, c *client) {
			for _, other := range w.clients {
				if other != c {
					other.closing = true
					other.touch()
				}
			}
		},
	} {
		w, limit := newWorld(), limited(policy.Fair, 1.0/3600)
		for range 3 {
			w.join(limit).callers = 1
			w.run(0.1)
		}
		c := w.clients[2]
		assert.Empty(t, c.got)
		w.run(10)
		change(w, c)
		c.touch()
		from := w.now
		w.run(3700)
		if assert.NotEmpty(t, c.got, name) {
			assert.LessOrEqual(t, c.got[0]-from, 3600.0, name)
			assert.True(t, c.got[0]-from < maxLater+0.1 || name == "the others give up", name)
		}
	}
}

// TestBoundAfterADeepCut: slots that were allocated at a high rate do not fill the line of a low
// one. Replicas that know of neither the old slots nor the cut get no more than the limit.
func TestBoundAfterADeepCut(t *testing.T) {
	for _, to := range []float64{500, 50, 1, 0.2, 1.0 / 3600} {
		for _, killed := range []bool{false, true} {
			w, limit := newWorld(), limited(policy.Fair, 1000)
			for range 8 {
				w.join(limit).callers = 1
			}
			w.run(2)
			low := at(limit, to)
			from := w.now
			for _, c := range w.clients {
				if killed {
					c.kill()
					continue
				}
				c.Apply(low)
				c.touch()
			}
			what := fmt.Sprintf("to %v/s, killed: %v", to, killed)
			if killed {
				assert.LessOrEqual(t, w.waits(low), bound(to), what)
				continue
			}
			w.run(math.Max(5, 10/to))
			got := 0
			for _, c := range w.clients {
				got += c.between(from+0.001, w.now)
			}
			assert.InDelta(t, to*(w.now-from), got, 2+to*0.25, what)
		}
	}
}

// TestCrowd: many replicas with light shares use the whole limit, get as much as each other, and
// make few requests in vain.
func TestCrowd(t *testing.T) {
	for _, c := range []struct {
		rate     float64
		replicas int
		requests float64 // a message
	}{
		{1000, 50, 0.6}, {100, 50, 1.05}, {10, 20, 1.1}, {10, 50, 1.2}, {10, 100, 5}, {1, 10, 8}, {0.2, 8, 10},
	} {
		w := newWorld()
		for range c.replicas {
			w.join(limited(policy.Fair, c.rate)).callers = 1
		}
		w.run(20)
		from, before := w.now, len(w.requests)
		seconds := math.Max(60, 20/c.rate)
		w.run(seconds)
		got, least, most := 0, math.MaxInt, 0
		for _, cl := range w.clients {
			n := cl.between(from, w.now)
			got += n
			least, most = min(least, n), max(most, n)
		}
		what := fmt.Sprintf("%v/s, %d replicas", c.rate, c.replicas)
		assert.InDelta(t, c.rate*seconds, got, 1+0.01*c.rate*seconds, what)
		even := c.rate * seconds / float64(c.replicas)
		assert.GreaterOrEqual(t, float64(least), 0.75*even-1, what)
		assert.LessOrEqual(t, float64(most), 1.25*even+1, what)
		assert.LessOrEqual(t, float64(len(w.requests)-before), c.requests*float64(got), what)
		t.Logf("%s: %.1f %% used, %.2f requests a message, %d to %d each, tail %.1f s ahead", what,
			100*float64(got)/c.rate/seconds, float64(len(w.requests)-before)/float64(got), least, most,
			w.state.Tail-w.now)
	}
}

// TestReturnedPermitLeavesNoGap: a replica that has given back its permit of a slow limit, unused,
// gets the slot again, and does not wait for the next one.
func TestReturnedPermitLeavesNoGap(t *testing.T) {
	for _, rate := range []float64{1.0 / 3600, 0.1} {
		w := newWorld()
		c := w.join(limited(policy.Fair, rate))
		c.once = 1
		w.run(0.05)
		assert.Len(t, c.got, 1)
		c.HeldBack()
		c.Return(1) // it was not used
		r := c.Drain(w.now)
		if assert.NotNil(t, r) {
			w.do(r, w.now)
			c.Answered(r, w.now, w.now)
		}
		c.once = 1
		c.touch()
		w.run(1)
		assert.Len(t, c.got, 2, "%v/s", rate)
	}
}
