package schedule_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

func claim(source string, epoch int64, rate, heard float64) schedule.Claim {
	return schedule.Claim{Source: source, Rev: schedule.Revision{Epoch: epoch, Number: 1}, Rate: rate, Heard: heard}
}

func TestArbitrate(t *testing.T) {
	const now = 1000.0
	none := schedule.Claim{}
	a, b := claim("a", 5, 100, now-1), claim("b", 9, 200, now-1)
	asks := func(c schedule.Claim) schedule.Claim {
		c.Heard = now
		return c
	}
	for _, c := range []struct {
		name           string
		held, rival    schedule.Claim
		own            schedule.Claim
		inForce, other schedule.Claim
	}{
		{"one store", a, none, a, asks(a), none},
		{"one store, newer", a, none, claim("a", 6, 300, 0), claim("a", 6, 300, now), none},
		{"one store, older", a, none, claim("a", 4, 3, 0), asks(a), none},
		{"one store, the same revision, lower", a, none, claim("a", 5, 90, 0), claim("a", 5, 90, now), none},
		{"another one, higher", a, none, b, a, asks(b)},
		{"another one, lower", b, none, a, asks(a), b},
		{"another one, as high: the holder stays", a, none, claim("b", 9, 100, 0), a, claim("b", 9, 100, now)},
		{"the rival is newer, and lower now", a, b, claim("b", 10, 50, 0), claim("b", 10, 50, now), a},
		{"the rival is older", a, b, claim("b", 8, 50, 0), a, asks(b)},
		{"the holder is higher now", a, b, claim("a", 6, 300, 0), b, claim("a", 6, 300, now)},
		{"the holder was silent for a minute", claim("a", 5, 100, now-61), b, b, asks(b), none},
		{"it was not", claim("a", 5, 100, now-59), b, b, claim("a", 5, 100, now-59), asks(b)},
		{"the rival was silent", a, claim("b", 9, 200, now-61), a, asks(a), none},
		{"a low limit may be silent for longer", claim("a", 5, 0.02, now-99), b, b, claim("a", 5, 0.02, now-99), asks(b)},
		{"a holder that was silent, and no rival", claim("a", 5, 100, now-61), none, b, asks(b), none},
		{"a third one, the highest", a, b, claim("c", 1, 900, 0), a, b},
		{"a third one, in between", a, b, claim("c", 1, 150, 0), a, claim("c", 1, 150, now)},
		{"a third one, the lowest", a, b, claim("c", 1, 50, 0), claim("c", 1, 50, now), a},
		{"without a source, newer", a, none, claim("", 6, 300, 0), claim("", 6, 300, now), none},
		{"without a source, older", a, b, claim("", 4, 3, 0), a, b},
		{"of an unknown source beside a rival, older", claim("", 5, 100, now-1), b, claim("", 4, 3, 0), claim("", 5, 100, now-1), none},
		{"as seldom as the lower rate lets it", claim("a", 5, 0.02, now-1), claim("b", 9, 200, now-99), claim("a", 5, 0.02, 0),
			claim("a", 5, 0.02, now), claim("b", 9, 200, now-99)},
		{"of an unknown source, older", claim("", 5, 100, now-1), none, claim("a", 4, 3, 0), claim("", 5, 100, now-1), none},
		{"of an unknown source, the same revision", claim("", 5, 100, now-1), none, a, asks(a), none},
		{"of an unknown source, newer", claim("", 5, 100, now-1), none, b, asks(b), none},
	} {
		inForce, other := schedule.Arbitrate(c.held, c.rival, c.own, now)
		assert.Equal(t, c.inForce, inForce, c.name)
		assert.Equal(t, c.other, other, c.name)
	}
}

// TestLowerRateOfTwoStores: of two policy stores, whichever asks first, the lower rate is in force
// while both ask, and no request has the line of the other one changed. A minute after the lower
// one's last request, the other rate is in force.
func TestLowerRateOfTwoStores(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var s schedule.State
		subs, carries := map[string]schedule.Sub{}, map[string]schedule.Carry{}
		ask := func(source string, now, rate float64, epoch int64) schedule.Reply {
			r := request()
			r.Source, r.Rate, r.Rev, r.Carry = source, rate, schedule.Revision{Epoch: epoch, Number: 1}, carries[source]
			r.Strict, r.MaxReserved = seed%2 == 1, 2
			r.Nonce = 1 + rng.Int64N(1<<50)
			next, sub, reply := schedule.Allocate(s, subs[source], r, now)
			require.False(t, reply.Lost, "seed %d", seed)
			require.True(t, reply.Sound(r), "seed %d", seed)
			s, subs[source], carries[source] = next, sub, reply.Carry
			return reply
		}
		low, high := 50+100*rng.Float64(), 200+1000*rng.Float64()
		epochs := map[string]int64{"low": 1 + rng.Int64N(10), "high": 11 + rng.Int64N(10)}
		if rng.IntN(2) == 0 {
			epochs["low"], epochs["high"] = epochs["high"], epochs["low"]
		}
		rates := map[string]float64{"low": low, "high": high}
		now, both := 1e6, map[string]bool{}
		for range 500 {
			now += 0.3 * rng.Float64()
			source := []string{"low", "high"}[rng.IntN(2)]
			both[source] = true
			reply := ask(source, now, rates[source], epochs[source])
			if both["low"] && both["high"] {
				assert.InDelta(t, low, reply.Rate, 1e-9, "seed %d", seed)
				assert.Equal(t, map[string]string{"low": "high", "high": "low"}[source], reply.Rival)
				assert.Equal(t, schedule.Version, s.Version())
			}
		}
		lastOfLow := s.Heard
		for reply := ask("high", now, high, epochs["high"]); ; reply = ask("high", now, high, epochs["high"]) {
			if now-lastOfLow > 60.2 {
				assert.InDelta(t, high, reply.Rate, 1e-9, "seed %d", seed)
				assert.Empty(t, reply.Rival)
				break
			}
			if now-lastOfLow <= 60 {
				assert.InDelta(t, low, reply.Rate, 1e-9, "seed %d", seed)
			}
			now += 0.1
		}
		assert.NotEqual(t, schedule.Version, s.Version(), "programs of the version before may use it")
		assert.InDelta(t, low, ask("low", now+1, low, epochs["low"]).Rate, 1e-9, "seed %d", seed)
	}
}

// TestSilenceAndClocks: a claim does not end because the permit store's clock steps.
func TestSilenceAndClocks(t *testing.T) {
	var s schedule.State
	var sub schedule.Sub
	ask := func(source string, now, shown, rate float64) schedule.Reply {
		r := request()
		r.Source, r.Rate, r.Rev = source, rate, schedule.Revision{Epoch: int64(rate), Number: 1}
		r.Low, r.High = shown, shown+0.01
		var reply schedule.Reply
		s, sub, reply = schedule.Allocate(s, sub, r, now)
		return reply
	}
	ask("low", 1e6, 1e6, 50)
	ask("high", 1e6+1, 1e6+1, 500)
	ask("high", 1e6+2, 1e6+2, 500)
	reply := ask("high", 1e6+103, 1e6+3, 500) // the clock has stepped by 100 s
	assert.InDelta(t, 50, reply.Rate, 0)
	assert.Equal(t, "low", reply.Rival)
	assert.False(t, math.Signbit(s.Heard))
}

// TestCutBesideRival: when the policy store whose rate is in force lowers it, replicas that follow
// another one use the slots that they have: those of the new rate come after them, and soon.
func TestCutBesideRival(t *testing.T) {
	const now = 1e6
	for _, strict := range []bool{false, true} {
		var s schedule.State
		subs, carries := map[string]schedule.Sub{}, map[int]schedule.Carry{}
		nonce := int64(0)
		ask := func(replica int, source string, rate float64, rev int64, held float64) schedule.Reply {
			r := request()
			r.Source, r.Rate, r.Rev = source, rate, schedule.Revision{Epoch: 1, Number: rev}
			r.Strict, r.MaxReserved, r.Held, r.Carry, r.Sole = strict, 30, held, carries[replica], true
			r.Demand, r.Want = rate, 50
			nonce++
			r.Nonce = nonce
			next, sub, reply := schedule.Allocate(s, subs[source], r, now)
			s, subs[source], carries[replica] = next, sub, reply.Carry
			return reply
		}
		before, after := 1000.0, 1.0
		if strict {
			before = 10
		}
		ask(0, "a", before, 1, 0)
		last := 0.0
		for i := range 20 {
			if reply := ask(1+i, "b", 2000, 9, 0); reply.N > 0 {
				last = max(last, reply.Start+(reply.N-1)*reply.Gap)
			}
		}
		require.Positive(t, last)
		ask(0, "a", after, 2, 0)
		if strict {
			assert.GreaterOrEqual(t, s.Tail, now+last+1/after-1e-9, "all slots that are held stay in use")
		}
		for i := range 20 {
			reply := ask(1+i, "b", 2000, 9, 50)
			assert.InDelta(t, after, reply.Rate, 1e-9)
			if strict && reply.N > 0 {
				assert.GreaterOrEqual(t, reply.Start, last+1/after-1e-9, "a period after the last slot")
				last = reply.Start
			}
		}
		assert.LessOrEqual(t, s.Tail, now+5.0, "nobody waits for long")
	}
}
