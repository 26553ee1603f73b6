package shapes

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestClusterSpreadsLimits: one call allocates on every shard, and all limits of a topic are on
// the same one.
func TestClusterSpreadsLimits(t *testing.T) {
	t.Parallel()
	c := services.RedisCluster(t)
	store := open(t, c.URL)
	works(t, store)
	var allocations []*permits.Request
	var topics [][]string
	for i := range 40 {
		topic := policy.Topic{
			Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: fmt.Sprint("orders-", i),
		}
		scope := policy.TopicScope(topic)
		topics = append(topics, []string{
			permits.LimitKey("c", scope, false), permits.LimitKey("c", scope, true),
			permits.LimitKey("c", policy.SubscriptionScope(topic, "billing"), false),
			permits.LimitKey("c", policy.SubscriptionScope(topic, "audit"), true),
		})
		for _, key := range topics[i] {
			allocations = append(allocations, allocation(key))
		}
	}
	// Each shard needs a connection and the script.
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		store.Do(t.Context(), allocations)
		for _, r := range allocations {
			assert.NoError(c, r.Err, r.Key)
			assert.Equal(c, 10.0, r.Allocate.Reply.N)
		}
	}, throttletest.Patience, 50*time.Millisecond)
	shards := map[*services.RedisProcess]int{}
	for _, keys := range topics {
		owner := c.Owner(keys[0])
		shards[owner] += len(keys)
		for _, key := range keys {
			assert.Equal(t, int64(1), c.Do(owner, "EXISTS", key), "%s is not on the shard of %s", key, keys[0])
		}
	}
	t.Logf("keys on each shard: %v, %v, %v", shards[c.Nodes[0]], shards[c.Nodes[1]], shards[c.Nodes[2]])
	assert.Len(t, shards, 3, "all shards have limits")
}

// TestClusterTimeIsOfTheShard: the time returned with a state or a record is that of the server
// that keeps it.
func TestClusterTimeIsOfTheShard(t *testing.T) {
	t.Parallel()
	c := services.RedisCluster(t)
	store := open(t, c.URL)
	works(t, store)
	const key = "throttle:limit:{a}"
	require.NoError(t, allocate(t, store, allocation(key)))
	for _, node := range c.Nodes {
		c.Do(node, "CONFIG", "RESETSTAT")
	}
	for range 20 {
		_, _, err := store.State(t.Context(), key)
		require.NoError(t, err)
		_, _, err = store.Value(t.Context(), "throttle:rates:{a}")
		require.NoError(t, err)
		err = store.Update(t.Context(), "throttle:rates:{a}", time.Minute, func([]byte, float64) []byte {
			return []byte("x")
		})
		require.NoError(t, err)
		terms := pool.Terms{
			Names: []string{"eu"}, Permits: 10, Period: 1, Ahead: 0.1, TTL: 10,
		}
		records := []*permits.Request{
			{Key: "throttle:limit:{a}:s", Heartbeat: &permits.Heartbeat{Member: "m", TTL: 10, Rate: 10}},
			{Key: "throttle:limit:{a}:g", Draw: &permits.Draw{
				Terms: terms, Rate: 10, Visit: pool.Visit{Group: "eu", Member: "m", Want: 1},
			}},
		}
		store.Do(t.Context(), records)
		for _, r := range records {
			require.NoError(t, r.Err)
		}
	}
	for _, node := range c.Nodes {
		if node != c.Owner(key) {
			assert.NotContains(t, c.Do(node, "INFO", "commandstats"), "cmdstat_time:")
		}
	}
}

// TestClusterSlotMoves: allocations continue while a state moves with its slot, and none is made
// twice.
func TestClusterSlotMoves(t *testing.T) {
	t.Parallel()
	c := services.RedisCluster(t)
	store := open(t, c.URL)
	works(t, store)
	allocations := onEachShard(c)
	made, failed := []int64{0, 0, 0}, []int64{0, 0, 0}
	allocateAll := func(n int) {
		for range n {
			store.Do(t.Context(), allocations)
			for i, r := range allocations {
				if r.Err != nil {
					t.Log(r.Err)
					failed[i]++
					continue
				}
				made[i]++
				r.Allocate.Carry = r.Allocate.Reply.Carry
			}
		}
	}
	allocateAll(10)
	moving := allocations[0].Key
	before := slices.Clone(failed) // by now, all connections are open
	to := c.Nodes[(slices.Index(c.Nodes, c.Owner(moving))+1)%3]
	c.Migrate(moving, to, func() { allocateAll(10) })
	allocateAll(20)
	t.Logf("allocations made %v, failed %v, before the move %v", made, failed, before)
	for i, b := range allocations {
		assert.LessOrEqual(t, failed[i]-before[i], int64(1), b.Key)
		s, _, err := store.State(t.Context(), b.Key)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, s.Seq, made[i], "the state was lost")
		assert.LessOrEqual(t, s.Seq, made[i]+failed[i], "an allocation was made twice")
	}
	assert.Equal(t, to, c.Owner(moving))
}

// losesAShard returns a store on a Cluster that has lost its third shard, and an allocation for
// each.
func losesAShard(t *testing.T) (dispatch.PermitStore, []*permits.Request) {
	c := services.RedisCluster(t)
	for _, node := range c.Nodes {
		c.Do(node, "CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	store := open(t, c.URL)
	works(t, store)
	allocations := onEachShard(c)
	store.Do(t.Context(), allocations) // connects
	c.Nodes[2].Kill()
	return store, allocations
}

// TestClusterLosesAShard: allocations on a lost shard fail; those on the other shards succeed in
// the same call.
func TestClusterLosesAShard(t *testing.T) {
	t.Parallel()
	store, allocations := losesAShard(t)
	for range 50 {
		store.Do(t.Context(), allocations)
		assert.Error(t, allocations[2].Err)
		assert.NoError(t, allocations[0].Err)
		assert.NoError(t, allocations[1].Err)
	}
}

// onEachShard returns an allocation for each node.
func onEachShard(c *services.RedisShards) (allocations []*permits.Request) {
	for i := 0; len(allocations) < len(c.Nodes); i++ {
		if key := fmt.Sprintf("throttle:limit:{%d}", i); c.Owner(key) == c.Nodes[len(allocations)] {
			allocations = append(allocations, allocation(key))
		}
	}
	return allocations
}

// stop is a limit whose replicas stop without their permit store.
func stop(rate int64) policy.Policy {
	return policy.Policy{MessageRate: policy.PerSecond(rate), OnOutage: policy.OutageStop}
}

// TestClusterLimit: four Limiters do not exceed their limit while its slot moves to another shard
// and back, and go on after each move.
func TestClusterLimit(t *testing.T) {
	t.Parallel()
	const rate = 1000
	c := services.RedisCluster(t)
	drain(t, 4, c.URL, stop(rate), func(r *run, key string) {
		home := c.Owner(key)
		r.more(t, 100)
		c.Migrate(key, c.Nodes[(slices.Index(c.Nodes, home)+1)%3], func() { time.Sleep(200 * time.Millisecond) })
		r.more(t, 300)
		c.Migrate(key, home, nil)
		r.more(t, 300)
	}).neverOver(t, rate, slack, 0)
}

// slack is what may be dispatched since the start beyond the rate: see package window.
const slack = 250 * time.Millisecond

// TestClusterRepeatsNothing: an allocation whose reply is lost was made, and is not repeated.
func TestClusterRepeatsNothing(t *testing.T) {
	t.Parallel()
	c := services.RedisCluster(t)
	var lossy atomic.Bool
	store := redispermits.Open(redis.UniversalOptions{
		Addrs: []string{c.Nodes[0].Addr}, IsClusterMode: true,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return lossyConn{conn, &lossy}, err
		},
	}, 10*time.Second)
	defer func() { assert.NoError(t, store.Close()) }()
	works(t, store)
	const key = "throttle:limit:{a}"
	require.NoError(t, allocate(t, store, allocation(key))) // loads the script on its shard
	before, _, err := store.State(t.Context(), key)
	require.NoError(t, err)
	lossy.Store(true)
	require.Error(t, allocate(t, store, allocation(key)))
	lossy.Store(false)
	after, _, err := store.State(t.Context(), key)
	require.NoError(t, err)
	assert.Equal(t, before.Seq+1, after.Seq)
}

// A lossyConn closes instead of returning an answer while lossy is set.
type lossyConn struct {
	net.Conn
	lossy *atomic.Bool
}

func (c lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.lossy.Load() {
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}
