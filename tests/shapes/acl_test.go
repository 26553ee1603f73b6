package shapes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
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
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// rights returns a user's rights as docs/operating.md lists them, and the additional ones in a
// Cluster.
func rights(t *testing.T) (all, cluster []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operating.md")
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^ *ACL SETUSER throttle on >PASSWORD (.*)$`).FindSubmatch(text)
	require.NotNil(t, line)
	further := regexp.MustCompile("In a Cluster it also needs `(.*?)`").FindSubmatch(text)
	require.NotNil(t, further)
	return strings.Fields(string(line[1])), strings.Fields(string(further[1]))
}

// without returns all rights except the one at i.
func without(all []string, i int) []string { return slices.Delete(slices.Clone(all), i, i+1) }

// setUser sets the user throttle with these rights and the password, instead of its earlier ones.
func setUser(t *testing.T, addr string, rights []string) {
	t.Helper()
	admin := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { assert.NoError(t, admin.Close()) }()
	args := []any{"ACL", "SETUSER", "throttle", "reset", "on", ">" + password}
	for _, right := range rights {
		args = append(args, right)
	}
	require.NoError(t, admin.Do(t.Context(), args...).Err())
	require.NoError(t, admin.ScriptFlush(t.Context()).Err()) // a loaded script needs no EVAL
}

// everything makes a permit store do all that it can: add and forget subscriptions, read a state,
// publish, and forget an expired replica.
func everything(t *testing.T, admin *redis.Client, url string) error {
	t.Helper()
	store, ctx := open(t, url), t.Context()
	name := services.Name(t)
	key := "throttle:limit:{" + name + "}"
	subscribe := func(n int) (err error) {
		allocations := make([]*permits.Request, n)
		for i := range allocations {
			r := allocation(key)
			r.Allocate.Subscription, r.Allocate.Rate, r.Allocate.Round = fmt.Sprint(i), 1e6, 0.01
			allocations[i] = r
		}
		store.Do(ctx, allocations)
		for _, r := range allocations {
			err = errors.Join(err, r.Err)
		}
		return err
	}
	replace := func(by []byte) error {
		update := func([]byte, float64) []byte { return by }
		return store.Update(ctx, "throttle:pool:{"+name+"}", time.Minute, update)
	}
	errs := []error{subscribe(600), subscribe(1100), replace([]byte("x")), replace(nil)}
	time.Sleep(100 * time.Millisecond) // more than two epochs
	errs = append(errs, subscribe(1))
	fields, err := admin.HLen(ctx, key).Result()
	if errs = append(errs, err); fields > 1000 {
		errs = append(errs, errors.New("subscriptions are not forgotten"))
	}
	_, _, err = store.State(ctx, key)
	errs = append(errs, err,
		store.Publish(ctx, name, "gone", nil, time.Millisecond),
		store.Publish(ctx, name, "here", nil, time.Minute))
	time.Sleep(5 * time.Millisecond)
	_, err = store.Published(ctx, name)
	_, countErr := store.(dispatch.ReplicaCounter).Replicas(ctx, name)
	errs = append(errs, countErr)
	members, memberErr := admin.SMembers(ctx, permits.RedisReplicas(name)).Result()
	if errs = append(errs, err, memberErr); slices.Contains(members, "gone") {
		errs = append(errs, errors.New("an expired replica is not forgotten"))
	}
	return errors.Join(errs...)
}

// wakes reports whether a waiter is notified of its turn. It waits until the user has subscribed,
// if it may. Queueing and allocating must work in any case.
func wakes(t *testing.T, admin *redis.Client, url string, may bool) bool {
	t.Helper()
	store, name := open(t, url), services.Name(t)
	woken := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		assert.NoError(t, store.(dispatch.Waker).Wakes(ctx, name, func(waiter string) { woken <- waiter }))
	}()
	if channel := permits.RedisWake(name); may {
		require.Eventually(t, func() bool {
			subscribers, err := admin.PubSubNumSub(ctx, channel).Result()
			return err == nil && subscribers[channel] == 1
		}, 5*time.Second, time.Millisecond, "the user does not subscribe")
	}
	strict := func(waiter string, want, returned float64, carry schedule.Carry) schedule.Reply {
		r := allocation("throttle:limit:{" + name + "}")
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
	case <-time.After(500 * time.Millisecond):
		return false
	}
}

// TestRedisUser: a user with the rights in docs/operating.md can do all that a permit store does,
// and needs each of them.
func TestRedisUser(t *testing.T) {
	t.Parallel()
	r := services.RedisServer(t)
	admin := redis.NewClient(&redis.Options{Addr: r.Addr})
	defer func() { assert.NoError(t, admin.Close()) }()
	url := "redis://throttle@" + r.Addr + "?password-file=" + secret(t, password)
	all, _ := rights(t)
	setUser(t, r.Addr, all)
	loosely.Hold(t, func(loose assert.TestingT) { // a call may be late
		assert.NoError(loose, everything(t, admin, url))
	})
	for i, right := range all {
		setUser(t, r.Addr, without(all, i))
		loosely.Hold(t, func(loose assert.TestingT) {
			err := everything(t, admin, url)
			if assert.Error(t, err, right) {
				assert.Regexp(loose, "NOPERM|The user executing the script|not forgotten", err.Error(), right)
				assert.NotContains(t, err.Error(), "heim")
			}
		})
	}
	for _, more := range [][]string{nil, {"+publish", "+subscribe", "+ping", "&throttle:wake:*"}} {
		setUser(t, r.Addr, append(slices.Clone(all), more...))
		loosely.Hold(t, func(loose assert.TestingT) {
			assert.Equal(loose, more != nil, wakes(t, admin, url, more != nil), "%v", more)
		})
	}
	setUser(t, r.Addr, all)
	refuses(t, strings.Replace(url, "?", "/1?", 1), "NOPERM")
	setUser(t, r.Addr, append(all, "+select"))
	works(t, open(t, strings.Replace(url, "?", "/1?", 1)))
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
	alone, further := rights(t)
	all := append(alone, further...)
	key := "throttle:limit:{moving}"
	move := func(rights []string) (err error) {
		for _, node := range c.Nodes {
			setUser(t, node.Addr, rights)
		}
		store := open(t, strings.Replace(c.URL, "://", "://throttle@", 1)+"?password-file="+file)
		err = allocate(t, store, allocation(key))
		to := c.Nodes[(slices.Index(c.Nodes, c.Owner(key))+1)%3]
		c.Migrate(key, to, func() { err = errors.Join(err, allocate(t, store, allocation(key))) })
		return errors.Join(err, allocate(t, store, allocation(key)))
	}
	var err error
	require.Eventually(t, func() bool {
		err = move(all)
		return !errors.Is(err, context.DeadlineExceeded)
	}, 5*time.Second, time.Millisecond)
	require.NoError(t, err)
	for i := len(alone); i < len(all); i++ {
		loosely.Hold(t, func(loose assert.TestingT) {
			err := move(without(all, i))
			require.Error(t, err, all[i])
			assert.Regexp(loose, "NOPERM|MOVED", err.Error(), "without ASKING, the server redirects")
		})
	}
	refuses(t, strings.Replace(c.URL, "://", "://throttle:wrong"+password+"@", 1), "WRONGPASS")
}
