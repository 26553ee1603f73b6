package redispermits_test

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

func TestStatusRecords(t *testing.T) {
	for name, addr := range servers(t) {
		t.Run(name, func(t *testing.T) {
			store, ctx := open(t, addr), t.Context()
			cluster := fmt.Sprint("c", time.Now().UnixNano())
			got, err := store.Published(ctx, cluster)
			require.NoError(t, err)
			assert.Empty(t, got)
			require.NoError(t, store.Publish(ctx, cluster, "a", []byte("one"), time.Minute))
			require.NoError(t, store.Publish(ctx, cluster, "b", []byte("two"), time.Minute))
			require.NoError(t, store.Publish(ctx, cluster, "a", []byte("three"), time.Minute))
			require.NoError(t, store.Publish(ctx, cluster, "gone", []byte("four"), time.Millisecond))
			time.Sleep(5 * time.Millisecond)
			got, err = store.Published(ctx, cluster)
			require.NoError(t, err)
			assert.ElementsMatch(t, [][]byte{[]byte("three"), []byte("two")}, got)
			n, err := store.Replicas(ctx, cluster)
			require.NoError(t, err)
			assert.Equal(t, 2, n)
			large := make([]byte, permits.MaxRecord+1)
			require.ErrorContains(t, store.Publish(ctx, cluster, "a", large, time.Minute), "too large")
		})
	}
}

// TestAnotherTypeOfNames: a key of another type in the place of the names is replaced.
func TestAnotherTypeOfNames(t *testing.T) {
	for name, addr := range servers(t) {
		t.Run(name, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: addr})
			defer func() { assert.NoError(t, client.Close()) }()
			store, cluster := open(t, addr), fmt.Sprint("c", time.Now().UnixNano())
			require.NoError(t, client.SAdd(t.Context(), permits.RedisReplicas(cluster), "old").Err())
			require.NoError(t, store.Publish(t.Context(), cluster, "a", []byte("one"), time.Minute))
			got, err := store.Published(t.Context(), cluster)
			require.NoError(t, err)
			assert.Equal(t, [][]byte{[]byte("one")}, got)
		})
	}
}

// TestForgedNames: names that are dated further ahead than any record lives are not counted, and
// Publish removes them.
func TestForgedNames(t *testing.T) {
	for name, addr := range servers(t) {
		t.Run(name, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: addr})
			defer func() { assert.NoError(t, client.Close()) }()
			store, ctx, cluster := open(t, addr), t.Context(), services.Name(t)
			key := permits.RedisReplicas(cluster)
			require.NoError(t, store.Publish(ctx, cluster, "a", []byte("one"), time.Minute))
			for i, score := range []float64{1e300, math.Inf(1), float64(time.Now().Add(2 * time.Hour).UnixMilli())} {
				require.NoError(t, client.ZAdd(ctx, key, redis.Z{Score: score, Member: i}).Err())
			}
			n, err := store.Replicas(ctx, cluster)
			require.NoError(t, err)
			assert.Equal(t, 1, n)
			got, err := store.Published(ctx, cluster)
			require.NoError(t, err)
			assert.Len(t, got, 1)
			require.NoError(t, store.Publish(ctx, cluster, "a", []byte("one"), time.Minute))
			assert.Equal(t, []string{"a"}, client.ZRange(ctx, key, 0, -1).Val())
		})
	}
}

// TestNamesWithoutARight: an error for another reason than the key's type does not delete the key.
func TestNamesWithoutARight(t *testing.T) {
	server := services.RedisServer(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer func() { assert.NoError(t, client.Close()) }()
	ctx, store := t.Context(), open(t, server.Addr)
	require.NoError(t, store.Publish(ctx, "c", "a", []byte("one"), time.Minute))
	require.NoError(t, client.Do(ctx, "ACL", "SETUSER", "u", "on", "nopass", "~*", "+@all", "-zadd").Err())
	other := redispermits.Open(redis.UniversalOptions{Addrs: []string{server.Addr}, Username: "u", Password: "x"},
		10*time.Second)
	defer func() { assert.NoError(t, other.Close()) }()
	require.Error(t, other.Publish(ctx, "c", "b", []byte("two"), time.Minute))
	assert.Equal(t, []string{"a"}, client.ZRange(ctx, permits.RedisReplicas("c"), 0, -1).Val())
}

// TestDeadNames: 500,000 names of dead replicas go, a thousand each time that a replica publishes,
// and the memory that they take is freed.
func TestDeadNames(t *testing.T) { deadNames(t) }

// TestAccuracyDeadNames: the names slow down neither those who publish nor those who read.
func TestAccuracyDeadNames(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		client := deadNames(t)
		m.AtMost("a publication takes on average, ms", meanTime(t, client, "evalsha"), 5)
		m.AtMost("a read takes on average, ms", meanTime(t, client, "evalsha_ro"), 5)
	})
}

// deadNames returns a client of the server that had the names.
func deadNames(t *testing.T) *redis.Client {
	const dead, alive = 500_000, 50
	server := services.RedisServer(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: time.Minute})
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	store, ctx := open(t, server.Addr), t.Context()
	publish := func(i int) {
		name := fmt.Sprint("replica-", i)
		require.NoError(t, store.Publish(ctx, "c", name, []byte(name), time.Minute))
	}
	read := func() {
		texts, err := store.Published(ctx, "c")
		require.NoError(t, err)
		assert.Len(t, texts, alive)
		n, err := store.Replicas(ctx, "c")
		require.NoError(t, err)
		assert.Equal(t, alive, n)
	}
	for i := range alive {
		publish(i)
	}
	read()
	before := used(t, client)
	key := permits.RedisReplicas("c")
	for from := 0; from < dead; from += 10_000 {
		names := make([]redis.Z, 10_000)
		for i := range names {
			names[i] = redis.Z{
				Score:  float64(time.Now().Add(-time.Second).UnixMilli()),
				Member: fmt.Sprintf("orders-consumer-7d9f8b6c5d-%08d", from+i),
			}
		}
		require.NoError(t, client.ZAdd(ctx, key, names...).Err())
	}
	taken := used(t, client) - before
	t.Logf("%d dead names take %d bytes", dead, taken)
	require.NoError(t, client.ConfigResetStat(ctx).Err())
	read()
	for i := 0; i < dead; i += 1000 {
		publish(i / 1000 % alive)
		left, err := client.ZCard(ctx, key).Result()
		require.NoError(t, err)
		require.Equal(t, int64(dead-1000-i+alive), left)
	}
	read()
	left := used(t, client) - before
	assert.Less(t, left, taken/10, "Redis shrinks the set's hash table gradually")
	return client
}

// used is the memory that Redis uses for data, in bytes.
func used(t *testing.T, client *redis.Client) int64 {
	return infoNumber(t, client, "memory", "used_memory_dataset:")
}

func infoNumber(t *testing.T, client *redis.Client, section, field string) int64 {
	t.Helper()
	info, err := client.Info(t.Context(), section).Result()
	require.NoError(t, err)
	_, rest, ok := strings.Cut(info, field)
	require.True(t, ok, info)
	n, err := strconv.ParseInt(rest[:strings.IndexAny(rest, "\r,")], 10, 64)
	require.NoError(t, err)
	return n
}

// meanTime is how long a command took on the server, on average, in milliseconds.
func meanTime(t *testing.T, client *redis.Client, command string) float64 {
	t.Helper()
	info, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	_, stats, _ := strings.Cut(info, "cmdstat_"+command+":")
	_, text, _ := strings.Cut(stats, "usec_per_call=")
	micros, err := strconv.ParseFloat(text[:strings.IndexByte(text, ',')], 64)
	require.NoError(t, err)
	return micros / 1000
}
