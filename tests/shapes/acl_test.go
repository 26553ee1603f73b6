package shapes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/internal/privileges"
	"github.com/dispatchthrottle/throttle/internal/role"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// The users of a permit store, by role.
var roles = []role.Role{role.Replica, role.Ratekeeper, role.Viewer}

// aclCluster is the cluster of the users, and aclTopic a topic in it.
const (
	aclCluster = "acl"
	aclTopic   = "kafka://public/default/orders"
)

// limitKey returns the key of a limit of its own in the users' cluster.
func limitKey(t *testing.T) string {
	return permits.LimitKinds(aclCluster)[0] + aclTopic + "-" + services.Name(t) + "}:messages"
}

// rightsOf returns the rights in rules: commands, keys and channels.
func rightsOf(rules []string) (all []string) {
	for word := range strings.FieldsSeq(strings.Join(rules, " ")) {
		word = strings.Trim(word, "()")
		if strings.ContainsAny(word[:1], "+~%&") && !slices.Contains(all, word) {
			all = append(all, word)
		}
	}
	return all
}

// without returns the rules without a right, wherever it is.
func without(rules []string, right string) (rest []string) {
	for _, rule := range rules {
		words := strings.Fields(strings.Trim(rule, "()"))
		words = slices.DeleteFunc(words, func(word string) bool { return word == right })
		text := strings.Join(words, " ")
		if strings.HasPrefix(rule, "(") {
			rest = append(rest, "("+text+")")
		} else if text != "" {
			rest = append(rest, text)
		}
	}
	return rest
}

// setUser sets the user throttle with these rules and the password, instead of its earlier ones.
func setUser(t *testing.T, addr string, rules []string) {
	t.Helper()
	admin := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { assert.NoError(t, admin.Close()) }()
	args := []any{"ACL", "SETUSER", "throttle", "reset", ">" + password}
	for _, rule := range rules {
		args = append(args, rule)
	}
	require.NoError(t, admin.Do(t.Context(), args...).Err())
	require.NoError(t, admin.ScriptFlush(t.Context()).Err()) // a loaded script needs no EVAL
}

// everything makes a permit store do all that it does for a role.
func everything(t *testing.T, admin *redis.Client, url string, as role.Role) error {
	t.Helper()
	store, ctx := open(t, url), t.Context()
	usage, keeper := permits.UsageOf(aclCluster), permits.RatekeeperOf(aclCluster)
	update := func(key string) (errs error) {
		for _, by := range [][]byte{[]byte("x"), nil} {
			to := func([]byte, float64) []byte { return by }
			errs = errors.Join(errs, store.Update(ctx, key, time.Minute, to))
		}
		return errs
	}
	value := func() error {
		_, _, err := store.Value(ctx, permits.RatesKey(aclCluster))
		return err
	}
	published := func(names ...string) (errs error) {
		for _, name := range names {
			_, err := store.Published(ctx, name)
			errs = errors.Join(errs, err)
		}
		return errs
	}
	publish := func(names ...string) (errs error) {
		for _, name := range names {
			set := permits.RedisReplicas(name)
			errs = errors.Join(errs, admin.Set(ctx, set, "of another type", 0).Err(),
				store.Publish(ctx, name, "here", []byte("x"), time.Minute),
				store.Publish(ctx, name, "gone", nil, time.Millisecond))
			time.Sleep(5 * time.Millisecond)
			errs = errors.Join(errs, store.Publish(ctx, name, "here", []byte("x"), time.Minute))
			members, err := admin.ZRange(ctx, set, 0, -1).Result()
			errs = errors.Join(errs, err)
			if slices.Contains(members, "gone") {
				errs = errors.Join(errs, errors.New("an expired replica is not forgotten"))
			}
		}
		return errs
	}
	rates := permits.RatesKey(aclCluster)
	rows := func() error {
		_, err := store.Rows(ctx, rates, []string{"id"})
		return err
	}
	switch as {
	case role.Replica:
		key := limitKey(t)
		_, countErr := store.(dispatch.ReplicaCounter).Replicas(ctx, aclCluster)
		return errors.Join(forgets(t, admin, store, key), update(permits.PoolKey(key)),
			update(permits.GroupsKey(key)), publish(aclCluster, usage), countErr, value(), rows())
	case role.Ratekeeper:
		var errs []error
		for _, row := range [][]byte{[]byte("x"), nil} {
			done, err := store.SetRows(ctx, rates, nil, time.Minute, map[string][]byte{"id": row})
			errs = append(errs, err)
			if !done {
				errs = append(errs, errors.New("the rows are not set"))
			}
		}
		_, namesErr := store.RowNames(ctx, rates)
		return errors.Join(errors.Join(errs...), namesErr, rows(), update(rates), value(),
			publish(usage, keeper), published(usage))
	}
	for _, name := range []string{aclCluster, usage, keeper} {
		set, alive := permits.RedisReplicas(name), redis.Z{
			Score: float64(time.Now().Add(time.Minute).UnixMilli()), Member: "here",
		}
		if err := errors.Join(admin.Del(ctx, set).Err(), admin.ZAdd(ctx, set, alive).Err(),
			admin.Set(ctx, permits.RedisStatus(name, "here"), "x", time.Minute).Err()); err != nil {
			return err
		}
	}
	_, _, err := store.State(ctx, limitKey(t))
	return errors.Join(err, value(), rows(), published(aclCluster, usage, keeper))
}

// forgets makes a limit have many subscriptions, and forget them.
func forgets(t *testing.T, admin *redis.Client, store dispatch.PermitStore, key string) error {
	subscribe := func(n int) (err error) {
		allocations := make([]*permits.Request, n)
		for i := range allocations {
			r := allocation(key)
			r.Allocate.Subscription, r.Allocate.Rate, r.Allocate.Round = fmt.Sprint(i), 1e6, 0.01
			allocations[i] = r
		}
		store.Do(t.Context(), allocations)
		for _, r := range allocations {
			err = errors.Join(err, r.Err)
		}
		return err
	}
	errs := []error{
		admin.Set(t.Context(), key, "of another type", 0).Err(), subscribe(600), subscribe(1100),
	}
	time.Sleep(100 * time.Millisecond) // more than two epochs
	errs = append(errs, subscribe(1))
	fields, err := admin.HLen(t.Context(), key).Result()
	errs = append(errs, err)
	if fields > 1000 {
		errs = append(errs, errors.New("subscriptions are not forgotten"))
	}
	return errors.Join(errs...)
}

// wakes reports whether a waiter is notified of its turn. It waits until the user has subscribed,
// if it may. Queueing and allocating must work in any case.
func wakes(t *testing.T, admin *redis.Client, url string, may bool) bool {
	t.Helper()
	store, name, key := open(t, url), services.Name(t), limitKey(t)
	woken := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	listening := make(chan struct{})
	defer func() { cancel(); <-listening }()
	go func() {
		defer close(listening)
		err := store.(dispatch.Waker).Wakes(ctx, name, func(waiter string) { woken <- waiter })
		if may {
			assert.NoError(t, err)
		}
	}()
	channel := permits.RedisWake(name)
	if may {
		require.Eventually(t, func() bool {
			subscribers, err := admin.PubSubNumSub(ctx, channel).Result()
			return err == nil && subscribers[channel] == 1
		}, throttletest.Patience, time.Millisecond, "the user does not subscribe")
	}
	wait := 500 * time.Millisecond // in which nothing may come
	if may {
		wait = throttletest.Patience
	}
	strict := func(waiter string, want, returned float64, carry schedule.Carry) schedule.Reply {
		r := allocation(key)
		a := r.Allocate
		a.Strict, a.Rate, a.MaxReserved = true, 0.01, 2 // the first slot of a new line is in the future
		a.Waiter, a.Want, a.Returned, a.Carry = waiter, want, returned, carry
		require.NoError(t, allocate(t, store, r))
		return a.Reply
	}
	first := strict("", 1, 0, schedule.Carry{})
	require.Zero(t, strict(name+"|1", 1, 0, first.Carry).N)
	strict("", 0, 1, first.Carry) // gives the slot back
	select {
	case waiter := <-woken:
		assert.Equal(t, name+"|1", waiter)
		return true
	case <-time.After(wait):
		return false
	}
}

// later are the rights of a replica without which nothing fails at once: strict schedules that do
// not notice a failover, and waiters that are woken late.
var later = []string{"+info", "+publish", "+subscribe", "+ping", "&throttle:wake:*"}

// TestRedisUser: a user with the rights of a role can do all that a permit store does for it, and
// needs each of them.
func TestRedisUser(t *testing.T) {
	t.Parallel()
	r := services.RedisServer(t)
	admin := redis.NewClient(&redis.Options{Addr: r.Addr})
	defer func() { assert.NoError(t, admin.Close()) }()
	url := "redis://throttle@" + r.Addr + "?password-file=" + secret(t, password)
	for _, as := range roles {
		rules := privileges.Redis(privileges.Subject{Roles: []role.Role{as}, Cluster: aclCluster}, privileges.Server{})
		setUser(t, r.Addr, rules)
		assert.NoError(t, everything(t, admin, url, as), as)
		for _, right := range rightsOf(rules) {
			if slices.Contains(later, right) {
				continue
			}
			setUser(t, r.Addr, without(rules, right))
			require.NoError(t, admin.FlushDB(t.Context()).Err()) // what a refused step has left
			err := everything(t, admin, url, as)
			if assert.Error(t, err, "%s without %s", as, right) {
				assert.Regexp(t, "NOPERM|The user executing the script|not forgotten", err.Error(), right)
				assert.NotContains(t, err.Error(), "heim")
			}
		}
	}
	replica := privileges.Subject{Roles: roles, Cluster: aclCluster}
	rules := privileges.Redis(replica, privileges.Server{})
	setUser(t, r.Addr, rules)
	assert.True(t, wakes(t, admin, url, true))
	for _, right := range later {
		if right != "+info" && right != "+ping" {
			setUser(t, r.Addr, without(rules, right))
			assert.False(t, wakes(t, admin, url, false), right)
		}
	}
	setUser(t, r.Addr, rules)
	refuses(t, strings.Replace(url, "?", "/1?", 1), "NOPERM")
	setUser(t, r.Addr, privileges.Redis(replica, privileges.Server{Database: 1}))
	store := open(t, strings.Replace(url, "?", "/1?", 1))
	require.NoError(t, allocate(t, store, allocation(limitKey(t))))
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "default", "off").Err())
	refuses(t, "redis://throttle:wrong"+password+"@"+r.Addr, "WRONGPASS")
	refuses(t, "redis://throttle@"+r.Addr+"?password-file="+secret(t, "wrong"+password), "WRONGPASS")
	refuses(t, "redis://"+r.Addr, "NOAUTH")
}

// TestRedisClusterUser: the same in a Cluster, also while a slot moves.
func TestRedisClusterUser(t *testing.T) {
	t.Parallel()
	c := services.RedisCluster(t)
	file := secret(t, password)
	s := privileges.Subject{Roles: []role.Role{role.Replica}, Cluster: aclCluster}
	rules := privileges.Redis(s, privileges.Server{Sharded: true})
	alone := privileges.Redis(s, privileges.Server{})
	key := limitKey(t)
	move := func(rules []string) (err error) {
		for _, node := range c.Nodes {
			setUser(t, node.Addr, rules)
		}
		store := open(t, strings.Replace(c.URL, "://", "://throttle@", 1)+"?password-file="+file)
		err = allocate(t, store, allocation(key))
		to := c.Nodes[(slices.Index(c.Nodes, c.Owner(key))+1)%3]
		c.Migrate(key, to, func() { err = errors.Join(err, allocate(t, store, allocation(key))) })
		return errors.Join(err, allocate(t, store, allocation(key)))
	}
	require.NoError(t, patiently(func() error { return move(rules) }))
	for _, right := range rightsOf(rules) {
		if slices.Contains(rightsOf(alone), right) || right == "+command" { // see TestRedisClusterReads
			continue
		}
		err := move(without(rules, right))
		require.Error(t, err, right)
		assert.Regexp(t, "NOPERM|MOVED", err.Error(), "without ASKING, the server redirects")
	}
	refuses(t, strings.Replace(c.URL, "://", "://throttle:wrong"+password+"@", 1), "WRONGPASS")
}

// TestRedisClusterReads: nothing is refused to those who read from a Cluster, also not what the
// client asks for by itself.
func TestRedisClusterReads(t *testing.T) {
	t.Parallel()
	c, file, ctx := services.RedisCluster(t), secret(t, password), t.Context()
	rates, usage := permits.RatesKey(aclCluster), permits.UsageOf(aclCluster)
	writer := open(t, c.URL)
	for _, name := range []string{"a", "b"} {
		require.NoError(t, writer.Publish(ctx, usage, name, []byte("x"), time.Minute))
	}
	for _, as := range roles {
		s := privileges.Subject{Roles: []role.Role{as}, Cluster: aclCluster}
		for _, node := range c.Nodes {
			setUser(t, node.Addr, privileges.Redis(s, privileges.Server{Sharded: true}))
		}
		store := open(t, strings.Replace(c.URL, "://", "://throttle@", 1)+"?password-file="+file)
		_, _, err := store.Value(ctx, rates)
		assert.NoError(t, err, as)
		_, err = store.Rows(ctx, rates, []string{"a", "b"})
		assert.NoError(t, err, as)
		if as != role.Replica {
			records, err := store.Published(ctx, usage)
			assert.NoError(t, err, as)
			assert.Len(t, records, 2, as)
		}
		for _, node := range c.Nodes {
			admin := redis.NewClient(&redis.Options{Addr: node.Addr})
			refused, err := admin.ACLLog(ctx, 10).Result()
			assert.NoError(t, err)
			for _, r := range refused {
				t.Errorf("%s: %s %s is refused", as, r.Reason, r.Object)
			}
			assert.NoError(t, admin.Close())
		}
	}
}
