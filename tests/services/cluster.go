package services

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

const slots = 16384 // of a Redis Cluster

// A RedisShards is a Redis Cluster of one test. Its methods fail the test if they fail.
type RedisShards struct {
	URL   string // redis+cluster://host:port,host:port,host:port
	Nodes []*RedisProcess

	t     testing.TB
	ids   []string // of Nodes, as the cluster knows them
	addrs []string // of Nodes, for each other
}

// RedisCluster starts a Redis Cluster of three masters that share the slots evenly. It ignores the
// environment. The cluster ends with the test.
func RedisCluster(t testing.TB) *RedisShards {
	t.Helper()
	return RedisClusterTLS(t, Certificates{})
}

// RedisClusterTLS is RedisCluster with TLS at the ports of its URL, if there are certificates; see
// [RedisTLS].
func RedisClusterTLS(t testing.TB, server Certificates) *RedisShards {
	t.Helper()
	return RedisClusterOf(t, func(_ int, args ...string) *RedisProcess {
		if server.CA == "" {
			return RedisServer(t, args...)
		}
		return RedisTLS(t, server, append(args, "--tls-cluster", "yes")...)
	})
}

// RedisClusterOf is RedisCluster of the servers that start starts: node 0, 1 and 2, with arguments
// that they need. A server with a --dir of its own, for its data, is in the cluster after a restart
// too.
func RedisClusterOf(
	t testing.TB, start func(node int, args ...string) *RedisProcess,
) *RedisShards {
	t.Helper()
	c := &RedisShards{t: t}
	for i := range 3 {
		bus := freePort(t)
		node := start(i, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
			"--cluster-port", strconv.Itoa(bus))
		_, addr, _ := strings.Cut(node.URL, "://")
		c.Nodes, c.addrs = append(c.Nodes, node), append(c.addrs, addr)
		c.ids = append(c.ids, fmt.Sprint(c.Do(node, "CLUSTER", "MYID")))
		c.Do(node, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		c.Do(node, "CLUSTER", "ADDSLOTSRANGE", slots*i/3, slots*(i+1)/3-1)
		host, port, _ := net.SplitHostPort(addr)
		c.Do(c.Nodes[0], "CLUSTER", "MEET", host, port, bus)
	}
	c.URL = "redis+cluster://" + strings.Join(c.addrs, ",")
	err := waitFor(func() error {
		for _, node := range c.Nodes {
			info := fmt.Sprint(c.Do(node, "CLUSTER", "INFO"))
			if !strings.Contains(info, "cluster_state:ok") ||
				!strings.Contains(info, "cluster_size:3") {
				return fmt.Errorf("CLUSTER INFO of %s: %s", node.Addr, info)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("services: form the cluster: %v", err)
	}
	return c
}

// Do sends a command to a node, and returns its answer. A node refuses keys of other nodes.
func (c *RedisShards) Do(node *RedisProcess, args ...any) any {
	c.t.Helper()
	return do(c.t, node.Addr, args...)
}

// Owner returns the node that holds key.
func (c *RedisShards) Owner(key string) *RedisProcess {
	c.t.Helper()
	slot := c.slot(key)
	for _, entry := range c.Do(c.Nodes[0], "CLUSTER", "SLOTS").([]any) {
		e := entry.([]any)
		if e[0].(int64) <= slot && slot <= e[1].(int64) {
			return c.Nodes[slices.Index(c.ids, e[2].([]any)[2].(string))]
		}
	}
	c.t.Fatalf("services: no node holds %s", key)
	return nil
}

func (c *RedisShards) slot(key string) int64 {
	return c.Do(c.Nodes[0], "CLUSTER", "KEYSLOT", key).(int64)
}

// Migrate moves the slot of key to another node with all keys in it, as `redis-cli --cluster
// reshard` does. If halfway is not nil, it is called when the keys have moved and the slot has not:
// clients are then redirected with ASK.
func (c *RedisShards) Migrate(key string, to *RedisProcess, halfway func()) {
	c.t.Helper()
	from, slot := c.Owner(key), c.slot(key)
	target := slices.Index(c.Nodes, to)
	fromID, toID := c.ids[slices.Index(c.Nodes, from)], c.ids[target]
	c.Do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	c.Do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	host, port, _ := net.SplitHostPort(c.addrs[target])
	if keys := c.Do(from, "CLUSTER", "GETKEYSINSLOT", slot, 1000).([]any); len(keys) > 0 {
		c.Do(from, append([]any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}, keys...)...)
	}
	if halfway != nil {
		halfway()
	}
	// The new owner comes first, so that the slot always has one.
	c.Do(to, "CLUSTER", "SETSLOT", slot, "NODE", toID)
	for _, node := range c.Nodes {
		if node != to {
			c.Do(node, "CLUSTER", "SETSLOT", slot, "NODE", toID)
		}
	}
}

// do sends a command to the Redis at addr, on a connection of its own.
func do(t testing.TB, addr string, args ...any) any {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client := redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, Protocol: 2, DisableIdentity: true,
	})
	answer, err := client.Do(ctx, args...).Result()
	if err = cmp.Or(err, client.Close()); err != nil {
		t.Fatalf("services: %v at %s: %v", args[:2], addr, err)
	}
	return answer
}
