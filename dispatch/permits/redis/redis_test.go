package redispermits_test

import (
	"fmt"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
				"5 " + strings.Repeat("\x3f", 184),
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
			require.NoError(t, client.HSet(t.Context(), "throttle:{newer}", "l", "6 of another form").Err())
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
