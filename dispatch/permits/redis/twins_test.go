package redispermits_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestTwins feeds the script and the function the same requests, and wants the same replies and
// states to the last bit: while replicas join, change rates, lose replies, and while the state
// is lost, comes back old, or its clock steps.
func TestTwins(t *testing.T) {
	for name, addr := range servers(t) {
		t.Run(name, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: addr})
			defer func() { assert.NoError(t, client.Close()) }()
			store := open(t, addr)
			from, to := uint64(0), uint64(20)
			switch slow, long := name == "miniredis", permitstest.Long(); {
			case slow && long:
				from = 5
			case slow:
				to = 5
			case long:
				t.Skip("make test runs them")
			}
			for seed := from; seed < to; seed++ {
				t.Logf("seed %d", seed)
				twins(t, store, client, seed)
			}
		})
	}
}

func twins(t *testing.T, store *redispermits.Store, client *redis.Client, seed uint64) {
	ctx := t.Context()
	rng := rand.New(rand.NewPCG(seed, 2))
	key := fmt.Sprintf("throttle:{twins%d-%d}", seed, time.Now().UnixNano())
	defer client.Del(ctx, key)
	subs := map[string]schedule.Sub{}
	var state schedule.State
	var carries [6]schedule.Carry
	var oldHash map[string]string
	var oldState schedule.State
	oldSubs := map[string]schedule.Sub{}
	pick := func(choices ...float64) float64 { return choices[rng.IntN(len(choices))] }
	rate, strict := pick(1, 10, 1000, 1e6, 1.0/3600), seed%3 == 2
	var rule busy.Rule
	if seed%4 < 2 && !strict {
		rule = busy.Rule{
			Mode: busy.Mode(1 + seed/4%2), MinRate: pick(0, 0.5), Tolerance: pick(0, 0.1), RecoverRate: pick(0.5, 3),
			RecoverValue: pick(0, 200),
		}
	}
	ramp := func() schedule.Ramp {
		if seed%4 < 2 || rng.IntN(4) == 0 {
			return schedule.Ramp{}
		}
		return schedule.Ramp{
			From: rate * pick(0.1, 0.5, 2), Over: pick(1, 7, 60), TTL: pick(0, 3, 60), Relaxed: rng.IntN(2) == 0,
		}
	}
	ramps, rates := []schedule.Ramp{ramp()}, []float64{rate} // by the age of the policy
	revs := []schedule.Revision{{Epoch: 1, Number: 7}}
	for i := range 150 {
		switch rng.IntN(60) {
		case 0: // a newer policy
			rev := revs[len(revs)-1]
			rev.Number++
			if rng.IntN(3) == 0 { // a backup that was adopted
				rev = schedule.Revision{Epoch: rev.Epoch + 1, Number: 1}
			}
			rate *= pick(0.5, 2, 1.1)
			ramps, rates, revs = append(ramps, ramp()), append(rates, rate), append(revs, rev)
		case 1: // the state is lost
			client.Del(ctx, key)
			state, subs = schedule.State{}, map[string]schedule.Sub{}
		case 2: // a copy is kept
			oldHash, _ = client.HGetAll(ctx, key).Result()
			oldState, oldSubs = state, clone(subs)
		case 3: // and comes back
			if len(oldHash) > 0 {
				client.Del(ctx, key)
				client.HSet(ctx, key, oldHash)
				state, subs = oldState, clone(oldSubs)
			}
		case 8: // it is damaged
			if state.Inc != 0 {
				kind := kindOf(state)
				state = damage(state, rng)
				require.NoError(t, client.HSet(ctx, key, kind.fields(state)...).Err())
			}
		case 9: // many callers wait
			if state.Inc != 0 && strict {
				state.Queue = nil
				var queue []byte
				for i := range int(pick(3, 300)) {
					w := schedule.Waiter{Name: fmt.Sprintf("q|%d", i), Until: state.Last + pick(0.2, 5)}
					state.Queue = append(state.Queue, w)
					queue = binary.LittleEndian.AppendUint64(queue, math.Float64bits(w.Until))
					queue = append(append(queue, byte(len(w.Name))), w.Name...)
				}
				require.NoError(t, client.HSet(ctx, key, "q", queue).Err())
			}
		case 7: // another server has it
			if state.Inc != 0 && strict {
				state.Server++
				require.NoError(t, client.HSet(ctx, key, "l", encode(state)).Err())
			}
		case 4, 5, 6: // the clock was ahead until now, or behind: seen from the state, that is the same
			if state.Inc != 0 {
				step := pick(5, -5, -1.5, -3, 0.01)
				state.Last += step
				state.Tail += step
				state.Start += step
				state.Quick += step
				state.Checked += step
				state.Resumed += step
				if state.Step.By != 0 {
					state.Step.At += step
				}
				require.NoError(t, client.HSet(ctx, key, "l", encode(state)).Err())
				if state.Ramp != (schedule.Ramp{}) {
					state.Line.Seen += step
					state.Line.Epoch += int64(step)
					require.NoError(t, client.HSet(ctx, key, "r", encodeRamp(state)).Err())
				}
			}
		}
		if rule.Mode != busy.None && state.Outcomes.Since > 0 && rng.IntN(2) == 0 { // time goes by
			step := pick(1, 1, 1.7, 4, -3)
			o := &state.Outcomes
			o.Since -= step
			for _, at := range []*float64{&o.Service.Since, &o.Service.Cut, &o.Service.NotYet} {
				if *at > 0 {
					*at -= step
				}
			}
			if rng.IntN(3) > 0 {
				o.Window.Busy, o.Window.RetryAfter = 0, 0
			}
			require.NoError(t, client.HSet(ctx, key, "b", encodeOutcomes(state)).Err())
		}
		replica := rng.IntN(len(carries))
		r := schedule.Request{
			Subscription: fmt.Sprintf("group %d", replica/2), Weight: pick(1, 2, 0.001),
			Reserved: pick(0, 0, rate/3, rate),
			Demand:   rate * rng.Float64() * 3, Want: pick(0, 1, 7.5, rate/10, 1e9), Returned: float64(rng.IntN(5)),
			Held: float64(rng.IntN(20)), Lead: pick(rng.Float64()/5, 3000), RTT: pick(rng.Float64()/100, rng.Float64()/100, 0.25, 2), Round: pick(0.1, 0.02), Burst: pick(0, 0, 50),
			Nonce: 1 + rng.Int64N(1<<52),
			Carry: carries[replica], Strict: strict, MaxReserved: pick(0, 1, 64),
		}
		policy := max(0, len(revs)-1-rng.IntN(2))
		r.Rate, r.Ramp, r.Rev = rates[policy], ramps[policy], revs[policy]
		if rng.IntN(40) == 0 { // of the same revision
			r.Rate *= pick(0.9, 1.1)
		}
		if state.Inc != 0 && rng.IntN(3) > 0 { // bounds of a clock that may have stepped
			r.Low = state.Last + pick(0, -0.1, 0.1, -5, 5) - state.Shifts + r.Carry.Shifts
			r.High = r.Low + pick(0, 0.01, 0.2)
		}
		r.Rule = rule
		if rule.Mode != busy.None {
			r.Answers = schedule.Answers{
				OK: pick(0, 0, 5, rate), Busy: pick(0, 0, 0, 1, 7, rate), RetryAfter: pick(0, 0, 0, 2),
			}
		}
		if strict && seed%2 == 0 {
			r.Waiter, r.MaxReserved = []string{"", "", fmt.Sprintf("p|%d", replica)}[rng.IntN(3)], pick(0, 0, 1, 3)
		}
		got, err := permitstest.Allocate(ctx, store, key, r)
		require.NoError(t, err)
		stored, _, err := store.State(ctx, key)
		require.NoError(t, err)
		var sub schedule.Sub
		var want schedule.Reply
		r.Server = stored.Server // the script knows
		state, sub, want = schedule.Allocate(state, subs[r.Subscription], r, got.Now)
		if want.Lost {
			clear(subs)
		}
		subs[r.Subscription] = sub
		want.Wake = "" // is published
		require.Equal(t, want, got, "call %d: %+v", i, r)
		require.Equal(t, state, stored, "call %d: %+v", i, r)
		if rng.IntN(10) > 0 { // else the reply is lost
			carries[replica] = want.Carry
		}
		if rng.IntN(4) == 0 {
			time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
		}
	}
}

// A kind says which fields a limit's state has in Redis.
type kind struct{ ramped, heard bool }

func kindOf(s schedule.State) kind { return kind{s.Ramp != (schedule.Ramp{}), s.Outcomes.Since != 0} }

// fields are those of a state, whose numbers may be damaged.
func (k kind) fields(s schedule.State) []any {
	fields := []any{"l", encode(s)}
	if k.ramped {
		fields = append(fields, "r", encodeRamp(s))
	}
	if k.heard {
		fields = append(fields, "b", encodeOutcomes(s))
	}
	return fields
}

// numbers are those of a state that are stored.
func (k kind) numbers(s *schedule.State) (all []*float64, whole []*int64) {
	all = []*float64{
		&s.Last, &s.Checked, &s.Resumed, &s.Shifts, &s.Step.By, &s.Step.Ahead, &s.Step.At, &s.Server, &s.Rate, &s.Tail,
		&s.Start, &s.Quick, &s.This.Weight, &s.This.Reserved, &s.This.Need, &s.Prev.Weight, &s.Prev.Reserved, &s.Prev.Need,
	}
	if k.ramped {
		all = append(all, &s.Top, &s.Ramp.From, &s.Ramp.Over, &s.Ramp.TTL, &s.Line.Rate, &s.Line.Seen)
	}
	o := &s.Outcomes
	if k.heard {
		all = append(all, &o.Since, &o.Window.OK, &o.Window.Busy, &o.Window.RetryAfter)
		v := &o.Service
		all = append(all,
			&v.Limit, &v.Low, &v.Good, &v.Since, &v.Cut, &v.Back, &v.Step, &v.NotYet, &v.Healthy)
	}
	return all, []*int64{&s.Inc, &s.Seq, &s.Epoch, &s.Rev.Epoch, &s.Rev.Number}
}

// damage puts a number into a state that does not belong there, or may.
func damage(s schedule.State, rng *rand.Rand) schedule.State {
	k := kindOf(s)
	all, whole := k.numbers(&s)
	bad := []float64{0, -2, 1e15, 1e300, math.Inf(1), math.Inf(-1), math.NaN()}
	*all[rng.IntN(len(all))] = bad[rng.IntN(len(bad))]
	if k == (kind{}) { // Top is not stored
		s.Top = s.Rate
	}
	if rng.IntN(4) == 0 {
		*whole[rng.IntN(len(whole))] = []int64{-1, 1, 1e15, 1 << 60}[rng.IntN(4)]
	}
	return s
}

// TestDamagedAlike puts numbers within and beyond the bounds in the place of each number that is
// stored. The script and the function take the same ones for damage.
func TestDamagedAlike(t *testing.T) {
	ramped, heard, strict := request(1000), request(1000), request(1000)
	ramped.Ramp = schedule.Ramp{From: 100, Over: 60, TTL: 60}
	heard.Rule = busy.Rule{Mode: busy.ByFraction, Tolerance: 0.1, RecoverRate: 2}
	heard.Answers = schedule.Answers{OK: 5, Busy: 5}
	strict.Strict, strict.MaxReserved = true, 10
	for name, r := range map[string]schedule.Request{
		"fair": request(1000), "ramp": ramped, "busy": heard, "strict": strict,
	} {
		t.Run(name, func(t *testing.T) { damagedAlike(t, r) })
	}
}

func damagedAlike(t *testing.T, r schedule.Request) {
	client := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(services.Redis(t), "redis://")})
	defer func() { assert.NoError(t, client.Close()) }()
	store, ctx, key := open(t, client.Options().Addr), t.Context(), "throttle:{"+services.Name(t)+"}"
	for range 3 {
		reply, err := permitstest.Allocate(ctx, store, key, r)
		require.NoError(t, err)
		r.Carry = reply.Carry
	}
	sound, now, err := store.State(ctx, key)
	require.NoError(t, err)
	soundSub := schedule.Sub{
		Epoch: sound.Epoch, This: schedule.Part{K: 2, Weight: 1, Reserved: 1}, Prev: schedule.Part{K: 1, Weight: 1},
	}
	k, results := kindOf(sound), map[bool]int{} // results: how many were lost, or not
	compare := func(what string, state schedule.State, sub schedule.Sub) {
		if k == (kind{}) { // Top is not stored
			state.Top = state.Rate
		}
		fields := k.fields(state)
		if !r.Strict {
			fields = append(fields, "s"+r.Subscription, encodeSub(sub))
		}
		require.NoError(t, client.Del(ctx, key).Err())
		require.NoError(t, client.HSet(ctx, key, fields...).Err())
		got, err := permitstest.Allocate(ctx, store, key, r)
		require.NoError(t, err)
		stored, _, err := store.State(ctx, key)
		require.NoError(t, err)
		r.Server = stored.Server // the script knows
		after, _, want := schedule.Allocate(state, sub, r, got.Now)
		assert.Equal(t, want, got, what)
		assert.Equal(t, after, stored, what)
		results[got.Lost]++
	}
	bounds := []float64{
		-3e11, -1e12, -2, -1.5, -0.5, 0, 1e-12, 1e-7, 0.5, 1.5, 3, 2e6, 2e11, 1e14, 2e15, 1e17, 1e300,
		now - 10, now + 2, now + 3000, now + 5000, now + 90_000,
		math.NaN(), math.Inf(1), math.Inf(-1),
	}
	all, whole := k.numbers(&sound)
	for i := range all {
		for _, x := range bounds {
			state := sound
			all, _ := k.numbers(&state)
			*all[i] = x
			compare(fmt.Sprintf("number %d: %v", i, x), state, soundSub)
		}
	}
	for i := range whole {
		for _, x := range []int64{-1, 0, 1, 2, 5, 1e10, 2e13, 2e14, 1 << 54, 1 << 60} {
			if i == 0 && x == 0 { // to the function, no state
				continue
			}
			state := sound
			_, whole := k.numbers(&state)
			*whole[i] = x
			compare(fmt.Sprintf("whole number %d: %v", i, x), state, soundSub)
		}
	}
	for i := range 6 {
		for _, x := range bounds {
			sub := soundSub
			*[]*float64{
				&sub.This.K, &sub.This.Weight, &sub.This.Reserved, &sub.Prev.K, &sub.Prev.Weight, &sub.Prev.Reserved,
			}[i] = x
			compare(fmt.Sprintf("number %d of the subscription: %v", i, x), sound, sub)
		}
	}
	assert.Greater(t, results[true], 100, "lost")
	assert.Greater(t, results[false], 100, "not lost")
}

// encodeSub writes a subscription as the script does.
func encodeSub(s schedule.Sub) string {
	var text []byte
	for _, x := range []float64{
		float64(s.Epoch), s.This.K, s.This.Weight, s.This.Reserved, s.Prev.K, s.Prev.Weight, s.Prev.Reserved,
	} {
		text = binary.LittleEndian.AppendUint64(text, math.Float64bits(x))
	}
	return string(text)
}

func clone(m map[string]schedule.Sub) map[string]schedule.Sub {
	c := map[string]schedule.Sub{}
	maps.Copy(c, m)
	return c
}

// encode writes a state as the script does.
func encode(s schedule.State) string {
	text := []byte("4 ")
	for _, x := range []float64{
		float64(s.Inc), float64(s.Seq), s.Last, float64(s.Rev.Epoch), float64(s.Rev.Number), s.Rate, s.Tail, float64(s.Epoch), s.Start,
		s.This.Weight, s.This.Reserved, s.This.Need, s.Prev.Weight, s.Prev.Reserved, s.Prev.Need, s.Resumed, s.Shifts,
		s.Step.By, s.Step.Ahead, s.Step.At, s.Server, s.Checked, s.Quick,
	} {
		text = binary.LittleEndian.AppendUint64(text, math.Float64bits(x))
	}
	return string(text)
}

func encodeRamp(s schedule.State) string {
	relaxed := 0.0
	if s.Ramp.Relaxed {
		relaxed = 1
	}
	var text []byte
	for _, x := range []float64{
		s.Top, s.Ramp.From, s.Ramp.Over, s.Ramp.TTL, relaxed, s.Line.Rate, float64(s.Line.Epoch), s.Line.Seen,
	} {
		text = binary.LittleEndian.AppendUint64(text, math.Float64bits(x))
	}
	return string(text)
}

func encodeOutcomes(s schedule.State) string {
	var text []byte
	b, w := s.Outcomes.Service, s.Outcomes.Window
	for _, x := range []float64{
		s.Top, b.Limit, b.Low, b.Good, b.Since, b.Cut, b.Back, b.Step, b.NotYet, b.Healthy, w.OK, w.Busy, w.RetryAfter,
		s.Outcomes.Since,
	} {
		text = binary.LittleEndian.AppendUint64(text, math.Float64bits(x))
	}
	return string(text)
}
