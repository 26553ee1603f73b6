package redispermits_test

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/tests/promptly"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// FuzzState: whatever the fields of a limit's hash are, the script in a real Redis answers a
// request within bounds, and replaces what is out of bounds; a state of a newer version stays. What
// State reads, for diagnosis, does not panic.
func FuzzState(f *testing.F) {
	addr := strings.TrimPrefix(services.Redis(f), "redis://")
	client := redis.NewClient(&redis.Options{Addr: addr})
	f.Cleanup(func() { assert.NoError(f, client.Close()) })
	store := redispermits.Open(redis.UniversalOptions{Addrs: []string{addr}}, 10*time.Second)
	f.Cleanup(func() { assert.NoError(f, store.Close()) })
	key := "throttle:limit:{" + services.Name(f) + "}"
	s, _, _ := schedule.Allocate(schedule.State{}, schedule.Sub{}, request(1000), 1.7e9)
	s.Ramp = schedule.Ramp{From: 1, Over: 5, TTL: 3}
	s.Line = schedule.Line{Rate: 2, Epoch: 1.7e9, Seen: 1.7e9}
	f.Add([]byte(encode(s)), []byte{}, []byte{}, []byte{}, uint8(0))
	f.Add([]byte(encode(s)), []byte(encodeRamp(s)), []byte{}, []byte{}, uint8(1))
	f.Add([]byte(encode(s)), []byte(encodeRamp(s)), []byte(encodeOutcomes(s)), make([]byte, 56), uint8(2))
	f.Add([]byte(encode(s)), []byte{}, []byte("12345678\x03p|17654321\xff"), []byte{}, uint8(4))
	s.Ramp, s.Source, s.Heard = schedule.Ramp{}, "a", 1.7e9
	f.Add([]byte(encode(s)), []byte(encodeSources(s)), []byte{}, []byte{}, uint8(16))
	s.Rival = schedule.Claim{Source: "b", Rev: schedule.Revision{Number: 1}, Rate: 1e4, Heard: 1.7e9}
	f.Add([]byte(encode(s)), []byte(encodeSources(s)), []byte{}, []byte{}, uint8(16+32))
	f.Add([]byte("6 newer"), []byte{}, []byte{}, []byte{}, uint8(0))
	f.Fuzz(func(t *testing.T, state, ramp, other, sub []byte, kind uint8) {
		promptly.Do(t, func() {
			ctx := t.Context()
			pipe := client.Pipeline()
			pipe.Del(ctx, key)
			strict := kind&4 != 0
			fields := map[string][]byte{"l": state, "r": ramp, "sgroup": sub, "b": other}
			if kind&16 != 0 { // what is stored of policy stores, in place of a ramp
				fields["r"], fields["o"] = nil, ramp
			}
			if strict {
				fields["q"] = other
			}
			for name, text := range fields {
				if len(text) > 0 || kind&8 != 0 {
					pipe.HSet(ctx, key, name, text)
				}
			}
			_, err := pipe.Exec(ctx)
			require.NoError(t, err)
			_, _, _ = store.State(ctx, key) // says what is wrong
			r := request(1000)
			r.Strict = strict
			if kind&32 != 0 {
				r.Source = "a"
			}
			if kind&1 != 0 {
				r.Ramp = schedule.Ramp{From: 1, Over: 5, TTL: 3}
			}
			if kind&2 != 0 && !strict {
				r.Rule = busy.Rule{Mode: busy.Mode(1 + kind>>7), MinRate: 1, Tolerance: 0.01, RecoverRate: 1}
			}
			q := &permits.Request{Key: key, Allocate: &permits.Allocate{Request: r}}
			store.Do(ctx, []*permits.Request{q})
			if q.Err != nil {
				require.ErrorContains(t, q.Err, "upgrade", "%q", state)
				return
			}
			q.Check()
			require.NoError(t, q.Err)
			if q.Damaged() != nil {
				store.Do(ctx, []*permits.Request{q})
				q.Check()
				require.NoError(t, q.Err)
				require.NoError(t, q.Damaged())
			}
		})
	})
}

// FuzzNames: whatever is in place of the names of a cluster's replicas, and of a status record,
// replicas are counted and read once one has published, and that one is among them.
func FuzzNames(f *testing.F) {
	addr := strings.TrimPrefix(services.Redis(f), "redis://")
	client := redis.NewClient(&redis.Options{Addr: addr})
	f.Cleanup(func() { assert.NoError(f, client.Close()) })
	store := redispermits.Open(redis.UniversalOptions{Addrs: []string{addr}}, 10*time.Second)
	f.Cleanup(func() { assert.NoError(f, store.Close()) })
	cluster := services.Name(f)
	names := permits.RedisReplicas(cluster)
	f.Add("a", 1.7e12, []byte("{}"), uint8(0))
	f.Add("a", 1e13, []byte("{}"), uint8(1))
	f.Add("own", -1e300, []byte{}, uint8(2))
	f.Add("a\x00}", math.Inf(1), []byte("rubbish"), uint8(3))
	f.Fuzz(func(t *testing.T, name string, score float64, record []byte, kind uint8) {
		if math.IsNaN(score) { // Redis takes none
			return
		}
		promptly.Do(t, func() {
			ctx := t.Context()
			status := permits.RedisStatus(cluster, name)
			pipe := client.Pipeline()
			pipe.Del(ctx, names)
			pipe.Del(ctx, status)
			switch kind % 4 {
			case 0, 1:
				pipe.ZAdd(ctx, names, redis.Z{Member: name, Score: score})
			case 2:
				pipe.Set(ctx, names, name, 0)
			case 3:
				pipe.HSet(ctx, names, name, score)
			}
			if kind%8 < 4 {
				pipe.Set(ctx, status, record, 0)
			} else {
				pipe.LPush(ctx, status, record)
			}
			_, err := pipe.Exec(ctx)
			require.NoError(t, err)
			_, _ = store.Replicas(ctx, cluster) // says what is wrong
			_, _ = store.Published(ctx, cluster)
			const own = `{"replica":"own"}`
			require.NoError(t, store.Publish(ctx, cluster, "own", []byte(own), time.Minute))
			n, err := store.Replicas(ctx, cluster)
			require.NoError(t, err)
			require.Positive(t, n)
			records, err := store.Published(ctx, cluster)
			require.NoError(t, err)
			require.Contains(t, records, []byte(own))
			require.LessOrEqual(t, len(records), n)
		})
	})
}

// FuzzReply: whatever a server answers, each call ends, with an error or with an answer within
// bounds. The server gives three answers to each call, and then hangs up.
func FuzzReply(f *testing.F) {
	const names, sizes, records = "*2\r\n$1\r\na\r\n$1\r\nb\r\n", ":1\r\n:2\r\n", "*2\r\n$1\r\n{\r\n$2\r\n{}\r\n"
	const none, found = "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$2\r\n{}\r\n"
	for _, text := range []string{
		"$-1\r\n", "$16\r\n0123456789abcdef\r\n", "$144\r\n" + strings.Repeat("\x00", 144) + "\r\n",
		none, "*2\r\n$4\r\nnone\r\n:7\r\n", "-NOSCRIPT no\r\n", "*-1\r\n", ":1\r\n",
		"$99999999999999\r\n", "*99999999999999\r\n", "%2\r\n+a\r\n+b\r\n", "_\r\n", ",inf\r\n", "#t\r\n", "=5\r\ntxt:a\r\n",
		"*6\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$-1\r\n$9\r\n12345678\x09\r\n$-1\r\n", "*3\r\n$1\r\na\r\n$-1\r\n:1\r\n",
		":-1\r\n", "0-1\r\n", ":99999999999999\r\n", ":-9223372036854775808\r\n", "-WRONGTYPE no\r\n",
	} {
		f.Add([]byte(text), []byte(text), []byte(text))
	}
	f.Add([]byte(names), []byte(sizes), []byte(records))
	f.Add([]byte(names), []byte("-WRONGTYPE no\r\n:-5\r\n"), []byte(records))
	f.Add([]byte(none+none), []byte(":1\r\n:1\r\n"), []byte{}) // a record that is replaced
	f.Add([]byte(found), []byte(found), []byte(":1\r\n"))      // and after a conflict
	f.Add([]byte("-NOSCRIPT no\r\n"), []byte(none), []byte(":1\r\n"))
	var replies atomic.Pointer[[][]byte]
	var next atomic.Int64
	var answering sync.WaitGroup
	store := redispermits.Open(redis.UniversalOptions{
		Addrs: []string{"in memory"},
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			var reply []byte
			if i := int(next.Add(1)) - 1; i < len(*replies.Load()) {
				reply = (*replies.Load())[i]
			}
			answering.Go(func() { answer(theirs, reply) })
			return ours, nil
		},
	}, time.Second)
	f.Cleanup(func() {
		assert.NoError(f, store.Close())
		answering.Wait()
	})
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		promptly.Do(t, func() {
			replies.Store(&[][]byte{first, second, third})
			ctx, key := t.Context(), "throttle:limit:{a}"
			q := &permits.Request{Key: key, Allocate: &permits.Allocate{Request: request(1000)}}
			beat := &permits.Request{Key: key, Heartbeat: &permits.Heartbeat{Member: "a", TTL: 10, Rate: 100}}
			draw := &permits.Request{Key: key, Draw: &permits.Draw{
				Terms: pool.Terms{Names: []string{"red"}, Permits: 100, Period: 1, TTL: 10},
				Visit: pool.Visit{Group: "red", Member: "a", Want: 5}, Rate: 100,
			}}
			for _, call := range []func(){
				func() { store.Do(ctx, []*permits.Request{q, beat}) },
				func() { store.Do(ctx, []*permits.Request{draw}) },
				func() { _, _, _ = store.State(ctx, key) },
				func() { _, _, _ = store.Value(ctx, key) },
				func() {
					_ = store.Update(ctx, key, time.Minute, func(old []byte, _ float64) []byte { return old })
				},
				func() { _ = store.Publish(ctx, "c", "a", nil, time.Minute) },
				func() { _, _ = store.Published(ctx, "c") },
				func() { _, _ = store.Replicas(ctx, "c") },
				func() { _, _ = store.SetRows(ctx, key, nil, time.Minute, map[string][]byte{"a": nil}) },
				func() {
					if rows, err := store.Rows(ctx, key, []string{"a", "b"}); err == nil {
						require.Len(t, rows, 2)
					}
				},
				func() { _, _ = store.RowNames(ctx, key) },
			} {
				next.Store(0)
				call()
			}
			q.Check()
			if q.Err == nil {
				require.True(t, q.Allocate.Reply.Sound(q.Allocate.Request))
			}
			if draw.Err == nil {
				require.True(t, draw.Draw.Drawn.N >= 0 && draw.Draw.Drawn.N <= 5, "%+v", draw.Draw.Drawn)
			}
		})
	})
}

// answer answers a command, and hangs up; before, it answers those that go-redis begins with as an
// old server does.
func answer(conn net.Conn, reply []byte) {
	defer conn.Close()
	for in := bufio.NewReader(conn); ; {
		var n int
		if _, err := fmt.Fscanf(in, "*%d\r\n", &n); err != nil {
			return
		}
		var command string
		for i := range n {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			size, _ := strconv.Atoi(strings.TrimSpace(line[1:])) // go-redis sends right ones
			arg := make([]byte, size+2)
			for read := 0; read < len(arg); {
				got, err := in.Read(arg[read:])
				if err != nil {
					return
				}
				read += got
			}
			if i == 0 {
				command = strings.ToUpper(string(arg[:size]))
			}
		}
		if command != "HELLO" && command != "CLIENT" {
			_, _ = conn.Write(reply) // go-redis may have read enough
			return
		}
		if _, err := conn.Write([]byte("-ERR unknown command\r\n")); err != nil {
			return
		}
	}
}
