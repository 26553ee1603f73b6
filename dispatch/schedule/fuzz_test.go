package schedule_test

import (
	"encoding/binary"
	"math"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/tests/promptly"
)

// numbers calls f with each number of a value, in order.
func numbers(v reflect.Value, f func(reflect.Value)) {
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			numbers(field, f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			numbers(v.Index(i), f)
		}
	case reflect.Int64, reflect.Float64:
		f(v)
	}
}

// stateText is a state's numbers, and those of a subscription, as eight bytes each.
func stateText(s schedule.State, sub schedule.Sub) (text []byte) {
	for _, v := range []any{s, sub} {
		numbers(reflect.ValueOf(v), func(x reflect.Value) {
			if x.Kind() == reflect.Int64 {
				text = binary.LittleEndian.AppendUint64(text, uint64(x.Int()))
			} else {
				text = binary.LittleEndian.AppendUint64(text, math.Float64bits(x.Float()))
			}
		})
	}
	return text
}

// stateOf is the inverse of stateText; numbers that are missing are 0, and those left over are
// waiters.
func stateOf(text []byte) (s schedule.State, sub schedule.Sub) {
	next := func() (bits uint64) {
		if len(text) >= 8 {
			bits, text = binary.LittleEndian.Uint64(text), text[8:]
		}
		return bits
	}
	fill := func(x reflect.Value) {
		bits := next()
		if x.Kind() == reflect.Int64 {
			x.SetInt(int64(bits))
		} else {
			x.SetFloat(math.Float64frombits(bits))
		}
	}
	numbers(reflect.ValueOf(&s).Elem(), fill)
	numbers(reflect.ValueOf(&sub).Elem(), fill)
	for len(text) >= 8 {
		s.Queue = append(s.Queue, schedule.Waiter{Name: "p|2", Until: math.Float64frombits(next())})
	}
	return s, sub
}

// twoStores is a state that replicas of two policy stores use.
func twoStores() (s schedule.State, sub schedule.Sub) {
	for i, source := range []string{"a", "b"} {
		r := request()
		r.Source, r.Rate, r.Rev.Epoch = source, r.Rate*float64(1+i), int64(i)
		s, sub, _ = schedule.Allocate(s, sub, r, 1.7e9)
	}
	return s, sub
}

// FuzzState: whatever a store has kept, the reply is within bounds, and state that is out of bounds
// is replaced by the first request.
func FuzzState(f *testing.F) {
	s, sub, _ := schedule.Allocate(schedule.State{}, schedule.Sub{}, request(), 1.7e9)
	f.Add(stateText(s, sub), 1.7e9, 5.0, uint8(0))
	f.Add(stateText(s, sub), 1.7e9+100, 0.0, uint8(1))
	s.Ramp, s.Line = schedule.Ramp{From: 10, Over: 7, TTL: 9}, schedule.Line{Rate: 20, Epoch: 1.7e9, Seen: 1.7e9}
	f.Add(stateText(s, sub), 1.7e9+1, 1e9, uint8(2))
	s.Outcomes = schedule.Outcomes{Service: busy.State{Limit: 5, Low: 1, Good: 9, Since: 1.7e9}, Since: 1.7e9}
	f.Add(stateText(s, sub), 1.7e9+1, 3.0, uint8(4))
	f.Add(binary.LittleEndian.AppendUint64(stateText(s, sub), math.Float64bits(1.7e9)), 1.7e9+1, 3.0, uint8(9))
	rivals, sub := twoStores()
	f.Add(stateText(rivals, sub), 1.7e9+1, 3.0, uint8(128))
	f.Add(stateText(rivals, sub), 1.7e9+100, 3.0, uint8(128+64+1))
	f.Fuzz(func(t *testing.T, text []byte, now, want float64, kind uint8) {
		if !(now >= 1 && now <= 1e10) || !(want >= 0 && want <= 1e12) {
			return
		}
		promptly.Do(t, func() {
			r := request()
			r.Want, r.Strict = want, kind&1 != 0
			if kind&2 != 0 {
				r.Ramp = schedule.Ramp{From: 10, Over: 7, TTL: 9, Relaxed: kind&16 != 0}
			}
			if kind&4 != 0 && !r.Strict {
				r.Rule = busy.Rule{Mode: busy.Mode(1 + kind>>5%2), MinRate: 1, Tolerance: 0.01, RecoverRate: 1}
			}
			if kind&8 != 0 && r.Strict {
				r.Waiter = "p|1"
			}
			s, sub := stateOf(text)
			if kind&64 != 0 {
				r.Source, s.Source = "a", "a"
			}
			if kind&128 != 0 { // a rival of the state's store, which asks
				r.Source, s.Source, s.Rival.Source = "b", "a", "b"
			}
			if last := s.Inc > 0 && s.Inc <= 1<<53 && s.Seq >= 0 && s.Seq <= 1<<53; last {
				r.Carry.Inc, r.Carry.Seq = s.Inc, s.Seq
			}
			s, sub, reply := schedule.Allocate(s, sub, r, now)
			require.True(t, reply.Sound(r), "%+v", reply)
			if reply.Lost {
				r.Carry = reply.Carry
				_, _, reply = schedule.Allocate(s, sub, r, now+0.001)
				require.True(t, reply.Sound(r), "%+v", reply)
				require.False(t, reply.Lost, "%+v", s)
			}
		})
	})
}
