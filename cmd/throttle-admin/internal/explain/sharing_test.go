package explain

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestBacklogReasons: explain names the limits that hold without a backlog, as package resolve
// applies them.
func TestBacklogReasons(t *testing.T) {
	topic, err := policy.ParseTopic(orders)
	require.NoError(t, err)
	aggregate := policy.Policy{Aggregate: new(true), MessageRate: policy.PerSecond(5000)}
	both := aggregate
	both.ByteRate = policy.PerSecond(1 << 20)
	strict := policy.Policy{
		MessageRate: policy.PerSecond(5), Sharing: policy.Sharing{Mode: policy.Strict},
	}
	strictAndBytes := strict
	strictAndBytes.ByteRate = policy.PerSecond(1 << 20)
	const (
		consumers = "Throttled when its consumers together reach a limit. A subscription without " +
			"a backlog (at most 100 messages) "
		all = "Throttled when all topics of public/default together reach its limit, even without " +
			"a backlog."
		isStrict = "Throttled when its consumers together reach the message rate, even without a " +
			"backlog, because it is strict."
	)
	for name, c := range map[string]struct {
		namespace, topic policy.Policy
		want             []string
	}{
		"fair": {topic: policy.Policy{MessageRate: policy.PerSecond(5)},
			want: []string{consumers + "is not throttled."}},
		"strict": {topic: strict, want: []string{isStrict}},
		"strict, and fair bytes": {topic: strictAndBytes,
			want: []string{consumers + "bypasses the byte rate.", isStrict}},
		"aggregate": {namespace: both, want: []string{all}},
		"aggregate and topic": {aggregate, policy.Policy{MessageRate: policy.PerSecond(5)},
			[]string{consumers + "bypasses the message rate.", all}},
		"aggregate and strict": {aggregate, strict, []string{isStrict, all}},
	} {
		t.Run(name, func(t *testing.T) {
			namespace, err := policy.ParseScope("public/default")
			require.NoError(t, err)
			x := explainPolicy(configstore.Snapshot{Entries: []policy.Entry{
				{Scope: namespace, Settings: c.namespace},
				{Scope: policy.TopicScope(topic), Settings: c.topic},
			}}, "", policy.TopicScope(topic))
			x.addPolicyReason()
			assert.Equal(t, c.want, x.Why)
		})
	}
}

// TestModes shows what each sharing mode makes of the same state in the permit store.
func TestModes(t *testing.T) {
	state := schedule.State{Inc: 1, Rate: 10, Tail: 100.5, Rev: schedule.Revision{Number: 7}, Queue: make([]schedule.Waiter, 2)}
	scope := policy.ClusterScope()
	replicas := []replicaView{{SubscriptionStats: dispatch.SubscriptionStats{
		Limits: []dispatch.LimitStats{{Group: "eu"}},
	}}}
	scheduled := limitView{Rate: 10, InForce: 10, Ahead: 0.5, Allocated: 5, Revision: 7}
	strictView := scheduled
	strictView.Strict, strictView.Reserved, strictView.MaxReserved, strictView.Queued = true, 4, 19, 2
	for _, c := range []struct {
		policy policy.Policy
		view   limitView
		fault  string
		why    []string
	}{
		{policy.Policy{}, scheduled, "", nil},
		{policy.Policy{Sharing: policy.Sharing{Mode: policy.Strict}}, strictView, "", []string{
			"The  is strict, one permit every 100ms: 4 of at most 19 slots are allocated ahead.",
			"2 callers wait in the queue for the next slot, first come first served.",
		}},
		{policy.Policy{Sharing: policy.Sharing{Mode: policy.Split}},
			limitView{Rate: 10, Sharing: policy.Split}, "", nil},
		{policy.Policy{Sharing: policy.Sharing{Mode: policy.Groups, Groups: []string{"eu", "us"}}},
			limitView{Rate: 10, Sharing: policy.Groups}, "", []string{
				"No replica is in worker group us of cluster: the others use at most 80 % of its part " +
					"of 10/s; the rest is lost.",
			}},
		{policy.Policy{Sharing: policy.Sharing{Mode: policy.Groups}}, limitView{Rate: 10, Sharing: policy.Groups},
			"Throttled permanently: the limit of cluster is divided over worker groups, and names " +
				"none. Set sharing.groups=a,b.", nil},
	} {
		mode, view := sharingOf(c.policy), limitView{Rate: 10}
		l := limit{scope: scope, rate: policy.PerSecond(10), shared: mode}
		mode.fill(&view, state, 100)
		assert.Equal(t, c.view, view)
		assert.Equal(t, c.fault, mode.fault(l))
		assert.Equal(t, c.why, mode.why(l, view, replicas))
	}
}
