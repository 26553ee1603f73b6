package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
)

func TestQuotas(t *testing.T) {
	entry := func(scope string, p policy.Policy) policy.Entry {
		s, err := policy.ParseScope(scope)
		require.NoError(t, err)
		require.NoError(t, p.Validate(s))
		return policy.Entry{Scope: s, Policy: p}
	}
	set, err := policy.NewSet([]policy.Entry{
		entry("cluster", policy.Policy{QuotaMode: policy.Shadow, Zones: "a,b", Capacity: new(int64(5)), QuotaShareBy: policy.ShareByCurrent}),
		entry("tenant:acme", policy.Policy{TotalThroughput: new(int64(100)), ReservedThroughput: new(int64(20))}),
		entry("tag:bulk", policy.Policy{TotalThroughput: new(int64(7)), QuotaMode: policy.Enforce}),
		entry("tenant:plain", policy.Policy{MessageRate: policy.PerSecond(5)}),
	})
	require.NoError(t, err)
	assert.Equal(t, map[policy.Scope]policy.Quota{
		policy.TenantScope("acme"): {Reserved: 20, Total: 100, Shadow: true},
		policy.TagScope("bulk"):    {Total: 7},
	}, set.Quotas())
	_, ok := set.Quota(policy.TagScope("acme"))
	assert.False(t, ok, "a tag is no tenant")
	assert.Equal(t, policy.Ratekeeping{ShareBy: policy.ShareByCurrent, IgnoreZones: 1, Zones: []string{"a", "b"}, Capacity: 5}, set.Ratekeeping())
	assert.Equal(t, policy.Ratekeeping{ShareBy: policy.ShareByQuota, IgnoreZones: 1}, policy.Single(policy.Policy{}).Ratekeeping())

	e := set.Explain("", policy.Topic{Scheme: policy.Kafka, Tenant: "acme", Namespace: "default", Name: "orders"}, "billing")
	assert.True(t, e.Topic.IsZero() && e.Subscription.IsZero(), "%+v", e)
	assert.Empty(t, e.Sources)
}

func TestATemporaryTotalBelowWhatIsReserved(t *testing.T) {
	set, err := policy.NewSet([]policy.Entry{
		{Scope: policy.TagScope("bulk"), Policy: policy.Policy{TotalThroughput: new(int64(100)), ReservedThroughput: new(int64(20))}},
		{Scope: policy.TagScope("bulk"), Policy: policy.Policy{TotalThroughput: new(int64(10))}, Temporary: true, Field: "totalThroughput"},
	})
	require.NoError(t, err)
	q, ok := set.Quota(policy.TagScope("bulk"))
	assert.True(t, ok)
	assert.Equal(t, policy.Quota{Reserved: 10, Total: 10}, q)
}

func TestQuotaFaults(t *testing.T) {
	of := func(scope policy.Scope, p policy.Policy) string {
		return strings.Join(slices.Sorted(slices.Values(fields(p.Validate(scope)))), " ")
	}
	for list, faults := range map[policy.Names]string{"a": "", ",": "zones", ",,": "zones", "a b,a b,a b": "zones", "a,a,a": "zones", "a,,a": "zones zones", ",b c": "zones zones"} {
		assert.Equal(t, faults, of(policy.ClusterScope(), policy.Policy{Zones: list}), "each fault of %q once", list)
	}
	for list, faults := range map[policy.Outcomes]string{"busy": "", ",": "busyOutcomes", "slow,slow": "busyOutcomes", "busy,busy,busy": "busyOutcomes"} {
		assert.Equal(t, faults, of(policy.ClusterScope(), policy.Policy{BusyOutcomes: list}), "each fault of %q once", list)
	}
	one, two := new(int64(1)), new(int64(2))
	bad := policy.Policy{
		ReservedThroughput: new(int64(-1)), TotalThroughput: new(int64(-1)), Capacity: new(int64(-1)), IgnoreZones: new(int64(101)),
		QuotaMode: "soft", QuotaShareBy: "luck", Zones: "a,,a",
	}
	assert.Equal(t, "capacity ignoreZones quotaMode quotaShareBy reservedThroughput reservedThroughput totalThroughput totalThroughput zones zones", of(policy.ClusterScope(), bad))
	assert.Equal(t, "reservedThroughput", of(policy.TagScope("x"), policy.Policy{ReservedThroughput: two, TotalThroughput: one}))
	assert.Equal(t, "reservedThroughput", of(policy.TagScope("x"), policy.Policy{ReservedThroughput: one}))
	assert.Equal(t, "messageRate", of(policy.TagScope("x"), policy.Policy{MessageRate: policy.PerSecond(1)}))
	assert.Equal(t, "capacity", of(policy.TenantScope("x"), policy.Policy{Capacity: one}))
	assert.Equal(t, "quotaMode totalThroughput", of(orders2(), policy.Policy{TotalThroughput: one, QuotaMode: policy.Shadow}))
	assert.Equal(t, "", of(policy.TenantScope("x"), policy.Policy{TotalThroughput: two, ReservedThroughput: one, MessageRate: policy.PerSecond(1)}))
	_, err := policy.ParseScope("tag:a b")
	assert.ErrorContains(t, err, "scope.tag")
}
