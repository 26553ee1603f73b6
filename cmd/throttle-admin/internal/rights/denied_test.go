package rights

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestDenied: the error for a missing right names the right and the command that grants it.
func TestDenied(t *testing.T) {
	g := guard(t)
	g.roles()
	require.NoError(t, os.WriteFile(g.password("nobody"), []byte(g.secret("nobody")+"\n"), 0o600))
	_, err := g.etcdClient("root").UserAdd(t.Context(), "nobody", g.secret("nobody"))
	require.NoError(t, err)
	g.does("redis", "admin", "set", topic+"fair", "messageRate=1000")
	g.does("redis", "admin", "set", topic+"queue", "messageRate=10", "sharing.mode=strict", "sharing.wait=queue")
	g.does("redis", "admin", "quota", "set", "tag:reports", "total=400KiB")

	testDeniedCommands(t, g)
	testDeniedDoctor(t, g)
	t.Run("policies", func(t *testing.T) {
		g.t = t
		_, err := throttle.Open(t.Context(), g.policies("nobody"), g.permits("redis", "replica"),
			throttle.WithOpenTimeout(time.Hour)) // at once
		assert.ErrorContains(t, err, denied+": the user lacks this right; "+
			"the commands that grant it: throttle-admin rights etcd --role ROLE")
	})
	testDeniedPermits(t, g)
	testDeniedWakes(t, g)
	testDeniedRatekeepers(t, g)
}

// testDeniedCommands: commands say which right they lack, and how to get it.
func testDeniedCommands(t *testing.T, g *guarded) {
	t.Helper()
	t.Run("commands", func(t *testing.T) {
		g.t = t
		for _, c := range []struct {
			store, name string
			args        []string
			wants       []string
		}{
			{"redis", "replica", []string{"set-msg-rate", topic + "fair", "1"},
				[]string{"configstore/etcd: apply: ", denied, "throttle-admin rights etcd --role admin"}},
			{"redis", "viewer", []string{"adopt", "--yes"},
				[]string{"configstore/etcd: adopt: ", denied, "throttle-admin rights etcd --role admin"}},
			{"redis", "nobody", []string{"list"},
				[]string{"configstore/etcd: list: ", denied, "throttle-admin rights etcd --role ROLE"}},
			{"redis", "replica", []string{"quota", "status"},
				[]string{"read the replicas: NOPERM", "throttle-admin rights redis --role ROLE"}},
			{"etcd", "nobody", []string{"quota", "status"},
				[]string{"status", denied, "throttle-admin rights etcd --role ROLE"}},
		} {
			status, _, errs := g.run(c.store, c.name, c.args...)
			assert.Equal(t, cli.ExitFailed, status, "%s %s", c.name, c.args)
			assert.NotContains(t, errs, "deadline", "%s %s", c.name, c.args) // of waiting for a right
			for _, want := range c.wants {
				assert.Contains(t, errs, want, "%s %s", c.name, c.args)
			}
			assert.NotContains(t, errs, "ecret")
		}
	})
}

// testDeniedDoctor: stores that refuse the user of doctor are not taken for unreachable.
func testDeniedDoctor(t *testing.T, g *guarded) {
	t.Helper()
	root := g.redisClient("root")
	require.NoError(t, root.Do(t.Context(), "ACL", "SETUSER", "nobody", "on", ">"+g.secret("nobody")).Err())
	for _, store := range []string{"redis", "etcd"} {
		t.Run("doctor/"+store, func(t *testing.T) {
			g.t = t
			status, out, errs := g.run(store, "nobody", "doctor", "-o", "json")
			assert.Equal(t, cli.ExitWarnings, status, errs)
			var r struct {
				Findings []struct{ Severity, Check, Subject, Mend string }
			}
			require.NoError(t, json.Unmarshal([]byte(out), &r), errs)
			if !assert.Len(t, r.Findings, 2, out) {
				return
			}
			for i, of := range []struct{ subject, store string }{{"the policy store", "etcd"}, {"the permit store", store}} {
				f := r.Findings[i]
				assert.Equal(t, "warning", f.Severity)
				assert.Equal(t, "rights", f.Check)
				assert.Equal(t, of.subject, f.Subject)
				assert.Contains(t, f.Mend, "throttle-admin rights "+of.store+" --role viewer")
			}
		})
	}
}

// testDeniedPermits: a Limiter whose permit store refuses goes on, and its log says why.
func testDeniedPermits(t *testing.T, g *guarded) {
	t.Helper()
	for _, c := range []struct{ store, name, want string }{
		{"redis", "viewer", "allocate throttle:limit:{standalone/kafka://public/default/fair}:messages: NOPERM"},
		{"etcd", "viewer", "allocate throttle:limit:{standalone/kafka://public/default/fair}:messages: " + denied},
		{"etcd", "nobody", "its clock is not known yet: " + denied},
	} {
		t.Run("permits/"+c.store+"/"+c.name, func(t *testing.T) {
			g.t = t
			log := &throttletest.Log{}
			lim, err := throttle.Open(t.Context(), g.policies("replica"), g.permits(c.store, c.name),
				throttle.WithLogger(log.Logger()), throttle.WithOpenTimeout(throttletest.Patience))
			require.NoError(t, err)
			sub, err := lim.Subscription(topic+"fair", "billing")
			require.NoError(t, err)
			_, err = sub.Acquire(t.Context(), 1) // its onOutage is share
			require.NoError(t, err)
			assert.Eventually(t, func() bool {
				return strings.Contains(log.String(), c.want) &&
					strings.Contains(log.String(), "throttle-admin rights "+c.store+" --role ROLE")
			}, throttletest.Patience, 10*time.Millisecond, "%v", log)
			require.NoError(t, lim.Close())
		})
	}
}

// testDeniedWakes: without the right to subscribe, callers are not woken, and the log says why.
func testDeniedWakes(t *testing.T, g *guarded) {
	t.Helper()
	t.Run("wakes", func(t *testing.T) {
		g.t = t
		root := g.redisClient("root")
		require.NoError(t, root.Do(t.Context(), "ACL", "SETUSER", "replica", "resetchannels").Err())
		log := &throttletest.Log{}
		lim, err := throttle.Open(t.Context(), g.policies("replica"), g.permits("redis", "replica"),
			throttle.WithLogger(log.Logger()), throttle.WithOpenTimeout(throttletest.Patience))
		require.NoError(t, err)
		sub, err := lim.Subscription(topic+"queue", "billing")
		require.NoError(t, err)
		_, err = sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			return strings.Contains(log.String(), "subscribe to throttle:wake:") &&
				strings.Contains(log.String(), "throttle-admin rights redis --role ROLE")
		}, throttletest.Patience, 10*time.Millisecond, "%v", log)
		require.NoError(t, lim.Close())
		g.acl("replica", "--role", "replica")
	})
}

// testDeniedRatekeepers: a ratekeeper without its rights says so in its log.
func testDeniedRatekeepers(t *testing.T, g *guarded) {
	t.Helper()
	for _, c := range []struct{ store, policies, permits, want string }{
		{"redis", "ratekeeper", "replica", "throttle-admin rights redis --role ROLE"},
		{"redis", "replica", "ratekeeper", "throttle-admin rights etcd --role ratekeeper"},
	} {
		t.Run("ratekeeper/"+c.policies, func(t *testing.T) {
			g.t = t
			log := &throttletest.Log{}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			keeper, closeStores, err := throttle.OpenRatekeeper(ctx, g.policies(c.policies), g.permits(c.store, c.permits))
			require.NoError(t, err)
			keeper.Logger = log.Logger()
			var running sync.WaitGroup
			running.Go(func() { assert.NoError(t, keeper.Run(ctx)) })
			require.Eventually(t, func() bool {
				return strings.Contains(log.String(), c.want)
			}, throttletest.Patience, 10*time.Millisecond, "%v", log)
			stop()
			running.Wait()
			require.NoError(t, closeStores())
		})
	}
}
