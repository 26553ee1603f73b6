package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// A fault is one way in which a permit store breaks.
type fault struct {
	store    string
	name     string
	open     func(t *testing.T) *target
	do       func(t *testing.T, s *target) // breaks it for a while, and mends it
	recovery time.Duration                 // bound, if higher than that of the mode
	late     bool                          // answers are late at random: only the hard bounds hold
	effects  []effect                      // what it must do to the store or to its requests
}

// A target is the servers of a permit store, between which and the fleet there may be a proxy.
type target struct {
	url      string // of permits
	proxy    *services.Proxy
	redis    *services.RedisProcess
	dir      string // of redis's data
	clock    *services.Clock
	failover *services.RedisFailover
	shards   *services.RedisShards
	etcd     *services.EtcdNode
	trio     *services.EtcdTrio
}

// while is how long a fault lasts.
const while = 3 * time.Second

var faults = []fault{
	{
		store: "Redis", name: "frozen", open: oneRedis,
		do:      freezes(while),
		effects: []effect{fails},
	},
	{
		store: "Redis", name: "killed, back with its data", open: persistentRedis,
		do:      restarts,
		effects: []effect{fails, keeps},
	},
	{
		store: "Redis", name: "killed, back empty", open: oneRedis,
		do:      restarts,
		effects: []effect{fails, loses},
	},
	{
		store: "Redis", name: "back at once with an old snapshot", open: snapshotRedis,
		do: func(t *testing.T, s *target) {
			command(t, s, "SAVE")
			time.Sleep(while)
			s.redis.Kill()
			s.redis.Start()
		},
		effects: []effect{loses},
	},
	{
		store: "Redis", name: "killed, Sentinels fail over", open: sentinels,
		do: func(_ *testing.T, s *target) {
			s.failover.Master.Kill()
			s.failover.Elected()
		},
		effects: []effect{fails},
	},
	{
		store: "Redis", name: "frozen, Sentinels fail over", open: sentinels,
		do: func(_ *testing.T, s *target) {
			s.failover.Master.Freeze()
			s.failover.Elected()
			s.failover.Master.Thaw() // it takes itself for the master, until a Sentinel tells it
		},
		effects: []effect{fails},
	},
	{
		store: "Redis", name: "slots of a Cluster move", open: shards,
		do: func(_ *testing.T, s *target) {
			for _, m := range modes {
				s.migrate(m.key(), func() { time.Sleep(while / 4) })
			}
		},
		effects: []effect{counts(3, "errorstat_MOVED", "errorstat_ASK")},
	},
	{
		store: "Redis", name: "slots of a Cluster move all the time", open: shards,
		do: func(_ *testing.T, s *target) {
			for end := time.Now().Add(while); time.Now().Before(end); {
				for _, m := range modes {
					s.migrate(m.key(), nil)
					time.Sleep(100 * time.Millisecond)
				}
			}
		},
		effects: []effect{counts(20, "errorstat_MOVED", "errorstat_ASK")},
	},
	{
		store: "Redis", name: "a shard of a Cluster is frozen", open: shards,
		do: func(_ *testing.T, s *target) {
			owner := s.shards.Owner(modes[0].key())
			owner.Freeze()
			time.Sleep(while)
			owner.Thaw()
		},
		effects: []effect{fails},
	},
	{
		store: "Redis", name: "a shard of a Cluster is killed, back empty", open: lastingShards,
		do: func(_ *testing.T, s *target) {
			owner := s.shards.Owner(modes[0].key())
			owner.Kill()
			time.Sleep(while)
			owner.Start()
		},
		recovery: 5 * time.Second, // it takes writes after two, although it answers
		effects:  []effect{fails, loses},
	},
	{
		store: "Redis", name: "out of memory", open: oneRedis,
		do:      outOfMemory,
		effects: []effect{fails, answers("OOM")},
	},
	{
		store: "Redis", name: "evicts keys (allkeys-lru)", open: oneRedis,
		do:      evicts,
		effects: []effect{counts(100, "evicted_keys")},
	},
	{
		store: "Redis", name: "loads its data", open: slowRedis,
		do: func(t *testing.T, s *target) {
			command(t, s, "DEBUG", "POPULATE", "60", "key", "2000")
			command(t, s, "SAVE")
			s.redis.Kill()
			s.redis.Start()
		},
		effects: []effect{fails, answers("LOADING")},
	},
	{
		store: "Redis", name: "a script of others runs", open: oneRedis,
		do: func(t *testing.T, s *target) {
			command(t, s, "CONFIG", "SET", "busy-reply-threshold", "50")
			client := admin(s)
			defer func() { _ = client.Close() }()
			killed := make(chan error)
			go func() {
				ctx := context.WithoutCancel(t.Context())
				killed <- client.Eval(ctx, "while true do end", nil).Err()
			}()
			time.Sleep(while)
			command(t, s, "SCRIPT", "KILL")
			require.ErrorContains(t, <-killed, "killed")
		},
		effects: []effect{fails, answers("BUSY")},
	},
	{
		store: "Redis", name: "cannot write its snapshot (MISCONF)", open: snapshotRedis,
		do: func(t *testing.T, s *target) {
			command(t, s, "CONFIG", "SET", "save", "1 1")
			require.NoError(t, os.RemoveAll(s.dir))
			time.Sleep(while + time.Second)
			command(t, s, "CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
		},
		effects: []effect{fails, answers("MISCONF")},
	},
	{
		store: "Redis", name: "is a replica (READONLY)", open: oneRedis,
		do:      becomesReplica,
		effects: []effect{fails, answers("READONLY")},
	},
	{
		store: "Redis", name: "forgets scripts all the time (NOSCRIPT)", open: oneRedis,
		do: func(t *testing.T, s *target) {
			for end := time.Now().Add(while); time.Now().Before(end); {
				command(t, s, "SCRIPT", "FLUSH")
				time.Sleep(10 * time.Millisecond)
			}
		},
		effects: []effect{counts(20, "errorstat_NOSCRIPT")},
	},
	{
		store: "Redis", name: "its clients are killed all the time", open: oneRedis,
		do: func(t *testing.T, s *target) {
			for end := time.Now().Add(while); time.Now().Before(end); {
				command(t, s, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
				time.Sleep(50 * time.Millisecond)
			}
		},
		effects: []effect{counts(90, "total_connections_received")}, // do makes < 60
	},
	{
		store: "Redis", name: "50 ms away", open: oneRedis,
		do: away(50 * time.Millisecond), effects: []effect{delays(0.5, 50*time.Millisecond)},
	},
	{
		store: "Redis", name: "150 ms away", open: oneRedis,
		do: away(150 * time.Millisecond), effects: []effect{delays(0.5, 150*time.Millisecond)},
	},
	{
		store: "Redis", name: "250 ms away", open: oneRedis,
		do: away(250 * time.Millisecond), effects: []effect{delays(0.5, 250*time.Millisecond)},
	},
	{
		store: "Redis", name: "5 % of the segments are 200 ms late, as by loss", open: oneRedis,
		do:      lossy,
		effects: []effect{delays(0.01, 200*time.Millisecond)},
	},
	{
		store: "Redis", name: "half-open connections", open: oneRedis,
		do:      halfOpen,
		effects: []effect{fails},
	},
	{
		store: "Redis", name: "clock + 1 h", open: clockRedis,
		do:      func(_ *testing.T, s *target) { s.clock.Set(time.Hour) },
		effects: []effect{fast(time.Hour)},
	},
	{
		store: "Redis", name: "clock - 1 h", open: clockRedis,
		do:      func(_ *testing.T, s *target) { s.clock.Set(-time.Hour) },
		effects: []effect{fast(-time.Hour)},
	},

	{
		store: "etcd", name: "frozen", open: oneEtcd,
		do: func(_ *testing.T, s *target) {
			s.proxy.Freeze()
			time.Sleep(while)
			s.proxy.Restore()
		},
		effects: []effect{fails},
	},
	{
		store: "etcd", name: "killed, back with its data", open: oneEtcd,
		do: func(_ *testing.T, s *target) {
			s.etcd.Stop()
			time.Sleep(while)
			s.etcd.Start()
		},
		recovery: 5 * time.Second,
		effects:  []effect{fails, keeps},
	},
	{
		store: "etcd", name: "killed, back empty", open: oneEtcd,
		do: func(t *testing.T, s *target) {
			s.etcd.Stop()
			time.Sleep(while)
			s.etcd.Restore(t.TempDir())
			s.etcd.Start()
		},
		recovery: 5 * time.Second,
		effects:  []effect{fails, loses},
	},
	{
		store: "etcd", name: "restored from an old backup", open: oneEtcd,
		do: func(_ *testing.T, s *target) {
			s.etcd.Stop()
			backup := s.etcd.Backup()
			s.etcd.Start()
			time.Sleep(while)
			s.etcd.Stop()
			s.etcd.Restore(backup)
			s.etcd.Start()
		},
		recovery: 5 * time.Second,
		effects:  []effect{fails, loses},
	},
	{
		store: "etcd", name: "full (NOSPACE), then compacted", open: smallEtcd,
		do: func(t *testing.T, s *target) {
			client := s.etcd.Client()
			ctx := context.WithoutCancel(t.Context())
			var err error
			for i := 0; err == nil; i++ {
				_, err = client.Put(ctx, fmt.Sprint("filler/", i), strings.Repeat("x", 1<<20))
			}
			require.ErrorIs(t, err, rpctypes.ErrNoSpace)
			time.Sleep(while)
			_, err = client.Delete(ctx, "filler/", clientv3.WithPrefix())
			require.NoError(t, err)
			s.etcd.Compact()
			_, err = client.Defragment(ctx, s.etcd.Endpoint)
			require.NoError(t, err)
			_, err = client.AlarmDisarm(ctx, &clientv3.AlarmMember{}) // of all members
			require.NoError(t, err)
		},
		effects: []effect{fails},
	},
	{
		store: "etcd", name: "a member of three is cut off", open: threeEtcds,
		do: func(_ *testing.T, s *target) {
			s.trio.Isolate(0)
			time.Sleep(while)
			s.trio.Heal()
		},
		recovery: 5 * time.Second,
		effects:  []effect{fails},
	},
	{
		store: "etcd", name: "50 ms away", open: oneEtcd,
		do: away(50 * time.Millisecond), effects: []effect{delays(0.5, 50*time.Millisecond)},
	},
	{
		store: "etcd", name: "150 ms away", open: oneEtcd,
		do: away(150 * time.Millisecond), effects: []effect{delays(0.5, 150*time.Millisecond)},
	},
	{
		store: "etcd", name: "250 ms away", open: oneEtcd,
		do: away(250 * time.Millisecond), effects: []effect{delays(0.5, 250*time.Millisecond)},
	},
	{
		store: "etcd", name: "5 % of the segments are 200 ms late, as by loss", open: oneEtcd,
		do: lossy, late: true,
		effects: []effect{delays(0.01, 200*time.Millisecond)},
	},
	{
		store: "etcd", name: "half-open connections", open: oneEtcd,
		do: halfOpen, recovery: 20 * time.Second, // gRPC finds it out after 13
		late:    true,
		effects: []effect{fails},
	},
}

// key is the key of the limit's schedule.
func (m mode) key() string {
	scope, _ := policy.ParseScope(m.topic()) // is valid
	return permits.LimitKey(cluster, scope, false)
}

func away(rtt time.Duration) func(*testing.T, *target) {
	return func(_ *testing.T, s *target) {
		s.proxy.Latency(rtt / 2)
		time.Sleep(2 * while)
		s.proxy.Restore()
	}
}

func lossy(_ *testing.T, s *target) {
	s.proxy.Lose(0.05)
	time.Sleep(2 * while)
	s.proxy.Restore()
}

func halfOpen(_ *testing.T, s *target) { s.proxy.Abandon() }

// behind returns a target whose fleet connects through a proxy.
func behind(t *testing.T, scheme, addr string) *target {
	p := services.NewProxy(t, addr)
	return &target{url: scheme + "://" + p.Addr, proxy: p}
}

func redisWith(t *testing.T, args ...string) *target {
	server := services.RedisServer(t, args...)
	s := behind(t, "redis", server.Addr)
	s.redis = server
	return s
}

func oneRedis(t *testing.T) *target { return redisWith(t) }

// persistentRedis keeps its data over a restart. While it syncs its file, it may answer writes that
// are not in the file yet: it does not sync.
func persistentRedis(t *testing.T) *target {
	return redisWith(t, "--dir", t.TempDir(), "--appendonly", "yes", "--appendfsync", "no")
}

// snapshotRedis loads its last snapshot at a start.
func snapshotRedis(t *testing.T) *target {
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.Mkdir(dir, 0o700))
	s := redisWith(t, "--dir", dir)
	s.dir = dir
	return s
}

// slowRedis is snapshotRedis that takes 50 ms to load a key. It answers after each of more than
// 1 KiB.
func slowRedis(t *testing.T) *target {
	return redisWith(t, "--dir", t.TempDir(), "--rdbcompression", "no", "--key-load-delay", "50000",
		"--loading-process-events-interval-bytes", "1024", "--enable-debug-command", "yes")
}

// clockRedis has a clock of its own.
func clockRedis(t *testing.T) *target {
	clock := services.NewClock(t)
	server := services.RedisServerWithClock(t, clock)
	return &target{url: server.URL, redis: server, clock: clock}
}

func sentinels(t *testing.T) *target {
	f := services.RedisSentinel(t, 300*time.Millisecond)
	return &target{url: f.URL, failover: f}
}

func shards(t *testing.T) *target {
	c := services.RedisCluster(t)
	return &target{url: c.URL, shards: c}
}

// lastingShards know their slots after a restart, but lose their data.
func lastingShards(t *testing.T) *target {
	c := services.RedisClusterOf(t, func(_ int, args ...string) *services.RedisProcess {
		return services.RedisServer(t, append(args, "--dir", t.TempDir())...)
	})
	return &target{url: c.URL, shards: c}
}

// migrate moves the slot of a key to the next shard.
func (s *target) migrate(key string, halfway func()) {
	for i, node := range s.shards.Nodes {
		if node == s.shards.Owner(key) {
			s.shards.Migrate(key, s.shards.Nodes[(i+1)%len(s.shards.Nodes)], halfway)
			return
		}
	}
}

func oneEtcd(t *testing.T) *target { return etcdOf(t, services.Etcd(t)) }

// smallEtcd has a quota of 16 MiB.
func smallEtcd(t *testing.T) *target { return etcdOf(t, services.EtcdWithQuota(t, 16<<20)) }

func etcdOf(t *testing.T, node *services.EtcdNode) *target {
	s := behind(t, "etcd", node.Endpoint)
	s.etcd = node
	return s
}

func threeEtcds(t *testing.T) *target {
	trio := services.EtcdCluster(t)
	return &target{url: "etcd://" + strings.Join(trio.Endpoints[:], ","), trio: trio}
}

// admin returns a client of the Redis itself, past the proxy.
func admin(s *target) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: s.redis.Addr, ReadTimeout: time.Minute, MaxRetries: -1,
	})
}

// around sends a command, and another one after a while.
func around(first, then []any) func(*testing.T, *target) {
	return func(t *testing.T, s *target) {
		command(t, s, first...)
		time.Sleep(while)
		command(t, s, then...)
	}
}

// freezes stops Redis for that long.
func freezes(d time.Duration) func(*testing.T, *target) {
	return func(_ *testing.T, s *target) {
		s.redis.Freeze()
		time.Sleep(d)
		s.redis.Thaw()
	}
}

// restarts kills Redis, and starts it again after a while.
func restarts(_ *testing.T, s *target) {
	s.redis.Kill()
	time.Sleep(while)
	s.redis.Start()
}

var (
	outOfMemory    = around([]any{"CONFIG", "SET", "maxmemory", "1"}, []any{"CONFIG", "SET", "maxmemory", "0"})
	becomesReplica = around([]any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"})
)

// evicts fills Redis, which evicts the keys that were not used for the longest time.
func evicts(t *testing.T, s *target) {
	command(t, s, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	command(t, s, "CONFIG", "SET", "maxmemory", "3mb")
	filler := strings.Repeat("x", 10_000)
	for end, i := time.Now().Add(while), 0; time.Now().Before(end); i++ {
		command(t, s, "SET", fmt.Sprint("filler:", i), filler)
		time.Sleep(time.Millisecond)
	}
	command(t, s, "CONFIG", "SET", "maxmemory", "0")
}

// command sends a command to the Redis itself, past the proxy.
func command(t *testing.T, s *target, args ...any) {
	client := admin(s)
	defer func() { _ = client.Close() }()
	require.NoError(t, client.Do(context.WithoutCancel(t.Context()), args...).Err())
}
