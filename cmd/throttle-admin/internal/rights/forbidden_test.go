package rights

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// Keys of the cluster standalone, and others.
const (
	limitKey    = "throttle:limit:{standalone/kafka://public/default/orders}:messages"
	poolKey     = "throttle:pool:{standalone/kafka://public/default/orders}:messages"
	ratesKey    = "throttle:rates:{standalone}"
	statusKey   = "throttle:status:{standalone}:billing-1"
	usageKey    = "throttle:status:{standalone/usage}:billing-1"
	namesKey    = "throttle:replica:{standalone}"
	keeperKey   = "throttle:status:{standalone/ratekeeper}:keeper-1"
	otherLimit  = "throttle:limit:{standalone2/kafka://public/default/orders}:messages"
	otherRates  = "throttle:rates:{eu}"
	otherStatus = "throttle:status:{eu}:billing-1"
	foreign     = "sessions"
)

// redisAllowed are commands that a role may run, and redisForbidden those that it may not.
var redisAllowed = map[string][]string{
	"replica": {
		"HSET " + limitKey + " l x", "DEL " + limitKey, "GET " + poolKey,
		"EVAL return{redis.call('HGETALL',KEYS[1]),redis.call('TIME')} 1 " + limitKey,
		"EVAL_RO return{redis.call('GET',KEYS[1])} 1 " + ratesKey,
		"SET " + statusKey + " x", "SET " + usageKey + " x", "ZADD " + namesKey + " 1 x",
		"HMGET " + ratesKey + ":rows a",
		"PUBLISH throttle:wake:x x", "INFO server", "PING",
	},
	"ratekeeper": {
		"EVAL redis.call('SET',KEYS[1],'x') 1 " + ratesKey, "GET " + ratesKey, "HSET " + ratesKey + ":rows a b",
		"MGET " + usageKey, "SET " + usageKey + " x", "SET " + keeperKey + " x",
	},
	"viewer": {
		"EVAL_RO return{redis.call('HMGET',KEYS[1],'l'),redis.call('TIME')} 1 " + limitKey,
		"GET " + ratesKey, "HMGET " + ratesKey + ":rows a", "MGET " + statusKey, "MGET " + usageKey, "MGET " + keeperKey,
	},
}

var redisForbidden = map[string][]string{
	"replica": {
		"SET " + ratesKey + " x", "DEL " + ratesKey, "HSET " + ratesKey + " a b",
		"EVAL return{redis.call('GET',KEYS[1])} 1 " + ratesKey,
		"EVAL return{redis.call('SET','" + ratesKey + "','x')} 1 " + limitKey,
		"EVAL return{redis.call('GET','" + statusKey + "')} 1 " + limitKey,
		"EVAL return{redis.call('GET','" + foreign + "')} 1 " + limitKey,
		"EVAL return{redis.call('KEYS','*')} 1 " + limitKey,
		"EVAL return{redis.call('PUBLISH','news','x')} 1 " + limitKey,
		"GET " + statusKey, "MGET " + usageKey, "GET " + keeperKey, "ZRANGE " + namesKey + " 0 -1",
		"HSET " + ratesKey + ":rows a b", "HKEYS " + ratesKey + ":rows", "SET " + keeperKey + " x",
		"SET " + otherStatus + " x", "GET " + otherRates, "HGETALL " + otherLimit,
		"DEL " + otherLimit, "EVAL return{redis.call('PING')} 1 " + otherLimit,
		"SUBSCRIBE news", "PSUBSCRIBE throttle:wake:*x*", "RENAME " + limitKey + " " + poolKey,
		"SCRIPT LOAD return{1}",
	},
	"ratekeeper": {
		"HSET " + limitKey + " l x", "HGETALL " + limitKey, "EVAL return{1} 1 " + limitKey,
		"GET " + poolKey, "SET " + poolKey + " x", "SET " + statusKey + " x", "MGET " + statusKey,
		"SET " + otherRates + " x", "GET " + keeperKey, "PUBLISH throttle:wake:x x",
		"SUBSCRIBE throttle:wake:x", "INFO server",
	},
	"viewer": {
		"HSET " + limitKey + " l x", "DEL " + limitKey, "SET " + poolKey + " x",
		"EVAL return{1} 1 " + limitKey, "EVAL return{redis.call('DEL',KEYS[1])} 1 " + limitKey,
		"EVAL_RO return{redis.call('DEL',KEYS[1])} 1 " + limitKey,
		"SET " + ratesKey + " x", "SET " + statusKey + " x", "SET " + usageKey + " x",
		"DEL " + statusKey, "PUBLISH throttle:wake:x x", "SUBSCRIBE throttle:wake:x",
		"EVAL_RO return{redis.call('HMGET',KEYS[1],'l')} 1 " + otherLimit,
	},
	"any": {
		"GET " + foreign, "SET " + foreign + " x", "DEL " + foreign, "KEYS *", "SCAN 0", "RANDOMKEY",
		"DBSIZE", "FLUSHALL", "FLUSHDB", "CONFIG GET *", "CONFIG SET maxmemory 1", "ACL LIST",
		"ACL SETUSER replica +@all ~*", "ACL WHOAMI", "CLIENT LIST", "CLIENT KILL TYPE normal",
		"CLIENT NO-EVICT on", "SCRIPT FLUSH", "SCRIPT KILL", "FUNCTION FLUSH", "FUNCTION LIST",
		"DEBUG SLEEP 0", "SHUTDOWN NOSAVE", "MONITOR", "SAVE", "BGSAVE", "REPLICAOF NO ONE", "PSYNC ? -1",
		"SLOWLOG GET", "MEMORY USAGE " + limitKey, "OBJECT ENCODING " + limitKey, "DUMP " + limitKey,
		"MIGRATE 127.0.0.1 1 x 0 1", "MODULE LIST", "LATENCY RESET", "SELECT 1", "SWAPDB 0 1",
		"CLUSTER INFO", "COMMAND", "MULTI", "WAIT 0 1",
	},
}

func TestRedisForbids(t *testing.T) {
	g := guard(t)
	g.roles()
	redisForbidden["admin"] = redisForbidden["viewer"] // does not change permits, either
	redisAllowed["admin"] = redisAllowed["viewer"]
	for _, name := range []string{"admin", "replica", "ratekeeper", "viewer"} {
		client := g.redisClient(name)
		for _, command := range redisAllowed[name] {
			err := g.send(client, command)
			assert.True(t, err == nil || errors.Is(err, redis.Nil), "%s: %s: %v", name, command, err)
		}
		assert.Empty(t, g.refused())
		for _, command := range append(redisForbidden[name], redisForbidden["any"]...) {
			assertDenied(t, g.send(client, command), name+": "+command)
		}
		g.refused()
	}
	g.acl("replica", "--role", "replica", "--replicas", "billing-")
	client := g.redisClient("replica")
	assert.NoError(t, g.send(client, "SET "+statusKey+" x"))
	for _, key := range []string{statusKey, usageKey} {
		another := strings.Replace(key, "billing", "alerts", 1)
		assertDenied(t, g.send(client, "SET "+another+" x"), another)
		assertDenied(t, g.send(client, "DEL "+another), another)
	}
}

// send sends a command, a script as its second word.
func (g *guarded) send(client *redis.Client, command string) error {
	var args []any
	for arg := range strings.FieldsSeq(command) {
		args = append(args, strings.ReplaceAll(arg, "return{", "return {"))
	}
	return client.Do(g.t.Context(), args...).Err()
}

// assertDenied checks that Redis has refused a command for want of a right.
func assertDenied(t *testing.T, err error, command string) {
	t.Helper()
	if assert.Error(t, err, command) {
		assert.Regexp(t, "NOPERM|The user executing the script|ACL failure|not allowed from read-only|"+
			"not allowed in read-only|Write commands are not allowed", err.Error(), command)
	}
}

// An operation is one on keys under /throttle in etcd.
type operation struct {
	write bool
	key   string
}

func puts(keys ...string) (all []operation) {
	for _, key := range keys {
		all = append(all, operation{true, key})
	}
	return all
}

func gets(keys ...string) (all []operation) {
	for _, key := range keys {
		all = append(all, operation{false, key})
	}
	return all
}

// Keys in etcd, below its prefix.
const (
	policyAt  = "/config/policies/cluster"
	markerAt  = "/config/marker"
	quotaAt   = "/config/quotas/tag:reports"
	shortAt   = "/config/temporary/policies/cluster/messageRate"
	historyAt = "/history/1"
	leaderAt  = "/elections/standalone/1"
	limitAt   = "/permits/throttle:limit:%7Bstandalone%2Fkafka:%2F%2Fpublic%2Fdefault%2Forders%7D:messages"
	poolAt    = "/permits/throttle:pool:%7Bstandalone%2Fkafka:%2F%2Fpublic%2Fdefault%2Forders%7D:messages"
	ratesAt   = "/permits/throttle:rates:%7Bstandalone%7D"
	rowAt     = ratesAt + ":rows/tag:reports"
	clockAt   = "/clock"
	statusAt  = "/status/standalone/billing-1"
	usageAt   = "/status/standalone%2Fusage/billing-1"
	keeperAt  = "/status/standalone%2Fratekeeper/keeper-1"
)

// outside are keys of other clusters and of others.
var outside = []string{
	"/permits/throttle:limit:%7Bstandalone2%2Fkafka:%2F%2Fpublic%2Fdefault%2Forders%7D:messages",
	"/permits/throttle:rates:%7Beu%7D", "/elections/standalone2/1", "/status/standalone2/billing-1",
	"/clock2", "x", "",
}

var etcdAllowed = map[string][]operation{
	"admin": append(puts(policyAt, markerAt, quotaAt, shortAt, historyAt),
		gets(policyAt, markerAt, historyAt, leaderAt, limitAt, ratesAt, rowAt, clockAt, statusAt, usageAt, keeperAt)...),
	"replica": append(puts(limitAt, poolAt, clockAt, statusAt, usageAt),
		gets(policyAt, markerAt, quotaAt, shortAt, limitAt, poolAt, clockAt, ratesAt, rowAt, statusAt)...),
	"ratekeeper": append(puts(leaderAt, ratesAt, rowAt, clockAt, usageAt, keeperAt),
		gets(policyAt, markerAt, quotaAt, shortAt, leaderAt, ratesAt, rowAt, clockAt, usageAt)...),
	"viewer": gets(policyAt, markerAt, quotaAt, shortAt, historyAt, leaderAt, limitAt, ratesAt, rowAt, clockAt, statusAt,
		usageAt, keeperAt),
}

var etcdForbidden = map[string][]operation{
	"admin": puts(leaderAt, limitAt, poolAt, ratesAt, rowAt, clockAt, statusAt, usageAt, keeperAt),
	"replica": append(puts(policyAt, markerAt, quotaAt, shortAt, historyAt, leaderAt, ratesAt, rowAt, keeperAt),
		gets(historyAt, leaderAt, usageAt, keeperAt)...),
	"ratekeeper": append(puts(policyAt, markerAt, quotaAt, shortAt, historyAt, limitAt, poolAt, statusAt),
		gets(historyAt, limitAt, poolAt, statusAt, keeperAt)...),
	"viewer": puts(policyAt, markerAt, quotaAt, shortAt, historyAt, leaderAt, limitAt, poolAt, ratesAt, rowAt, clockAt, statusAt,
		usageAt, keeperAt),
}

const denied = "etcdserver: permission denied"

func TestEtcdForbids(t *testing.T) {
	g := guard(t)
	g.roles()
	ctx := t.Context()
	root := g.etcdClient("root")
	for _, name := range []string{"admin", "replica", "ratekeeper", "viewer"} {
		client := g.etcdClient(name)
		for _, o := range etcdAllowed[name] {
			assert.NoError(t, operate(ctx, client, o), "%s: %v", name, o)
		}
		forbidden := append(puts(outside...), gets(outside...)...)
		for _, o := range append(etcdForbidden[name], forbidden...) {
			assert.ErrorContains(t, operate(ctx, client, o), denied, "%s: %v", name, o)
		}
		for what, f := range map[string]func() error{
			"user":     func() error { _, err := client.UserAdd(ctx, "me", "x"); return err },
			"password": func() error { _, err := client.UserChangePassword(ctx, "root", "x"); return err },
			"role":     func() error { _, err := client.UserGrantRole(ctx, name, "root"); return err },
			"auth":     func() error { _, err := client.AuthDisable(ctx); return err },
			"snapshot": func() error {
				r, err := client.Snapshot(ctx)
				if err == nil {
					_, err = r.Read(make([]byte, 1))
				}
				return err
			},
			"defragment": func() error { _, err := client.Defragment(ctx, g.etcd.Endpoint); return err },
			"member":     func() error { _, err := client.MemberAdd(ctx, []string{"http://127.0.0.1:1"}); return err },
			"range": func() error {
				_, err := client.Get(ctx, "/throttle/", clientv3.WithPrefix(), clientv3.WithCountOnly())
				return err
			},
			"watch": func() error { return watch(ctx, client, "/throttle/") },
			"delete": func() error {
				_, err := client.Delete(ctx, "/throttle/", clientv3.WithPrefix())
				return err
			},
		} {
			assert.ErrorContains(t, f(), denied, "%s: %s", name, what)
		}
		if name != "admin" {
			held, err := root.Grant(ctx, 60)
			require.NoError(t, err)
			_, err = root.Put(ctx, "/throttle"+shortAt, "{}", clientv3.WithLease(held.ID))
			require.NoError(t, err)
			_, err = client.Revoke(ctx, held.ID)
			assert.ErrorContains(t, err, denied, "%s: end a temporary policy", name)
		}
	}
}

func operate(ctx context.Context, client *clientv3.Client, o operation) (err error) {
	if o.write {
		_, err = client.Put(ctx, "/throttle"+o.key, "x")
	} else {
		_, err = client.Get(ctx, "/throttle"+o.key)
	}
	return err
}

// watch returns why a watch has ended; nil if it has not.
func watch(ctx context.Context, client *clientv3.Client, prefix string) error {
	ctx, cancel := context.WithTimeout(ctx, throttletest.Patience)
	defer cancel()
	for answer := range client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify()) {
		return answer.Err()
	}
	return ctx.Err()
}
