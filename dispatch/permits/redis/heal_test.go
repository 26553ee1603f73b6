package redispermits_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestKeysOfAnotherType: a record under a key of another type is damage, which the next request
// that writes replaces.
func TestKeysOfAnotherType(t *testing.T) {
	for name, addr := range servers(t) {
		t.Run(name, func(t *testing.T) {
			ctx, store := t.Context(), open(t, addr)
			client := redis.NewClient(&redis.Options{Addr: addr})
			defer func() { assert.NoError(t, client.Close()) }()
			limit, rates := "throttle:limit:{"+services.Name(t)+"}", permits.RatesKey(services.Name(t))
			for _, key := range []string{permits.PoolKey(limit), permits.GroupsKey(limit), rates} {
				require.NoError(t, client.HSet(ctx, key, "x", "y").Err())
			}
			require.NoError(t, client.Set(ctx, permits.RowsKey(rates), "x", 0).Err())
			for first := true; ; first = false {
				beat := &permits.Heartbeat{Member: "a", TTL: 10, Rate: 100}
				terms := pool.Terms{Names: []string{"a"}, Permits: 10, Period: 1}
				requests := []*permits.Request{
					{Key: limit, Heartbeat: beat}, {Key: limit, Draw: &permits.Draw{Terms: terms, Rate: 10}},
				}
				store.Do(ctx, requests)
				for _, r := range requests {
					require.NoError(t, r.Err)
					assert.Equal(t, first, r.Damaged() != nil, "%v", r.Damaged())
				}
				text, _, err := store.Value(ctx, rates)
				require.NoError(t, err)
				names, err := store.RowNames(ctx, rates)
				require.NoError(t, err)
				if !first {
					assert.Equal(t, "head", string(text))
					assert.Equal(t, []string{"row"}, names)
					return
				}
				assert.Contains(t, string(text), "WRONGTYPE")
				assert.Empty(t, names)
				head := func([]byte, float64) []byte { return []byte("head") }
				require.NoError(t, store.Update(ctx, rates, time.Minute, head))
				rows := map[string][]byte{"row": []byte("1")}
				done, err := store.SetRows(ctx, rates, []byte("head"), time.Minute, rows)
				require.NoError(t, err)
				assert.True(t, done)
			}
		})
	}
}

// TestFieldsWithoutState: what is left of a hash that has lost its state does not change the limit.
func TestFieldsWithoutState(t *testing.T) {
	for name, addr := range servers(t) {
		t.Run(name, func(t *testing.T) {
			ctx, store, key := t.Context(), open(t, addr), "throttle:limit:{"+services.Name(t)+"}"
			client := redis.NewClient(&redis.Options{Addr: addr})
			defer func() { assert.NoError(t, client.Close()) }()
			now := time.Now().Unix()
			ramp := encodeRamp(schedule.State{
				Top: 1e15, Ramp: schedule.Ramp{From: 1e14, Over: 1},
				Line: schedule.Line{Rate: 1e14, Epoch: now, Seen: float64(now)},
			})
			require.NoError(t, client.HSet(ctx, key, "r", ramp).Err())
			var carry schedule.Carry
			for i := range 8 {
				r := request(1000)
				r.Rate, r.Want, r.Carry = 10, 1, carry
				q := &permits.Request{Key: key, Allocate: &permits.Allocate{Request: r}}
				store.Do(ctx, []*permits.Request{q})
				require.NoError(t, q.Err)
				assert.Equal(t, i == 0, q.Damaged() != nil)
				assert.InDelta(t, 0.1, q.Allocate.Reply.Gap, 1e-9)
				carry = q.Allocate.Reply.Carry
			}
		})
	}
}

// TestVersionsThatAreDamage: a state of a later version is refused, and stays as it is. Without a
// time to live, which all versions set, or of a version that none can be, it is damage.
func TestVersionsThatAreDamage(t *testing.T) {
	for name, addr := range servers(t) {
		t.Run(name, func(t *testing.T) {
			ctx, store, key := t.Context(), open(t, addr), "throttle:limit:{"+services.Name(t)+"}"
			client := redis.NewClient(&redis.Options{Addr: addr})
			defer func() { assert.NoError(t, client.Close()) }()
			for _, c := range []struct {
				text    string
				ttl     time.Duration // 0 = none
				damaged bool
			}{
				{"7 garbage", time.Minute, false},
				{"7 garbage", 0, true},
				{"70000 garbage", time.Minute, true},
				{"99999999999999999999 garbage", 0, true},
			} {
				require.NoError(t, client.Del(ctx, key).Err())
				require.NoError(t, client.HSet(ctx, key, "l", c.text).Err())
				if c.ttl > 0 {
					require.NoError(t, client.Expire(ctx, key, c.ttl).Err())
				}
				reply, err := permitstest.Allocate(ctx, store, key, request(1000))
				if !c.damaged {
					require.ErrorContains(t, err, "upgrade", c.text)
					assert.Equal(t, c.text, client.HGet(ctx, key, "l").Val())
					assert.LessOrEqual(t, client.TTL(ctx, key).Val(), c.ttl)
					continue
				}
				require.NoError(t, err, c.text)
				assert.True(t, reply.Lost, c.text)
				assert.Greater(t, client.TTL(ctx, key).Val(), 59*time.Minute)
				reply, err = permitstest.Allocate(ctx, store, key, request(1000))
				require.NoError(t, err, c.text)
				assert.False(t, reply.Lost, c.text)
			}
		})
	}
}

// TestRateThatNeverBinds: a stored rate that no policy has binds no request of the same revision.
func TestRateThatNeverBinds(t *testing.T) {
	for name, addr := range servers(t) {
		t.Run(name, func(t *testing.T) {
			ctx, store, key := t.Context(), open(t, addr), "throttle:limit:{"+services.Name(t)+"}"
			client := redis.NewClient(&redis.Options{Addr: addr})
			defer func() { assert.NoError(t, client.Close()) }()
			r := request(1000)
			reply, err := permitstest.Allocate(ctx, store, key, r)
			require.NoError(t, err)
			state, _, err := store.State(ctx, key)
			require.NoError(t, err)
			state.Rate = 1e15
			require.NoError(t, client.HSet(ctx, key, "l", encode(state)).Err())
			for range 10 {
				r.Carry, r.Want = reply.Carry, 1e9
				reply, err = permitstest.Allocate(ctx, store, key, r)
				require.NoError(t, err)
				assert.Equal(t, 1000.0, reply.Rate)
				assert.LessOrEqual(t, reply.N, 100.0, "a round")
			}
			after, _, err := store.State(ctx, key)
			require.NoError(t, err)
			assert.InDelta(t, state.Tail, after.Tail, 1, "slots stay where they are")
		})
	}
}

// TestClockBehindThePolicies: on a server whose clock is days behind the one that the policies were
// adopted by, the limit holds, and its state is not taken for damage.
func TestClockBehindThePolicies(t *testing.T) {
	for name, addr := range servers(t) {
		t.Run(name, func(t *testing.T) {
			store, key := open(t, addr), "throttle:limit:{"+services.Name(t)+"}"
			epoch := time.Now().Add(48 * time.Hour).UnixMilli()
			var carries [10]schedule.Carry
			granted, start := 0.0, time.Now()
			for i := range 200 {
				r := request(1000)
				r.Rate, r.Rev.Epoch, r.Carry = 10, epoch, carries[i%10]
				reply, err := permitstest.Allocate(t.Context(), store, key, r)
				require.NoError(t, err)
				require.False(t, reply.Lost)
				granted += reply.N
				carries[i%10] = reply.Carry
			}
			state, now, err := store.State(t.Context(), key)
			require.NoError(t, err)
			since := now - time.Since(start).Seconds()
			assert.GreaterOrEqual(t, state.Tail-since, granted/10-5, "each permit has a slot of its own")
			if _, err := permitstest.Allocate(t.Context(), store, key, request(1000)); assert.NoError(t, err) {
				state, _, err = store.State(t.Context(), key)
				require.NoError(t, err)
				assert.Less(t, state.Rev.Epoch, epoch, "others take such an epoch for damage")
			}
		})
	}
}
