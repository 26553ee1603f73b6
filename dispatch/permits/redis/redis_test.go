package redispermits_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// servers are a real Redis and one in memory; step moves the clock that the script sees.
func servers(t *testing.T) map[string]string {
	return map[string]string{
		"redis":     strings.TrimPrefix(services.Redis(t), "redis://"),
		"miniredis": inMemory(t).Addr(),
	}
}

func inMemory(t *testing.T) *miniredis.Miniredis {
	m := miniredis.RunT(t)
	permitstest.AddStruct(t, m)
	return m
}

func open(t *testing.T, addr string) *redispermits.Store {
	l := redispermits.Open(redis.UniversalOptions{Addrs: []string{addr}}, 10*time.Second)
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	return l
}

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
	pick := func(of ...float64) float64 { return of[rng.IntN(len(of))] }
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
			if rev.Number++; rng.IntN(3) == 0 { // a backup that was adopted
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
				ramped, heard := state.Ramp != (schedule.Ramp{}), state.Outcomes.Since != 0
				state = damage(state, rng)
				require.NoError(t, client.HSet(ctx, key, "l", encode(state)).Err())
				if ramped {
					require.NoError(t, client.HSet(ctx, key, "r", encodeRamp(state)).Err())
				}
				if heard {
					require.NoError(t, client.HSet(ctx, key, "b", encodeOutcomes(state)).Err())
				}
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
		if r.Rule = rule; rule.Mode != busy.None {
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

// numbers are those of a state that are stored.
func numbers(s *schedule.State) (all []*float64, whole []*int64) {
	all = []*float64{
		&s.Last, &s.Checked, &s.Resumed, &s.Shifts, &s.Step.By, &s.Step.Ahead, &s.Step.At, &s.Server, &s.Rate, &s.Tail,
		&s.Start, &s.Quick, &s.This.Weight, &s.This.Reserved, &s.This.Need, &s.Prev.Weight, &s.Prev.Reserved, &s.Prev.Need,
	}
	if s.Ramp != (schedule.Ramp{}) {
		all = append(all, &s.Top, &s.Ramp.From, &s.Ramp.Over, &s.Ramp.TTL, &s.Line.Rate, &s.Line.Seen)
	}
	if o := &s.Outcomes; o.Since != 0 {
		all = append(all, &o.Since, &o.Window.OK, &o.Window.Busy, &o.Window.RetryAfter)
		v := &o.Service
		all = append(all,
			&v.Limit, &v.Low, &v.Good, &v.Since, &v.Cut, &v.Back, &v.Step, &v.NotYet, &v.Healthy)
	}
	return all, []*int64{&s.Inc, &s.Seq, &s.Epoch, &s.Rev.Epoch, &s.Rev.Number}
}

// damage puts a number into a state that does not belong there, or may.
func damage(s schedule.State, rng *rand.Rand) schedule.State {
	all, whole := numbers(&s)
	bad := []float64{0, -2, 1e15, 1e300, math.Inf(1), math.Inf(-1), math.NaN()}
	*all[rng.IntN(len(all))] = bad[rng.IntN(len(bad))]
	if s.Ramp == (schedule.Ramp{}) && s.Outcomes.Since == 0 { // Top is not stored
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
	client := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(services.Redis(t), "redis://")})
	defer func() { assert.NoError(t, client.Close()) }()
	store, ctx := open(t, client.Options().Addr), t.Context()
	ramped, heard, strict := request(1000), request(1000), request(1000)
	ramped.Ramp = schedule.Ramp{From: 100, Over: 60, TTL: 60}
	heard.Rule = busy.Rule{Mode: busy.ByFraction, Tolerance: 0.1, RecoverRate: 2}
	heard.Answers = schedule.Answers{OK: 5, Busy: 5}
	strict.Strict, strict.MaxReserved = true, 10
	for name, r := range map[string]schedule.Request{
		"fair": request(1000), "ramp": ramped, "busy": heard, "strict": strict,
	} {
		t.Run(name, func(t *testing.T) {
			key := "throttle:{" + services.Name(t) + "}"
			for range 3 {
				reply, err := permitstest.Allocate(ctx, store, key, r)
				require.NoError(t, err)
				r.Carry = reply.Carry
			}
			sound, now, err := store.State(ctx, key)
			require.NoError(t, err)
			sub := schedule.Sub{
				Epoch: sound.Epoch, This: schedule.Part{K: 2, Weight: 1, Reserved: 1}, Prev: schedule.Part{K: 1, Weight: 1},
			}
			lost, kept := 0, 0
			try := func(what string, state schedule.State, sub schedule.Sub) {
				fields := []any{"l", encode(state)}
				switch {
				case r.Ramp.Over > 0:
					fields = append(fields, "r", encodeRamp(state))
				case r.Rule.Mode != busy.None:
					fields = append(fields, "b", encodeOutcomes(state))
				default:
					state.Top = state.Rate
				}
				if !r.Strict {
					fields = append(fields, "sgroup", encodeSub(sub))
				}
				require.NoError(t, client.Del(ctx, key).Err())
				require.NoError(t, client.HSet(ctx, key, fields...).Err())
				got, err := permitstest.Allocate(ctx, store, key, r)
				require.NoError(t, err)
				stored, _, err := store.State(ctx, key)
				require.NoError(t, err)
				r.Server = stored.Server
				after, _, want := schedule.Allocate(state, sub, r, got.Now)
				want.Wake = ""
				assert.Equal(t, want, got, what)
				assert.Equal(t, after, stored, what)
				if got.Lost {
					lost++
				} else {
					kept++
				}
			}
			all, whole := numbers(&sound)
			bounds := []float64{
				-3e11, -1e12, -2, -1.5, -0.5, 0, 1e-12, 1e-7, 0.5, 1.5, 3, 2e6, 2e11, 1e14, 2e15, 1e17, 1e300,
				now - 10, now + 2, now + 3000, now + 5000, now + 90_000,
				math.NaN(), math.Inf(1), math.Inf(-1),
			}
			for i := range all {
				for _, x := range bounds {
					state := sound
					all, _ := numbers(&state)
					*all[i] = x
					try(fmt.Sprintf("number %d: %v", i, x), state, sub)
				}
			}
			for i := range whole {
				for _, x := range []int64{-1, 0, 1, 2, 5, 1e10, 2e13, 2e14, 1 << 54, 1 << 60} {
					if i == 0 && x == 0 { // to the function, no state
						continue
					}
					state := sound
					_, whole := numbers(&state)
					*whole[i] = x
					try(fmt.Sprintf("whole number %d: %v", i, x), state, sub)
				}
			}
			for i := range 6 {
				for _, x := range bounds {
					damaged := sub
					parts := []*float64{
						&damaged.This.K, &damaged.This.Weight, &damaged.This.Reserved,
						&damaged.Prev.K, &damaged.Prev.Weight, &damaged.Prev.Reserved,
					}
					*parts[i] = x
					try(fmt.Sprintf("number %d of the subscription: %v", i, x), sound, damaged)
				}
			}
			t.Logf("%d lost, %d kept", lost, kept)
		})
	}
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

func request(rate float64) schedule.Request {
	return schedule.Request{
		Subscription: "group", Weight: 1, Demand: rate, Want: 10, Round: 0.1, Rate: rate, Rev: schedule.Revision{Number: 1},
		Nonce: 7,
	}
}

func TestLateCallsChangeNothing(t *testing.T) {
	for name, addr := range servers(t) {
		t.Run(name, func(t *testing.T) {
			store := open(t, addr)
			r := request(1000)
			r.NotAfter = 1
			got, err := permitstest.Allocate(t.Context(), store, "throttle:{late}", r)
			require.NoError(t, err)
			assert.True(t, got.Late)
			assert.Greater(t, got.Now, 1e9)
			s, _, err := store.State(t.Context(), "throttle:{late}")
			require.NoError(t, err)
			assert.Zero(t, s.Inc)
		})
	}
}

func TestNewerAndDamagedStates(t *testing.T) {
	for name, addr := range servers(t) {
		t.Run(name, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: addr})
			defer func() { assert.NoError(t, client.Close()) }()
			store := open(t, addr)
			for _, text := range []string{
				"", "rubbish", "1 2 3", "3 " + strings.Repeat("\xff", 176), "4 " + strings.Repeat("\xff", 184),
				"4 " + strings.Repeat("\x00", 184), strings.Repeat("x", 1<<20),
			} {
				require.NoError(t, client.HSet(t.Context(), "throttle:{damaged}", "l", text, "sgroup", text).Err())
				got, err := permitstest.Allocate(t.Context(), store, "throttle:{damaged}", request(1000))
				require.NoError(t, err, "a damaged state is as good as lost")
				assert.Equal(t, 10.0, got.N)
				assert.True(t, got.Lost, "and is reported")
				got, err = permitstest.Allocate(t.Context(), store, "throttle:{damaged}", request(1000))
				require.NoError(t, err)
				assert.False(t, got.Lost, "once")
			}
			require.NoError(t, client.HSet(t.Context(), "throttle:{damaged}", "r", "half").Err())
			got, err := permitstest.Allocate(t.Context(), store, "throttle:{damaged}", request(1000))
			require.NoError(t, err)
			assert.True(t, got.Lost, "a part is damaged")
			require.NoError(t, client.Set(t.Context(), "throttle:{damaged}", "a string", 0).Err())
			got, err = permitstest.Allocate(t.Context(), store, "throttle:{damaged}", request(1000))
			require.NoError(t, err, "a value of another type is replaced")
			assert.True(t, got.Lost)
			require.NoError(t, client.HSet(t.Context(), "throttle:{newer}", "l", "5 of another form").Err())
			require.NoError(t, client.Expire(t.Context(), "throttle:{newer}", time.Minute).Err())
			_, err = permitstest.Allocate(t.Context(), store, "throttle:{newer}", request(1000))
			require.ErrorContains(t, err, "upgrade")
			require.NoError(t, client.Del(t.Context(), "throttle:{damaged}", "throttle:{newer}").Err())
		})
	}
}

// TestForgetsSubscriptions: a new subscription name in each process does not fill the limit's hash.
func TestForgetsSubscriptions(t *testing.T) {
	addr, key := strings.TrimPrefix(services.Redis(t), "redis://"), "throttle:{"+services.Name(t)+"}"
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { assert.NoError(t, client.Close()) }()
	store := open(t, addr)
	for i := range 3000 {
		r := request(1e6)
		r.Subscription, r.Round = fmt.Sprintf("group-%d", i), 0.001
		_, err := permitstest.Allocate(t.Context(), store, key, r)
		require.NoError(t, err)
	}
	assert.Less(t, client.HLen(t.Context(), key).Val(), int64(1500))
	assert.Greater(t, client.TTL(t.Context(), key).Val(), 59*time.Minute)
}

// TestFrozen: a request to a frozen server ends by its timeout, and what the server runs later is
// not counted.
func TestFrozen(t *testing.T) {
	server := services.RedisServer(t)
	store := redispermits.Open(redis.UniversalOptions{Addrs: []string{server.Addr}}, 400*time.Millisecond)
	defer func() { assert.NoError(t, store.Close()) }()
	key := "throttle:{" + services.Name(t) + "}"
	r := request(1000)
	patient := open(t, server.Addr)
	first, err := permitstest.Allocate(t.Context(), patient, key, r)
	require.NoError(t, err)
	server.Freeze()
	r.NotAfter, r.Carry = first.Now+0.4, first.Carry
	_, err = permitstest.Allocate(t.Context(), store, key, r)
	require.Error(t, err)
	time.Sleep(100 * time.Millisecond)
	server.Thaw()
	assert.Eventually(t, func() bool {
		s, _, err := store.State(t.Context(), key)
		return err == nil && s.Seq == 1
	}, throttletest.Patience, 10*time.Millisecond)
	time.Sleep(50 * time.Millisecond) // the queued call has run by now
	s, _, err := patient.State(t.Context(), key)
	require.NoError(t, err)
	assert.Equal(t, int64(1), s.Seq)
}

func TestManyAllocationsInOneCall(t *testing.T) {
	for name, addr := range servers(t) {
		t.Run(name, func(t *testing.T) {
			store := open(t, addr)
			requests := make([]*permits.Request, 100)
			for i := range requests {
				key := fmt.Sprintf("throttle:{many-%d-%d}", i, time.Now().UnixNano())
				requests[i] = &permits.Request{Key: key, Allocate: &permits.Allocate{Request: request(1000)}}
			}
			store.Do(t.Context(), requests)
			for _, r := range requests {
				require.NoError(t, r.Err)
				assert.Equal(t, 10.0, r.Allocate.Reply.N)
			}
		})
	}
}

// TestNoClock: a server that does not tell its time gives no value: the clock is not the year 1.
func TestNoClock(t *testing.T) {
	server := services.RedisServer(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer func() { assert.NoError(t, admin.Close()) }()
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "default", "-time").Err())
	store := open(t, server.Addr)
	_, _, err := store.Value(t.Context(), "throttle:rates:{a}")
	require.Error(t, err)
	err = store.Update(t.Context(), "throttle:rates:{a}", time.Minute, func(_ []byte, now float64) []byte {
		t.Errorf("updated at %v", now)
		return nil
	})
	require.Error(t, err)
}

// TestDecimals: a sum in a state keeps every bit when it is stored.
func TestDecimals(t *testing.T) {
	store := open(t, inMemory(t).Addr())
	r := request(1.0 / 3)
	r.Want = 1
	got, err := permitstest.Allocate(t.Context(), store, "k", r)
	require.NoError(t, err)
	s, _, err := store.State(t.Context(), "k")
	require.NoError(t, err)
	assert.Equal(t, math.Float64bits(got.Now+1/(1.0/3)), math.Float64bits(s.Tail))
}

// TestLifetime: a schedule is kept for as long as schedule.State.Lifetime says.
func TestLifetime(t *testing.T) {
	m := inMemory(t)
	store := open(t, m.Addr())
	for _, rate := range []float64{1000, 0.1, 1e-3, 1.0 / 3600, 1e-5, 1e-7} {
		for _, strict := range []bool{false, true} {
			key, r := fmt.Sprint(rate, strict), request(rate)
			r.Strict = strict
			_, err := permitstest.Allocate(t.Context(), store, key, r)
			require.NoError(t, err)
			state, now, err := store.State(t.Context(), key)
			require.NoError(t, err)
			assert.InDelta(t, state.Lifetime(strict, now), m.TTL(key).Seconds(), 2, key)
		}
	}
}

// TestSentOnce: a request whose answer does not come is not sent again: the server may have run it.
func TestSentOnce(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		m := inMemory(t)
		var sent atomic.Int64
		m.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
			if command != "EVALSHA" {
				return false
			}
			sent.Add(1)
			c.Close()
			return true
		})
		store := redispermits.Open(redis.UniversalOptions{Addrs: []string{m.Addr()}, IsClusterMode: cluster}, 10*time.Second)
		_, err := permitstest.Allocate(t.Context(), store, "throttle:{a}", request(1))
		assert.ErrorIs(t, err, io.EOF)
		assert.EqualValues(t, 1, sent.Load(), "cluster: %v", cluster)
		assert.NoError(t, store.Close())
	}
}

// TestRecordsExpire: a record that is set is kept for as long as was asked.
func TestRecordsExpire(t *testing.T) {
	m := inMemory(t)
	store := open(t, m.Addr())
	for _, ttl := range []time.Duration{time.Hour, time.Second, time.Microsecond} {
		err := store.Update(t.Context(), "k", ttl, func([]byte, float64) []byte { return []byte(ttl.String()) })
		require.NoError(t, err)
		assert.Equal(t, max(time.Millisecond, ttl), m.TTL("k"))
	}
}

// TestALongScheduleIsKept: a schedule with slots hours ahead has long epochs, and is kept through
// them while it is in use.
func TestALongScheduleIsKept(t *testing.T) {
	m := inMemory(t)
	now := time.Unix(1_700_000_000, 0)
	m.SetTime(now)
	store := open(t, m.Addr())
	carries := make([]schedule.Carry, 10)
	allocate := func(replica int) {
		r := request(1.0 / 3600)
		r.Want, r.Demand, r.Carry = 1, 10, carries[replica]
		reply, err := permitstest.Allocate(t.Context(), store, "k", r)
		require.NoError(t, err)
		carries[replica] = reply.Carry
	}
	for i := range carries {
		allocate(i)
	}
	for hour := range 12 {
		now = now.Add(time.Hour)
		m.SetTime(now)
		m.FastForward(time.Hour)
		require.True(t, m.Exists("k"), "after %d hours", hour+1)
		allocate(hour % len(carries))
	}
}

func TestStore(t *testing.T) {
	for name, addr := range servers(t) {
		t.Run(name, func(t *testing.T) { permitstest.Check(t, open(t, addr)) })
	}
}

func TestBacksOff(t *testing.T) {
	store := redispermits.Open(redis.UniversalOptions{
		Addrs: []string{strings.TrimPrefix(services.Redis(t), "redis://")},
	}, 3*time.Second)
	defer func() { assert.NoError(t, store.Close()) }()
	permitstest.BacksOff(t, store)
}

// TestStrictCountsNoSubscriptions: subscriptions that come and go leave nothing in the record of a
// strict limit.
func TestStrictCountsNoSubscriptions(t *testing.T) {
	for name, addr := range servers(t) {
		t.Run(name, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: addr})
			defer func() { assert.NoError(t, client.Close()) }()
			store := open(t, addr)
			key := fmt.Sprintf("throttle:limit:{strict-%d}", time.Now().UnixNano())
			for i := range 100 {
				r := request(1e6)
				r.Strict, r.Subscription, r.MaxReserved = true, fmt.Sprint(i), 10
				_, err := permitstest.Allocate(t.Context(), store, key, r)
				require.NoError(t, err)
			}
			fields, err := client.HKeys(t.Context(), key).Result()
			require.NoError(t, err)
			assert.Equal(t, []string{"l"}, fields)
		})
	}
}
