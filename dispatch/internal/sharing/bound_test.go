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
								w.run(after)
								if after > 0 {
									leave(c)
								}
							}
							w.run(0.05)
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
// a new caller waiting.
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

// TestRefusedReplicaAsksAgain: a refused replica that is to come back much later notices within
// seconds that the limit has changed, also while it has no caller, and that a slot has come back.
func TestRefusedReplicaAsksAgain(t *testing.T) {
	const period = 3600.0
	for name, c := range map[string]struct {
		change func(w *world, refused, other *client)
		within float64 // seconds
	}{
		"a higher limit": {func(_ *world, refused, _ *client) {
			refused.Apply(at(refused.Limit, 1000))
		}, 0.1},
		"a higher limit, while nobody waits": {func(w *world, refused, _ *client) {
			refused.callers = 0
			refused.touch()
			w.run(5)
			refused.Apply(at(refused.Limit, 1000))
			refused.touch()
			w.run(5)
			refused.callers = 1
		}, 0.1},
		"another gives up": {func(_ *world, _, other *client) {
			other.callers = 0
			other.touch()
		}, 0.4*period + 0.1},
	} {
		w, limit := newWorld(), limited(policy.Fair, 1/period)
		w.join(limit).once = 1
		w.run(0.1)
		for range 2 { // that are refused
			w.join(limit).callers = 1
			w.run(0.1)
		}
		w.run(0.6 * period)
		refused, other := w.clients[1], w.clients[2]
		if refused.Unspent() > 0 {
			refused, other = other, refused
		}
		assert.EqualValues(t, 1, other.Unspent(), "the slot of the next period")
		c.change(w, refused, other)
		refused.touch()
		from := w.now
		w.run(c.within)
		if assert.NotEmpty(t, refused.got, name) {
			assert.GreaterOrEqual(t, refused.got[0], from)
		}
	}
}

// TestAskingEarlyIsNoRefusal: only a replica that comes when it was told to, and is refused, gets
// more of the line.
func TestAskingEarlyIsNoRefusal(t *testing.T) {
	w, limit := newWorld(), limited(policy.Fair, 1.0/3600)
	w.join(limit).once = 1
	w.run(0.1)
	c := w.join(limit)
	c.callers = 1
	n := len(w.requests)
	w.run(1000)
	assert.InDelta(t, 100, len(w.requests)-n, 5, "every ten seconds")
	assert.InDelta(t, 1, c.Mode.(*fair).carry.Refused, 0)
}

// TestGivingUp: when its callers have given up for a round, a replica gives back the slots that are
// still to come.
func TestGivingUp(t *testing.T) {
	w := newWorld()
	for range 7 { // whose slots are before the one that is given back
		other := w.join(limited(policy.Fair, 10))
		other.once = 1
		w.run(0.002)
		other.kill()
	}
	c := w.join(limited(policy.Fair, 10))
	c.once = 1
	w.run(0.01)
	assert.EqualValues(t, 1, c.Unspent())
	tail := w.state.Tail
	c.once = 0
	c.touch()
	w.run(0.09)
	assert.EqualValues(t, 1, c.Unspent(), "a caller may come again")
	w.run(0.02)
	assert.Zero(t, c.Unspent())
	assert.InDelta(t, tail-0.1, w.state.Tail, 1e-9)
	assert.True(t, c.Idle())
}

// TestReturnedPermitLasts: a permit of a slow limit that was given back after its batch was spent
// can be used as long as the replica gets no other.
func TestReturnedPermitLasts(t *testing.T) {
	w := newWorld()
	c := w.join(limited(policy.Fair, 0.1))
	c.once = 1
	w.run(1)
	assert.Len(t, c.got, 1)
	c.touch()
	w.run(0.01) // the permit counts as used
	c.holdReturned.Store(true)
	c.Return(1)
	c.touch()
	w.run(5)
	assert.EqualValues(t, 1, c.Available(), "it has not gone back to the store")
	c.once = 1
	c.touch()
	w.run(0.01)
	assert.Len(t, c.got, 2)
	c.touch()
	w.run(0.01)
	c.holdReturned.Store(true)
	c.Return(1)
	c.touch()
	w.run(11)
	assert.InDelta(t, 1, w.last().Allocate.Returned, 0, "a permit takes ten seconds")
}

// TestGrantsOutdate: once no callers are left, a grant may still be returned for a round, and for
// as long as a slow share takes to get a permit. A later batch does not make it fresh again.
func TestGrantsOutdate(t *testing.T) {
	for _, c := range []struct{ rate, life float64 }{{1000, 0.1}, {1000.0 / 3600, 3.6}} {
		what := fmt.Sprintf("at %v/s", c.rate)
		w := newWorld()
		r := w.join(limited(policy.Fair, c.rate))
		r.once = 1
		w.run(0.002)
		r.Return(-99) // a message of a hundred bytes
		taken := r.step
		fair := r.Mode.(*fair)
		for !fair.batching.gone && w.now < 2 {
			w.run(0.004)
			r.touch()
		}
		assert.True(t, r.Fresh(taken), what)
		w.run(fair.usedAt + 0.9*c.life - w.now)
		assert.True(t, r.Fresh(taken), what)
		w.run(0.2 * c.life)
		assert.False(t, r.Fresh(taken), what)
		steps := r.step
		w.run(10)
		assert.LessOrEqual(t, r.step, steps+2, what)
		for range 3 {
			r.once = 1
			r.touch()
			w.run(2 / c.rate)
			assert.False(t, r.Fresh(taken), what)
		}
	}
}

// TestBoundAfterADeepCut: slots that were allocated at a high rate do not fill the line of a low
// one, if their replicas are dead. If they live, they together get the low rate.
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
		c.holdReturned.Store(true)
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
