package policy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
)

func TestQuotas(t *testing.T) {
	entry := func(scope string, s policy.Settings) policy.Entry {
		parsed, err := policy.ParseScope(scope)
		require.NoError(t, err)
		require.NoError(t, s.Validate(parsed))
		return policy.Entry{Scope: parsed, Settings: s}
	}
	set, err := policy.NewSet([]policy.Entry{
		entry(
			"cluster",
			policy.QuotaSettings{
				Mode: policy.Shadow, Zones: []string{"a", "b"}, Capacity: new(int64(5)),
				ShareBy: policy.ShareByCurrent,
			},
		),
		entry("tenant:acme", policy.Quota{Total: new(int64(100)), Reserved: new(int64(20))}),
		entry("tag:bulk", policy.Quota{Total: new(int64(7)), Mode: policy.Enforce}),
		entry("tag:none", policy.Quota{Mode: policy.Enforce}),
		entry("tenant:plain", policy.Policy{MessageRate: policy.PerSecond(5)}),
	})
	require.NoError(t, err)
	assert.Equal(t, map[policy.Scope]policy.EffectiveQuota{
		policy.TenantScope("acme"): {Reserved: 20, Total: 100, Shadow: true},
		policy.TagScope("bulk"):    {Total: 7},
	}, set.Quotas())
	_, ok := set.Quota(policy.TagScope("acme"))
	assert.False(t, ok, "a tag is not a tenant")
	assert.Equal(t, policy.QuotaSettings{
		Mode: policy.Shadow, ShareBy: policy.ShareByCurrent, IgnoreZones: new(int64(1)),
		Zones: []string{"a", "b"}, Capacity: new(int64(5)),
	}, set.QuotaSettings())
	assert.Equal(t, policy.QuotaSettings{
		Mode: policy.Enforce, ShareBy: policy.ShareByQuota, IgnoreZones: new(int64(1)),
		Capacity: new(int64(0)),
	},
		policy.Single(policy.Policy{}).QuotaSettings())

	e := set.Explain(
		"", policy.Topic{Scheme: policy.Kafka, Tenant: "acme", Namespace: "default", Name: "orders"},
		"billing",
	)
	assert.True(t, policy.IsZero(e.Topic) && policy.IsZero(e.Subscription), "%+v", e)
	assert.Empty(t, e.Aggregates)
	assert.Empty(t, e.Sources)
}

func TestATemporaryTotalBelowWhatIsReserved(t *testing.T) {
	set, err := policy.NewSet([]policy.Entry{
		{
			Scope:    policy.TagScope("bulk"),
			Settings: policy.Quota{Total: new(int64(100)), Reserved: new(int64(20))},
		},
		{
			Scope: policy.TagScope("bulk"), Settings: policy.Quota{Total: new(int64(10))}, Temporary: true,
			Field: "total",
		},
	})
	require.NoError(t, err)
	q, ok := set.Quota(policy.TagScope("bulk"))
	assert.True(t, ok)
	assert.Equal(t, policy.EffectiveQuota{Reserved: 10, Total: 10}, q)
}

func TestQuotaFaults(t *testing.T) {
	one, two, bad := new(int64(1)), new(int64(2)), new(int64(-1))
	tag, tenant := policy.TagScope("x"), policy.TenantScope("x")
	for _, c := range []struct {
		scope  policy.Scope
		s      policy.Settings
		faults []string
	}{
		{
			tag, policy.Quota{Reserved: bad, Total: bad, Mode: "off"}, []string{"reserved", "total", "mode"},
		},
		{policy.ClusterScope(), policy.QuotaSettings{
			Mode: "off", ShareBy: "size", Capacity: bad, Zones: []string{"a b"}, IgnoreZones: bad,
		},
			[]string{"mode", "shareBy", "capacity", "zones", "ignoreZones"}},
		{tag, policy.Quota{Reserved: two, Total: one}, []string{"reserved"}},
		{tag, policy.Quota{Reserved: one}, []string{"reserved"}},
		{tag, policy.Policy{MessageRate: policy.PerSecond(1)}, []string{"messageRate"}},
		{tenant, policy.QuotaSettings{Capacity: one}, []string{"capacity"}},
		{orders2(), policy.Quota{Total: one, Mode: policy.Shadow}, []string{"total", "mode"}},
		{tenant, policy.Quota{Total: two, Reserved: one}, nil},
	} {
		assert.Equal(t, c.faults, fields(c.s.Validate(c.scope)))
	}
	_, err := policy.ParseScope("tag:a b")
	assert.ErrorContains(t, err, "scope.tag")
	_, err = policy.QuotaSection.ParseField("total", "x")
	assert.EqualError(
		t, err, `policy: total "x": invalid throughput: want bytes a second, such as 409600 or 1MiB`,
	)
}
