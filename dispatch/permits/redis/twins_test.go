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
	w := &twinsRun{
		t: t, store: store, client: client, seed: seed, rng: rand.New(rand.NewPCG(seed, 2)),
		key:  fmt.Sprintf("throttle:{twins%d-%d}", seed, time.Now().UnixNano()),
		subs: map[string]schedule.Sub{}, oldSubs: map[string]schedule.Sub{},
		revs: []schedule.Revision{{Epoch: 1, Number: 7}},
	}
	defer client.Del(t.Context(), w.key)
	w.rate, w.strict = w.pick(1, 10, 1000, 1e6, 1.0/3600), seed%3 == 2
	if seed%4 < 2 && !w.strict {
		w.rule = busy.Rule{
			Mode: busy.Mode(1 + seed/4%2), MinRate: w.pick(0, 0.5), Tolerance: w.pick(0, 0.1),
			RecoverRate: w.pick(0.5, 3), RecoverValue: w.pick(0, 200),
		}
	}
	w.stores = w.rule.Mode == busy.None && seed%3 > 0
	w.ramps, w.rates = []schedule.Ramp{w.ramp()}, []float64{w.rate}
	for i := range 150 {
		w.event()
		w.passTime()
		w.call(i)
		if w.rng.IntN(4) == 0 {
			time.Sleep(time.Duration(w.rng.IntN(3000)) * time.Microsecond)
		}
	}
}

// A twinsRun is random calls of both twins, which have the same state.
type twinsRun struct {
	t      *testing.T
	store  *redispermits.Store
	client *redis.Client
	key    string
	seed   uint64
	rng    *rand.Rand

	state   schedule.State
	subs    map[string]schedule.Sub
	carries [6]schedule.Carry // of replicas

	oldHash  map[string]string // a copy
	oldState schedule.State
	oldSubs  map[string]schedule.Sub

	strict bool
	stores bool // replicas follow several policy stores
	rule   busy.Rule
	rate   float64
	ramps  []schedule.Ramp // by the age of the policy, as
	rates  []float64       // these and
	revs   []schedule.Revision
}

func (w *twinsRun) pick(choices ...float64) float64 { return choices[w.rng.IntN(len(choices))] }

func (w *twinsRun) ramp() schedule.Ramp {
	if w.seed%4 < 2 || w.rng.IntN(4) == 0 {
		return schedule.Ramp{}
	}
	return schedule.Ramp{
		From: w.rate * w.pick(0.1, 0.5, 2), Over: w.pick(1, 7, 60), TTL: w.pick(0, 3, 60),
		Relaxed: w.rng.IntN(2) == 0,
	}
}

// event changes what is stored, now and then.
func (w *twinsRun) event() {
	switch w.rng.IntN(60) {
	case 10, 11, 12: // replicas of a policy store are silent for long
		if w.state.Rival.Source != "" {
			*[]*float64{&w.state.Heard, &w.state.Rival.Heard}[w.rng.IntN(2)] -= w.pick(50, 70, 8000)
			require.NoError(w.t, w.client.HSet(w.t.Context(), w.key, "o", encodeSources(w.state)).Err())
		}
	case 13: // a program that does not know of policy stores has put other policies in force
		if w.state.Source != "" && w.state.Rival.Source == "" {
			w.state.Rev.Number--
			w.state.Source = ""
			require.NoError(w.t, w.client.HSet(w.t.Context(), w.key, "l", encode(w.state)).Err())
		}
	case 0: // a newer policy
		rev := w.revs[len(w.revs)-1]
		rev.Number++
		if w.rng.IntN(3) == 0 { // a backup that was adopted
			rev = schedule.Revision{Epoch: rev.Epoch + 1, Number: 1}
		}
		w.rate *= w.pick(0.5, 2, 1.1)
		w.ramps, w.rates, w.revs = append(w.ramps, w.ramp()), append(w.rates, w.rate), append(w.revs, rev)
	case 1: // the state is lost
		w.client.Del(w.t.Context(), w.key)
		w.state, w.subs = schedule.State{}, map[string]schedule.Sub{}
	case 2: // a copy is kept
		w.oldHash, _ = w.client.HGetAll(w.t.Context(), w.key).Result()
		w.oldState, w.oldSubs = w.state, clone(w.subs)
	case 3: // and comes back
		if len(w.oldHash) > 0 {
			w.client.Del(w.t.Context(), w.key)
			w.client.HSet(w.t.Context(), w.key, w.oldHash)
			w.state, w.subs = w.oldState, clone(w.oldSubs)
		}
	case 8: // it is damaged
		if w.state.Inc != 0 {
			kind := kindOf(w.state)
			w.state = damage(w.state, w.rng)
			require.NoError(w.t, w.client.HSet(w.t.Context(), w.key, kind.fields(w.state)...).Err())
		}
	case 9: // many callers wait
		if w.state.Inc != 0 && w.strict {
			w.state.Queue = nil
			var queue []byte
			for i := range int(w.pick(3, 300)) {
				q := schedule.Waiter{Name: fmt.Sprintf("q|%d", i), Until: w.state.Last + w.pick(0.2, 5)}
				w.state.Queue = append(w.state.Queue, q)
				queue = binary.LittleEndian.AppendUint64(queue, math.Float64bits(q.Until))
				queue = append(append(queue, byte(len(q.Name))), q.Name...)
			}
			require.NoError(w.t, w.client.HSet(w.t.Context(), w.key, "q", queue).Err())
		}
	case 7: // another server has it
		if w.state.Inc != 0 && w.strict {
			w.state.Server++
			require.NoError(w.t, w.client.HSet(w.t.Context(), w.key, "l", encode(w.state)).Err())
		}
	case 4, 5, 6: // the clock was ahead until now, or behind: seen from the state, that is the same
		if w.state.Inc != 0 {
			step := w.pick(5, -5, -1.5, -3, 0.01)
			w.state.Last += step
			w.state.Tail += step
			w.state.Start += step
			w.state.Quick += step
			w.state.Checked += step
			w.state.Resumed += step
			if w.state.Step.By != 0 {
				w.state.Step.At += step
			}
			if w.state.Rival.Source != "" {
				w.state.Heard += step
				w.state.Rival.Heard += step
				require.NoError(w.t, w.client.HSet(w.t.Context(), w.key, "o", encodeSources(w.state)).Err())
			}
			require.NoError(w.t, w.client.HSet(w.t.Context(), w.key, "l", encode(w.state)).Err())
			if w.state.Ramp != (schedule.Ramp{}) {
				w.state.Line.Seen += step
				w.state.Line.Epoch += int64(step)
				require.NoError(w.t, w.client.HSet(w.t.Context(), w.key, "r", encodeRamp(w.state)).Err())
			}
		}
	}
}

// passTime moves the answers of a busy limit into the past.
func (w *twinsRun) passTime() {
	if w.rule.Mode != busy.None && w.state.Outcomes.Since > 0 && w.rng.IntN(2) == 0 { // time goes by
		step := w.pick(1, 1, 1.7, 4, -3)
		o := &w.state.Outcomes
		o.Since -= step
		for _, at := range []*float64{&o.Service.Since, &o.Service.Cut, &o.Service.NotYet} {
			if *at > 0 {
				*at -= step
			}
		}
		if w.rng.IntN(3) > 0 {
			o.Window.Busy, o.Window.RetryAfter = 0, 0
		}
		require.NoError(w.t, w.client.HSet(w.t.Context(), w.key, "b", encodeOutcomes(w.state)).Err())
	}
}

// request is of a replica.
func (w *twinsRun) request(replica int) schedule.Request {
	r := schedule.Request{
		Subscription: fmt.Sprintf("group %d", replica/2), Weight: w.pick(1, 2, 0.001),
		Reserved: w.pick(0, 0, w.rate/3, w.rate),
		Demand:   w.rate * w.rng.Float64() * 3, Want: w.pick(0, 1, 7.5, w.rate/10, 1e9), Returned: float64(w.rng.IntN(5)),
		Held: float64(w.rng.IntN(20)), Lead: w.pick(w.rng.Float64()/5, 3000), RTT: w.pick(w.rng.Float64()/100, w.rng.Float64()/100, 0.25, 2), Round: w.pick(0.1, 0.02), Burst: w.pick(0, 0, 50),
		Nonce: 1 + w.rng.Int64N(1<<52),
		Carry: w.carries[replica], Strict: w.strict, MaxReserved: w.pick(0, 1, 64),
	}
	policy := max(0, len(w.revs)-1-w.rng.IntN(2))
	r.Rate, r.Ramp, r.Rev = w.rates[policy], w.ramps[policy], w.revs[policy]
	if w.rng.IntN(40) == 0 { // of the same revision
		r.Rate *= w.pick(0.9, 1.1)
	}
	if w.stores {
		store := []int{0, 0, 0, 1, 1, 2, 3}[w.rng.IntN(7)]
		r.Source = []string{"a", "another one", "\x00c", ""}[store]
		r.Rate *= []float64{1, 2, 0.7, 1}[store]
		r.Rev.Epoch += int64([]int{0, 10, -1, 0}[store])
	}
	if w.state.Inc != 0 && w.rng.IntN(3) > 0 { // bounds of a clock that may have stepped
		r.Low = w.state.Last + w.pick(0, -0.1, 0.1, -5, 5) - w.state.Shifts + r.Carry.Shifts
		r.High = r.Low + w.pick(0, 0.01, 0.2)
	}
	r.Rule = w.rule
	if w.rule.Mode != busy.None {
		r.Answers = schedule.Answers{
			OK: w.pick(0, 0, 5, w.rate), Busy: w.pick(0, 0, 0, 1, 7, w.rate), RetryAfter: w.pick(0, 0, 0, 2),
		}
	}
	if w.strict && w.seed%2 == 0 {
		r.Waiter, r.MaxReserved = []string{"", "", fmt.Sprintf("p|%d", replica)}[w.rng.IntN(3)], w.pick(0, 0, 1, 3)
	}
	return r
}

// call makes a call of both.
func (w *twinsRun) call(i int) {
	replica := w.rng.IntN(len(w.carries))
	r := w.request(replica)
	t := w.t
	got, err := permitstest.Allocate(t.Context(), w.store, w.key, r)
	require.NoError(t, err)
	stored, _, err := w.store.State(t.Context(), w.key)
	require.NoError(t, err)
	var sub schedule.Sub
	var want schedule.Reply
	r.Server = stored.Server // the script knows
	w.state, sub, want = schedule.Allocate(w.state, w.subs[r.Subscription], r, got.Now)
	if want.Lost {
		clear(w.subs)
	}
	w.subs[r.Subscription] = sub
	want.Wake = "" // is published
	require.Equal(t, want, got, "call %d: %+v", i, r)
	require.Equal(t, w.state, stored, "call %d: %+v", i, r)
	if w.rng.IntN(10) > 0 { // else the reply is lost
		w.carries[replica] = want.Carry
	}
}

// A kind says which fields a limit's state has in Redis.
type kind struct{ ramped, heard, rival bool }

func kindOf(s schedule.State) kind {
	return kind{s.Ramp != (schedule.Ramp{}), s.Outcomes.Since != 0, s.Rival.Source != ""}
}

// fields are those of a state, whose numbers may be damaged.
func (k kind) fields(s schedule.State) []any {
	fields := []any{"l", encode(s)}
	if k.ramped {
		fields = append(fields, "r", encodeRamp(s))
	}
	if k.heard {
		fields = append(fields, "b", encodeOutcomes(s))
	}
	if s.Source != "" {
		fields = append(fields, "o", encodeSources(s))
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
	whole = []*int64{&s.Inc, &s.Seq, &s.Epoch, &s.Rev.Epoch, &s.Rev.Number}
	if c := &s.Rival; k.rival {
		all = append(all, &s.Heard, &c.Rate, &c.Heard, &c.Ramp.From, &c.Ramp.Over, &c.Ramp.TTL)
		whole = append(whole, &c.Rev.Epoch, &c.Rev.Number)
	}
	return all, whole
}

// damage puts a number into a state that does not belong there, or may.
func damage(s schedule.State, rng *rand.Rand) schedule.State {
	k := kindOf(s)
	all, whole := k.numbers(&s)
	bad := []float64{0, -2, 1e15, 1e300, math.Inf(1), math.Inf(-1), math.NaN()}
	*all[rng.IntN(len(all))] = bad[rng.IntN(len(bad))]
	if !k.ramped && !k.heard { // Top is not stored
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
	ramped, heard, strict, rival := request(1000), request(1000), request(1000), request(1000)
	ramped.Ramp = schedule.Ramp{From: 100, Over: 60, TTL: 60}
	heard.Rule = busy.Rule{Mode: busy.ByFraction, Tolerance: 0.1, RecoverRate: 2}
	heard.Answers = schedule.Answers{OK: 5, Busy: 5}
	strict.Strict, strict.MaxReserved = true, 10
	rival.Source = "a"
	for name, r := range map[string]schedule.Request{
		"fair": request(1000), "ramp": ramped, "busy": heard, "strict": strict, "rival": rival,
	} {
		t.Run(name, func(t *testing.T) { damagedAlike(t, r) })
	}
}

func damagedAlike(t *testing.T, r schedule.Request) {
	client := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(services.Redis(t), "redis://")})
	defer func() { assert.NoError(t, client.Close()) }()
	store, ctx, key := open(t, client.Options().Addr), t.Context(), "throttle:{"+services.Name(t)+"}"
	if r.Source != "" {
		other := r
		other.Source, other.Rate, other.Ramp = "other", 2000, schedule.Ramp{From: 100, Over: 60, TTL: 60}
		_, err := permitstest.Allocate(ctx, store, key, other)
		require.NoError(t, err)
	}
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
		if !k.ramped && !k.heard { // Top is not stored
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
		for _, x := range []int64{-1, 0, 1, 2, 5, 1e10, 2e13, 2e14, 1 << 52, 1<<52 + 1, 1 << 53, 1 << 54, 1 << 60} {
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
	text := fmt.Appendf(nil, "%d ", s.Version())
	for _, x := range []float64{
		float64(s.Inc), float64(s.Seq), s.Last, float64(s.Rev.Epoch), float64(s.Rev.Number), s.Rate, s.Tail, float64(s.Epoch), s.Start,
		s.This.Weight, s.This.Reserved, s.This.Need, s.Prev.Weight, s.Prev.Reserved, s.Prev.Need, s.Resumed, s.Shifts,
		s.Step.By, s.Step.Ahead, s.Step.At, s.Server, s.Checked, s.Quick,
	} {
		text = binary.LittleEndian.AppendUint64(text, math.Float64bits(x))
	}
	return string(text)
}

// encodeSources writes whose policies a state has as the script does.
func encodeSources(s schedule.State) string {
	var text []byte
	add := func(source string, numbers ...float64) {
		for _, x := range numbers {
			text = binary.LittleEndian.AppendUint64(text, math.Float64bits(x))
		}
		text = append(append(text, byte(len(source))), source...)
	}
	add(s.Source, float64(s.Rev.Epoch), float64(s.Rev.Number), s.Heard)
	if c := s.Rival; c.Source != "" {
		relaxed := 0.0
		if c.Ramp.Relaxed {
			relaxed = 1
		}
		add(c.Source, float64(c.Rev.Epoch), float64(c.Rev.Number), c.Rate, c.Ramp.From, c.Ramp.Over, c.Ramp.TTL, relaxed, c.Heard)
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
