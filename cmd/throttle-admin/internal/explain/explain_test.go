package explain

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/policies"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

const orders = "kafka://public/default/orders"

// stores are a policy file and a cluster on a real Redis.
type stores struct{ policies, permits, cluster string }

func newStores(t *testing.T) stores {
	return stores{"file:" + t.TempDir() + "/policies.yaml", services.Patient(services.Redis(t)), services.Name(t)}
}

// admin runs a command, which must succeed, and returns its output.
func (s stores) admin(t *testing.T, args ...string) string {
	t.Helper()
	flags := []string{"--policies", s.policies, "--permits", s.permits, "--cluster", s.cluster}
	families := []cli.Family{Commands, policies.Commands}
	status, out, errs := clitest.Run(t.Context(), families, append(flags, args...)...)
	require.Zero(t, status, errs)
	return out
}

// explain explains a topic.
func (s stores) explain(t *testing.T, args ...string) (x explanation) {
	t.Helper()
	out := s.admin(t, append([]string{"explain", orders, "-o", "json"}, args...)...)
	require.NoError(t, json.Unmarshal([]byte(out), &x))
	return x
}

// open opens the Limiter of a replica, until the test ends.
func (s stores) open(t *testing.T, opts ...throttle.Option) *dispatch.Limiter {
	t.Helper()
	opts = append(opts, throttle.WithCluster(s.cluster))
	lim, err := throttle.Open(t.Context(), s.policies, s.permits, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, lim.Close()) })
	return lim
}

// TestExplainLive has two replicas share a limit.
func TestExplainLive(t *testing.T) {
	s := newStores(t)
	s.admin(t, "set-msg-rate", "public/default", "200")
	out := s.admin(t, "explain", orders)
	assert.Contains(t, out, "message rate  200/s  enforce  no consumers")
	assert.Contains(t, out, "No consumers: no replica has reported")

	ctx, cancel := context.WithCancel(t.Context())
	var consumers sync.WaitGroup
	for _, replica := range []string{"replica-a", "replica-b"} {
		lim := s.open(t, throttle.WithReplica(replica))
		billing, err := lim.Subscription(orders, "billing")
		require.NoError(t, err)
		audit, err := lim.Subscription(orders, "audit")
		require.NoError(t, err)
		consumers.Go(func() {
			for ctx.Err() == nil {
				audit.ReportBacklog(0)
				_, _ = billing.Acquire(ctx, 50)
			}
		})
	}
	defer consumers.Wait()
	defer cancel()

	var x explanation
	throttletest.Until(t, "audit has no backlog, and two replicas of billing are throttled", func() bool {
		x = s.explain(t)
		throttled := " is throttled by the message rate, 200/s for all replicas: its share is "
		return len(x.Replicas) == 4 && strings.Count(strings.Join(x.Why, "\n"), throttled) == 2
	})
	assert.Contains(t, x.Why,
		"audit in replica-a is not throttled: it has no backlog (0 messages, threshold 100).")
	require.Len(t, x.Limits, 1)
	assert.InDelta(t, 200, x.Limits[0].InForce, 1e-9)
	topic, err := policy.ParseTopic(orders)
	require.NoError(t, err)
	key := permits.LimitKey(s.cluster, policy.TopicScope(topic), false)
	assert.Equal(t, key, x.Limits[0].Key)
	assert.Len(t, s.explain(t, "--subscription", "billing").Replicas, 2)

	// A dry run shows topics that only replicas know.
	out = s.admin(t, "set-msg-rate", "public/default", "100", "--dry-run")
	assert.Regexp(t, orders+` +messageRate +200/s +100/s`, out)

	out = s.admin(t, "explain", orders)
	for line := range strings.Lines(out) {
		assert.LessOrEqual(t, len(line), output.MaxWidth+1, line)
	}
	t.Log("\n" + out)

	s.admin(t, "pause", orders)
	throttletest.Until(t, "billing is paused", func() bool {
		return slices.Contains(s.explain(t).Why, "billing in replica-b is paused.")
	})
}

// TestExplainStrict: replicas have equal shares of a strict limit and together use no more than
// it.
func TestExplainStrict(t *testing.T) {
	s := newStores(t)
	s.admin(t, "set", orders, "messageRate=5", "sharing.mode=strict")
	ctx, cancel := context.WithCancel(t.Context())
	var consumers sync.WaitGroup
	for range 3 {
		lim := s.open(t)
		sub, err := lim.Subscription(orders, "billing")
		require.NoError(t, err)
		consumers.Go(func() {
			for ctx.Err() == nil {
				_, _ = sub.Acquire(ctx, 1)
			}
		})
	}
	defer consumers.Wait()
	defer cancel()
	throttletest.Until(t, "replicas share the limit", func() bool {
		x := s.explain(t)
		shares, users := 0.0, 0
		for _, r := range x.Replicas {
			assert.LessOrEqual(t, r.Use, 5.0)
			shares += r.Share
			if r.Use > 0 {
				users++
			}
		}
		assert.LessOrEqual(t, shares, 5.0001)
		known := strings.Count(strings.Join(x.Why, "\n"), "its share is 1.67/s")
		return users == 3 && shares > 4.9999 && known >= 2
	})
}

// TestFirstLimit: the share and the use of a replica are those of a limit that holds messages up,
// if there is one.
func TestFirstLimit(t *testing.T) {
	shadow, enforced := dispatch.LimitStats{Key: "a", Shadow: true}, dispatch.LimitStats{Key: "b"}
	assert.Nil(t, firstOf(nil))
	assert.Equal(t, "a", firstOf([]dispatch.LimitStats{shadow}).Key)
	assert.Equal(t, "b", firstOf([]dispatch.LimitStats{shadow, enforced}).Key)
}

// TestShadowStrict: a strict limit in shadow mode is described as it works: it paces nothing.
func TestShadowStrict(t *testing.T) {
	scope := policy.TopicScope(policy.Topic{Scheme: "kafka", Tenant: "acme", Namespace: "shop", Name: "orders"})
	for mode, want := range map[policy.Mode]sharing{policy.Enforce: strict{maxReserved: 64}, policy.Shadow: fair{}} {
		set, err := policy.NewSet([]policy.Entry{{Scope: scope, Settings: policy.Policy{
			MessageRate: policy.PerSecond(5), Mode: mode, Sharing: policy.Sharing{Mode: policy.Strict},
		}}})
		require.NoError(t, err)
		limits := limitsOf(scope, set.Resolve("eu", scope.Topic, ""))
		require.Len(t, limits, 1)
		assert.Equal(t, want, limits[0].shared)
	}
}

// TestReplicaState has a sentence for each state that a replica can publish.
func TestReplicaState(t *testing.T) {
	type stats = dispatch.SubscriptionStats
	type limit = dispatch.LimitStats
	const messages = dispatch.ReasonMessages
	waiting := func(why dispatch.Reason, l limit) stats {
		l.Reason = why
		return stats{Waiting: 1, Reason: why, Limits: []limit{l}}
	}
	share := limit{Rate: 1000, Share: 250, Use: 249.96}
	limited := []limit{share}
	const byRate = "throttled by the message rate, 1000/s for all replicas: "
	for _, c := range []struct {
		stats    stats
		onOutage policy.OnOutage
		want     string
	}{
		{waiting(messages, share), "", byRate + "its share is 250/s, of which it uses 250/s"},
		{waiting(messages, limit{Rate: 1000, Share: 250, Pool: 4}), "",
			byRate + "as one of 4 replicas, its share is 250/s, of which it uses 0/s"},
		{waiting(messages, limit{Rate: 1000, Group: "eu"}), "",
			byRate + "it is in worker group eu and uses 0/s"},
		{waiting(messages, limit{Rate: 1000}), "",
			byRate + "its share is not known yet; it uses 0/s"},
		{waiting(messages, limit{Rate: 1000, Ramp: 500, Share: 125}), "",
			"throttled by the message rate, 500/s of 1000/s on its ramp for all replicas: its " +
				"share is 125/s, of which it uses 0/s"},
		{waiting(dispatch.ReasonBusy, limit{Rate: 100, Use: 50}), "",
			"throttled: the service that it calls is busy, which limits all replicas together to " +
				"100/s; it uses 50/s"},
		{waiting(dispatch.ReasonQuota, limit{Rate: 100, Use: 50}), "",
			"throttled by a throughput quota, which limits all subscriptions together to 100/s; " +
				"it uses 50/s"},
		{waiting(dispatch.ReasonPermits, share), "stop",
			"throttled: its permit store is unavailable, and onOutage is stop"},
		{waiting(dispatch.ReasonNoGroup, share), "",
			"throttled permanently: it is in no worker group of a limit. Start it with " +
				"THROTTLE_GROUP set, or change sharing.groups"},
		{waiting(dispatch.ReasonPaused, share), "", "paused"},
		{waiting(dispatch.ReasonNone, share), "",
			"about to get permits: its callers have just arrived"},
		{stats{Exempt: true, CaughtUp: true, Backlog: 7}, "",
			"not throttled: it has no backlog (7 messages, threshold 100)"},
		{stats{Exempt: true, Limits: limited}, "open",
			"not throttled: its permit store is unavailable, and onOutage is open"},
		{stats{Exempt: true}, "", "not throttled: no limit is in force there"},
		{stats{
			Shadowed: map[dispatch.Reason]int64{dispatch.ReasonMessages: 7},
			Limits:   []dispatch.LimitStats{{Reason: dispatch.ReasonMessages, Shadow: true}},
		}, "", "not throttled: without shadow mode, there would have waited 7 messages for the message rate"},
		{stats{Limits: limited}, "", "not throttled: it uses 250/s of its share of 250/s"},
		{stats{}, "", "not throttled: its demand is below the limit"},
	} {
		p := policy.Policy{OnOutage: c.onOutage}
		x := explanation{effective: policy.Effective{Subscription: p}}
		r := replicaView{SubscriptionStats: c.stats}
		if len(c.stats.Limits) > 0 {
			r.Share, r.Use, r.Rate = 250, 249.96, 1000
		}
		assert.Equal(t, c.want, x.stateOf(r))
	}
}

// TestHeldUp: explain names the topic whose message holds up those of another topic in one line.
func TestHeldUp(t *testing.T) {
	s := newStores(t)
	s.admin(t, "set", orders+"-slow", "messageRate=1/1h")
	lim := s.open(t)
	slow, err := lim.Subscription(orders+"-slow", "billing", dispatch.WithHoldsUp(orders))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range 2 {
		wg.Go(func() { _, _ = slow.Acquire(ctx, 1) }) // ends with ctx
	}
	throttletest.Until(t, "explain names it", func() bool {
		return slices.ContainsFunc(s.explain(t).Why, func(why string) bool {
			return strings.HasPrefix(why, "billing in ") && strings.Contains(why, "in one line with "+orders+"-slow")
		})
	})
	assert.Empty(t, s.explain(t, "--subscription", "other").Replicas)
}

// TestExplainStores: what is wrong between replicas and their stores is among the reasons.
func TestExplainStores(t *testing.T) {
	s := newStores(t)
	s.admin(t, "set", orders, "messageRate=20", "sharing.mode=strict")
	store, err := throttle.OpenPermits(s.permits)
	require.NoError(t, err)
	defer func() { assert.NoError(t, store.Close()) }()
	publish := func(status dispatch.Stats) {
		text, err := json.Marshal(status)
		require.NoError(t, err)
		require.NoError(t, store.Publish(t.Context(), s.cluster, status.Replica, text, time.Minute))
	}
	far := func(seconds float64) dispatch.PermitStoreStats {
		return dispatch.PermitStoreStats{Latency: seconds, Slow: seconds > 0.1}
	}
	publish(dispatch.Stats{Replica: "a", Permits: far(0.05)})
	publish(dispatch.Stats{Replica: "b", Permits: far(0.2), Identity: "other"})
	publish(dispatch.Stats{Replica: "c", Permits: far(0.4), PolicyError: "it is empty", PoliciesHeld: true, Revision: 7})
	damaged := far(0.001)
	damaged.Damaged = 3
	publish(dispatch.Stats{Replica: "d", Permits: damaged})
	x := s.explain(t)
	from := slices.IndexFunc(x.Why, func(why string) bool { return strings.Contains(why, "keeps the policies") })
	require.GreaterOrEqual(t, from, 0, "%q", x.Why)
	assert.Equal(t, []string{
		"1 replica keeps the policies of revision 7 (c): it is empty",
		"1 replica of the cluster follows policies of another store, other: b",
		"Requests of b to the permit store take 200ms: it gets one slot of a strict limit in each, 5/s at most.",
		"Requests of c to the permit store take 400ms, and a strict limit needs less than 250ms. It gets one " +
			"slot in each, 2.5/s at most.",
		"d has found damage in what the permit store keeps of limits, and replaced it (3 times since it started).",
	}, x.Why[from:])
	s.admin(t, "set", orders, "sharing.mode=fair")
	assert.Contains(t, s.explain(t).Why,
		"Requests of c to the permit store take 400ms: limits are shared in longer rounds.")
}

// TestExplainRival: explain names another policy store whose replicas use the limit, as the
// schedule has it or, of a limit without one, as replicas say.
func TestExplainRival(t *testing.T) {
	s := newStores(t)
	s.policies = services.EtcdURL(t)
	s.admin(t, "set", orders, "messageRate=20")
	x := s.explain(t)
	store, err := throttle.OpenPermits(s.permits)
	require.NoError(t, err)
	defer func() { assert.NoError(t, store.Close()) }()
	for i, source := range []string{x.Identity, "another one"} {
		_, err := permitstest.Allocate(t.Context(), store, x.Limits[0].Key, schedule.Request{
			Subscription: "billing", Weight: 1, Demand: 10, Want: 1, Round: 0.1, Rate: 20 + 100*float64(i),
			Source: source, Rev: schedule.Revision{Epoch: int64(i), Number: 7}, Nonce: 1,
		})
		require.NoError(t, err)
	}
	const want = "Replicas that follow another policy store, 'another one', use the message rate, too: the lower " +
		"rate is in force. Give each policy store a cluster of its own, or all replicas one store."
	x = s.explain(t)
	assert.Equal(t, "another one", x.Limits[0].Rival)
	assert.Contains(t, x.Why, want)

	s.admin(t, "set", orders, "sharing.mode=split")
	x = s.explain(t)
	assert.Empty(t, x.Limits[0].Rival, "it has no schedule")
	for replica, rival := range map[string]string{x.Identity: "another one", "another one": x.Identity} {
		text, err := json.Marshal(dispatch.Stats{
			Replica: "a", Identity: replica, Subscriptions: []dispatch.SubscriptionStats{{
				Topic: orders, Subscription: "billing",
				Limits: []dispatch.LimitStats{{Key: x.Limits[0].Key, Rival: rival}},
			}},
		})
		require.NoError(t, err)
		require.NoError(t, store.Publish(t.Context(), s.cluster, "a", text, time.Minute))
		assert.Contains(t, s.explain(t).Why, want, "by a replica that follows %q", replica)
	}
}
