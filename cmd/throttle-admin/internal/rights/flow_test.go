package rights

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/adopt"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/demo"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/doctor"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/explain"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/files"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/history"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/policies"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotas"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

var families = []cli.Family{
	policies.Commands, files.Commands, adopt.Commands, explain.Commands, quotas.Commands, demo.Commands,
	history.Commands, doctor.Commands,
}

// run runs throttle-admin as a user, and returns its output.
func (g *guarded) run(store, name string, args ...string) (status int, out, errs string) {
	args = append(args, "--policies", g.policies(name), "--permits", g.permits(store, name))
	return clitest.Run(g.t.Context(), families, args...)
}

// does runs throttle-admin as a user, who may do this.
func (g *guarded) does(store, name string, args ...string) (out string) {
	g.t.Helper()
	status, out, errs := g.run(store, name, args...)
	require.Equal(g.t, cli.ExitDone, status, "%s %s: %s", name, args, errs)
	assert.NotContains(g.t, errs, "rights")
	return out
}

const topic = "kafka://public/default/"

// limits are what an admin sets, by the topic's name.
var limits = []struct{ name, policy string }{
	{"fair", "messageRate=1000"},
	{"ramp", "messageRate=1000 ramp.from=500 ramp.over=2s"},
	{"busy", "messageRate=1000 busy.mode=fraction"},
	{"split", "messageRate=1000 sharing.mode=split"},
	{"strict", "messageRate=200 sharing.mode=strict"},
	{"queue", "messageRate=200 sharing.mode=strict sharing.wait=queue"},
	{"groups", "messageRate=1000 sharing.mode=groups sharing.groups=eu,us"},
	{"reports", "messageRate=1000"}, // with a tag that has a quota
}

// TestRoles: each role can do all that its programs do, on both permit stores, and asks for nothing
// that it may not do.
func TestRoles(t *testing.T) {
	g := guard(t)
	g.roles()
	for _, store := range []string{"redis", "etcd"} {
		t.Run(store, func(t *testing.T) { g.flow(t, store) })
	}
}

func (g *guarded) flow(t *testing.T, store string) {
	g.t = t
	names := map[string]bool{}
	for _, l := range limits {
		if store == "redis" || l.name != "queue" && l.name != "groups" {
			names[l.name] = true
			g.does(store, "admin", append([]string{"set", topic + l.name}, strings.Fields(l.policy)...)...)
		}
	}
	g.does(store, "admin", "set-msg-rate", "public/default", "5000", "--for", "1h")
	g.does(store, "admin", "quota", "set", "tag:reports", "reserved=40KiB", "total=400KiB")
	g.does(store, "admin", "set-msg-rate", topic+"gone", "1")
	g.does(store, "admin", "remove", topic+"gone")
	g.does(store, "admin", "adopt", "--yes")

	log := &throttletest.Log{}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	keeper, closeKeeper, err := throttle.OpenRatekeeper(ctx, g.policies("ratekeeper"), g.permits(store, "ratekeeper"))
	require.NoError(t, err)
	keeper.Logger = log.Logger()
	running.Go(func() {
		assert.NoError(t, keeper.Run(ctx))
		assert.NoError(t, closeKeeper())
	})
	var lims []*dispatch.Limiter
	granted := map[string]*atomic.Int64{}
	for name := range names {
		granted[name] = new(atomic.Int64)
	}
	for _, group := range []string{"eu", "us"} {
		lim, err := throttle.Open(ctx, g.policies("replica"), g.permits(store, "replica"),
			throttle.WithGroup(group), throttle.WithLogger(log.Logger()), throttle.WithReplica("billing-"+group),
			throttle.WithOpenTimeout(throttletest.Patience))
		require.NoError(t, err)
		lims = append(lims, lim)
		backend, err := lim.Backend("archive", "a")
		require.NoError(t, err)
		for name := range names {
			running.Go(func() { g.consume(ctx, lim, backend, name, granted[name]) })
		}
	}
	require.Eventually(t, func() bool {
		for name, n := range granted {
			if n.Load() < 100 {
				t.Logf("%s: %d", name, n.Load())
				return false
			}
		}
		return keeper.Status().Term > 0 && len(keeper.Status().Decisions) > 0
	}, throttletest.Patience, 500*time.Millisecond, "%v", log)

	g.does(store, "admin", "set-msg-rate", topic+"fair", "2000")
	own, err := throttle.OpenPermits(g.permits(store, "replica"))
	require.NoError(t, err)
	throttletest.Until(t, "two replicas are counted", func() bool {
		n, err := own.(dispatch.ReplicaCounter).Replicas(ctx, "standalone")
		assert.NoError(t, err)
		return n == 2
	})
	_, _, err = own.Value(ctx, permits.RatesKey("standalone"))
	require.NoError(t, err)
	require.NoError(t, own.Close())

	for _, name := range []string{"viewer", "admin"} {
		g.does(store, name, "list")
		g.does(store, name, "get", topic+"fair")
		g.does(store, name, "export")
		for limit := range names {
			throttletest.Until(t, limit+": both replicas have published their status", func() bool {
				out := g.does(store, name, "explain", topic+limit)
				return strings.Contains(out, "billing-eu") && strings.Contains(out, "billing-us")
			})
		}
		assert.Contains(t, g.does(store, name, "explain", "tag:reports"), "ratekeeper")
		assert.Contains(t, g.does(store, name, "quota", "status"), "tag:reports")
		g.does(store, name, "adopt", "--dry-run")
		g.does(store, name, "history")
		_, out, errs := g.run(store, name, "doctor")
		assert.Empty(t, errs)
		assert.NotContains(t, out, "-unknown", "the user may look at all that doctor looks at")
		assert.NotContains(t, out, "unreachable")
	}
	g.does(store, "admin", "set-msg-rate", topic+"fair", "3000", "--dry-run")

	stop()
	for _, lim := range lims {
		assert.NoError(t, lim.Close())
	}
	running.Wait()
	g.keeps(store, log)
	assert.NotContains(t, log.String(), "throttle-admin rights")
	assert.Empty(t, g.refused())
}

// keeps checks that another ratekeeper can take over from one that has ended.
func (g *guarded) keeps(store string, log *throttletest.Log) {
	g.t.Helper()
	ctx, stop := context.WithCancel(g.t.Context())
	keeper, closeKeeper, err := throttle.OpenRatekeeper(ctx, g.policies("ratekeeper"), g.permits(store, "ratekeeper"))
	require.NoError(g.t, err)
	keeper.Logger = log.Logger()
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(g.t, keeper.Run(ctx)) })
	assert.Eventually(g.t, func() bool { return len(keeper.Status().Decisions) > 0 },
		throttletest.Patience, 50*time.Millisecond, "%v", log)
	stop()
	running.Wait()
	assert.NoError(g.t, closeKeeper())
}

// TestTwoRoles: a process with a Limiter that is also a candidate for the ratekeeper has what it
// needs, and so has its successor.
func TestTwoRoles(t *testing.T) {
	g := guard(t)
	g.user("admin", "--role", "admin")
	g.user("both", "--role", "replica,ratekeeper")
	for _, store := range []string{"redis", "etcd"} {
		t.Run(store, func(t *testing.T) {
			g.t = t
			g.does(store, "admin", "quota", "set", "tag:reports", "total=400KiB")
			log := &throttletest.Log{}
			for range 2 {
				var keeper *ratekeeper.Ratekeeper
				lim, err := throttle.Open(t.Context(), g.policies("both"), g.permits(store, "both"),
					throttle.WithLogger(log.Logger()), throttle.WithOpenTimeout(throttletest.Patience),
					throttle.WithRatekeeper(func(r *ratekeeper.Ratekeeper) { keeper = r }))
				require.NoError(t, err)
				sub, err := lim.Subscription(topic+"reports", "billing", dispatch.WithTag("reports"))
				require.NoError(t, err)
				assert.Eventually(t, func() bool {
					_, err := sub.Acquire(t.Context(), 1)
					return err == nil && len(keeper.Status().Decisions) > 0
				}, throttletest.Patience, 50*time.Millisecond, "%v", log)
				require.NoError(t, lim.Close())
			}
			assert.NotContains(t, log.String(), "throttle-admin rights")
			assert.Empty(t, g.refused())
		})
	}
}

// consume uses a limit until ctx ends.
func (g *guarded) consume(
	ctx context.Context, lim *dispatch.Limiter, backend *dispatch.Backend, name string, granted *atomic.Int64,
) {
	sub, err := lim.Subscription(topic+name, "billing", dispatch.WithTag(name))
	if !assert.NoError(g.t, err) {
		return
	}
	for n := 0; ; n++ {
		grant, err := sub.Acquire(ctx, 10)
		if err != nil {
			assert.NoError(g.t, sub.Close())
			return
		}
		granted.Add(int64(grant.N()))
		if name == "busy" {
			outcome := dispatch.OutcomeOK
			if n%20 == 0 {
				outcome = dispatch.OutcomeBusy
			}
			sub.ReportOutcome(outcome, 0)
		}
		backend.Wrote(sub, 100)
		grant.Done(grant.N(), 1000)
	}
}

// demos runs the demo until its output is as wanted, each time for twice as long as before.
func (g *guarded) demos(store string, duration time.Duration, wanted func(out string) bool, flags ...string) {
	g.t.Helper()
	throttletest.Until(g.t, "the demo shows what is wanted", func() bool {
		out := g.does(store, "demo", append([]string{"demo", "--duration", duration.String()}, flags...)...)
		duration *= 2
		return wanted(out)
	})
}

// TestDemo: the demo runs as a user who may do what an admin and a replica do, on both permit
// stores, in all sharing modes.
func TestDemo(t *testing.T) {
	g := guard(t)
	g.user("demo", "--role", "admin,replica")
	for _, c := range []struct{ store, sharing string }{
		{"redis", "fair"}, {"redis", "strict"}, {"redis", "split"}, {"redis", "groups"},
		{"etcd", "fair"}, {"etcd", "strict"}, {"etcd", "split"},
	} {
		t.Run(c.store+"/"+c.sharing, func(t *testing.T) {
			g.t = t
			g.demos(c.store, time.Second, func(out string) bool {
				var m struct{ Rate float64 }
				require.NoError(t, json.Unmarshal([]byte(out), &m))
				return m.Rate > 0
			}, "--sharing", c.sharing, "-o", "json")
			assert.Empty(t, g.refused())
		})
	}
	t.Run("live", func(t *testing.T) {
		g.t = t
		g.demos("redis", 4*time.Second, func(out string) bool {
			return strings.Contains(out, "in force everywhere")
		}, "--plain")
		assert.Empty(t, g.refused())
	})
}
