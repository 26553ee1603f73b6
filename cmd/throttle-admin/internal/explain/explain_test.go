package explain

import (
	"bytes"
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
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/policies"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestExplainLive has two replicas share a limit on a real Redis, and asks why they wait.
func TestExplainLive(t *testing.T) {
	const topic = "kafka://public/default/orders"
	store, address, cluster := "file:"+t.TempDir()+"/policies.yaml", services.Redis(t), services.Name(t)
	admin := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		args = append([]string{"--policies", store, "--permits", address, "--cluster", cluster}, args...)
		status := cli.Run(t.Context(), args, strings.NewReader(""), &out, &errs, Commands, policies.Commands)
		return status, out.String(), errs.String()
	}
	status, _, errs := admin("set-msg-rate", "public/default", "200")
	require.Zero(t, status, errs)
	_, out, _ := admin("explain", topic)
	assert.Contains(t, out, "message rate  200/s  no consumers")
	assert.Contains(t, out, "No consumers: no replica has reported")

	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for _, replica := range []string{"replica-a", "replica-b"} {
		lim, err := throttle.Open(t.Context(), store, address, throttle.WithCluster(cluster), throttle.WithReplica(replica))
		require.NoError(t, err)
		defer func() { assert.NoError(t, lim.Close()) }()
		billing, err := lim.Subscription(topic, "billing")
		require.NoError(t, err)
		audit, err := lim.Subscription(topic, "audit")
		require.NoError(t, err)
		readers.Go(func() {
			for ctx.Err() == nil {
				audit.ReportBacklog(0)
				_, _ = billing.Acquire(ctx, 50)
			}
		})
	}
	defer readers.Wait()
	defer cancel()

	explain := func(args ...string) (x explanation) {
		status, out, errs := admin(append([]string{"explain", topic, "-o", "json"}, args...)...)
		require.Zero(t, status, errs)
		require.NoError(t, json.Unmarshal([]byte(out), &x))
		return x
	}
	var x explanation
	require.Eventually(t, func() bool {
		x = explain()
		throttled := " is throttled by the message rate, 200/s for all replicas: its share is "
		return len(x.Replicas) == 4 && strings.Count(strings.Join(x.Why, "\n"), throttled) == 2
	}, 10*time.Second, 50*time.Millisecond)
	assert.Contains(t, x.Why, "audit in replica-a is not throttled: it has no backlog (0 messages, threshold 100).")
	require.Len(t, x.Limits, 1)
	assert.InDelta(t, 200, x.Limits[0].InForce, 1e-9)
	assert.Equal(t, permits.LimitKey(cluster, policy.TopicScope(mustTopic(t, topic)), false), x.Limits[0].Key)
	assert.Len(t, explain("--subscription", "billing").Replicas, 2)

	// What only replicas know is touched by a change, too.
	_, out, errs = admin("set-msg-rate", "public/default", "100", "--dry-run")
	assert.Regexp(t, topic+` +messageRate +200/s +100/s`, out, errs)

	status, out, errs = admin("explain", topic)
	assert.Zero(t, status, errs)
	for line := range strings.Lines(out) {
		assert.LessOrEqual(t, len(line), output.MaxWidth+1, line)
	}
	t.Log("\n" + out)

	status, _, errs = admin("pause", topic)
	require.Zero(t, status, errs)
	require.Eventually(t, func() bool {
		return slices.Contains(explain().Why, "billing in replica-b is paused.")
	}, 10*time.Second, 50*time.Millisecond)
}

// TestExplainStrict: processes that take turns have equal shares of a strict limit, and use no
// more than it.
func TestExplainStrict(t *testing.T) {
	const topic = "kafka://public/default/orders"
	store, address, cluster := "file:"+t.TempDir()+"/policies.yaml", services.Redis(t), services.Name(t)
	admin := func(args ...string) string {
		var out, errs bytes.Buffer
		args = append([]string{"--policies", store, "--permits", address, "--cluster", cluster}, args...)
		require.Zero(t, cli.Run(t.Context(), args, strings.NewReader(""), &out, &errs, Commands, policies.Commands), errs.String())
		return out.String()
	}
	admin("set", topic, "messageRate=5", "sharing=strict")
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for range 3 {
		lim, err := throttle.Open(t.Context(), store, address, throttle.WithCluster(cluster))
		require.NoError(t, err)
		defer func() { assert.NoError(t, lim.Close()) }()
		sub, err := lim.Subscription(topic, "billing")
		require.NoError(t, err)
		readers.Go(func() {
			for ctx.Err() == nil {
				_, _ = sub.Acquire(ctx, 1)
			}
		})
	}
	defer readers.Wait()
	defer cancel()
	require.Eventually(t, func() bool {
		var x explanation
		require.NoError(t, json.Unmarshal([]byte(admin("explain", topic, "-o", "json")), &x))
		shares, users := 0.0, 0
		for _, r := range x.Replicas {
			assert.LessOrEqual(t, r.Use, 5.0)
			if shares += r.Share; r.Use > 0 {
				users++
			}
		}
		assert.LessOrEqual(t, shares, 5.0001)
		return users == 3 && shares > 4.9999 && strings.Count(strings.Join(x.Why, "\n"), "its share is 1.67/s") >= 2
	}, 30*time.Second, 50*time.Millisecond)
}

func mustTopic(t *testing.T, text string) policy.Topic {
	t.Helper()
	topic, err := policy.ParseTopic(text)
	require.NoError(t, err)
	return topic
}

// TestReplicaState has a sentence for each state that a replica can publish.
func TestReplicaState(t *testing.T) {
	type stats = dispatch.SubscriptionStats
	limits := []dispatch.LimitStats{
		{Reason: dispatch.ReasonMessages, Rate: 1000, Share: 250, Use: 249.96},
	}
	ramp := []dispatch.LimitStats{{Reason: dispatch.ReasonMessages, Rate: 1000, Ramp: 500, Share: 125}}
	split := []dispatch.LimitStats{{Reason: dispatch.ReasonMessages, Rate: 1000, Share: 250, Pool: 4}}
	group := []dispatch.LimitStats{{Reason: dispatch.ReasonMessages, Rate: 1000, Group: "eu"}}
	busy := []dispatch.LimitStats{{Reason: dispatch.ReasonBusy, Rate: 100, Use: 50}}
	waiting := func(why dispatch.Reason, limits []dispatch.LimitStats) stats {
		return stats{Waiting: 1, Reason: why, Limits: limits}
	}
	for _, c := range []struct {
		stats    stats
		onOutage policy.OnOutage
		want     string
	}{
		{waiting(dispatch.ReasonMessages, limits), "", "throttled by the message rate, 1000/s for all " +
			"replicas: its share is 250/s, of which it uses 250/s"},
		{waiting(dispatch.ReasonMessages, ramp), "", "throttled by the message rate, 500/s of 1000/s on " +
			"its ramp for all replicas: its share is 125/s, of which it uses 0/s"},
		{waiting(dispatch.ReasonMessages, split), "", "throttled by the message rate, 1000/s for all " +
			"replicas: as one of 4 replicas, its share is 250/s, of which it uses 0/s"},
		{waiting(dispatch.ReasonMessages, group), "", "throttled by the message rate, 1000/s for all " +
			"replicas: it is in worker group eu and uses 0/s"},
		{waiting(dispatch.ReasonBusy, busy), "", "throttled: the service that it calls is busy, which " +
			"limits all replicas together to 100/s; it uses 50/s"},
		{waiting(dispatch.ReasonPermits, limits), "stop", "throttled: its permit store is unavailable, " +
			"and onOutage is stop"},
		{waiting(dispatch.ReasonNoGroup, nil), "", "throttled permanently: it is in no worker group of a " +
			"limit. Start it with THROTTLE_GROUP set, or change groups"},
		{waiting(dispatch.ReasonPaused, limits), "", "paused"},
		{waiting(dispatch.ReasonNone, limits), "", "about to get permits: its callers have just arrived"},
		{stats{Exempt: true, CaughtUp: true, Backlog: 7}, "", "not throttled: it has no backlog " +
			"(7 messages, threshold 100)"},
		{stats{Exempt: true, Limits: limits}, "open", "not throttled: its permit store is unavailable, " +
			"and onOutage is open"},
		{stats{Exempt: true}, "", "not throttled: no limit is in force there"},
		{stats{Shadow: true, Shadowed: 7, Limits: limits}, "", "not throttled: in shadow mode, 7 messages " +
			"above the limit were dispatched"},
		{stats{Limits: limits}, "", "not throttled: it uses 250/s of its share of 250/s"},
		{stats{}, "", "not throttled: its demand is below the limit"},
	} {
		x := explanation{effective: policy.Effective{Subscription: policy.Policy{OnOutage: c.onOutage}}}
		r := replicaView{SubscriptionStats: c.stats}
		if len(c.stats.Limits) > 0 {
			r.Share, r.Use, r.Rate = 250, 249.96, 1000
		}
		assert.Equal(t, c.want, x.stateOf(r))
	}
}
