package policy_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
)

func TestParseTopic(t *testing.T) {
	for text, want := range map[string]policy.Topic{
		"persistent://public/default/orders":             {"persistent", "public", "default", "orders"},
		"persistent://public/default/orders-partition-3": {"persistent", "public", "default", "orders"},
		"persistent://prop/standalone/ns/orders":         {"persistent", "prop", "ns", "orders"}, // V1
		"non-persistent://public/default/a b":            {"non-persistent", "public", "default", "a b"},
		"kafka://public/default/orders-partition-3": {
			"kafka", "public", "default", "orders-partition-3",
		},
		"numaflow://prod/fraud/score":      {"numaflow", "prod", "fraud", "score"},
		"persistent://a=b:c.d/..x/é,! ?..": {"persistent", "a=b:c.d", "..x", "é,! ?.."},
		"kafka://a/b/...":                  {"kafka", "a", "b", "..."},
		"nats+jetstream://public/default/orders.*": {
			"nats+jetstream", "public", "default", "orders.*",
		},
		"nats://a/b/c-partition-3": {"nats", "a", "b", "c-partition-3"}, // partitions are Pulsar's
	} {
		got, err := policy.ParseTopic(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got)
		again, err := policy.ParseTopic(got.String())
		require.NoError(t, err)
		assert.Equal(t, got, again)
	}
	for text, want := range map[string][]string{
		"orders":                 {"topic"},
		"kafka://orders":         {"topic"},
		"kafka://a/b/c/d":        {"topic"},
		"persistent://a/b/c/d/e": {"topic"},
		"persistent://a//c/d":    {"topic.cluster"},
		"persistent://a b/c c/d d/": {
			"topic.cluster", "topic.tenant", "topic.namespace", "topic.name",
		},
		"Gopher://a/b":                            {"topic.scheme", "topic"},
		"a_b://a b//c":                            {"topic.scheme", "topic.tenant", "topic.namespace"},
		"://a/b/c":                                {"topic.scheme"},
		"9p://a/b/c":                              {"topic.scheme"},
		"nats://a/b":                              {"topic"},
		"nats://a/b/c/d":                          {"topic"}, // V1 names are Pulsar's
		"nats://a/b/":                             {"topic.name"},
		"kafka://a/b/":                            {"topic.name"},
		"kafka://a/b/..":                          {"topic.name"},
		"kafka://../../etc":                       {"topic.tenant", "topic.namespace"},
		"persistent://./b/c":                      {"topic.tenant"},
		"persistent://a/../b/c":                   {"topic.cluster"},
		"kafka://a/b/x y":                         {"topic.name"},
		"persistent://a/b/x\x00y":                 {"topic.name"},
		"persistent://a/b/x\xff":                  {"topic.name"},
		"numaflow://Prod/-x/a.b":                  {"topic.tenant", "topic.namespace", "topic.name"},
		"persistent://a/b/-partition-1":           {"topic.name"},
		"kafka://a/b/" + strings.Repeat("x", 250): {"topic.name"},
	} {
		_, err := policy.ParseTopic(text)
		require.Error(t, err, text)
		assert.Equal(t, want, fields(err), text)
	}
}

func TestParseScope(t *testing.T) {
	orders := policy.Topic{Scheme: "kafka", Tenant: "public", Namespace: "default", Name: "orders"}
	for text, want := range map[string]policy.Scope{
		"cluster":                       policy.ClusterScope(),
		"public/default":                policy.NamespaceScope("public", "", "default"),
		"public/standalone/default":     policy.NamespaceScope("public", "standalone", "default"),
		"pattern:^kafka://public/.*/a-": policy.PatternScope("^kafka://public/.*/a-"),
		"kafka://public/default/orders": policy.TopicScope(orders),
		"kafka://public/default/orders?subscription=a%2Fb+c": policy.TopicScope(orders).WithSubscription("a/b c"),
	} {
		got, err := policy.ParseScope(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got)
		assert.Equal(t, text, got.String())
	}
	_, err := policy.ParseTopic("Gopher://a/b")
	assert.ErrorContains(t, err, "invalid scheme: want lower-case letters")
	assert.NotContains(t, err.Error(), "Gopher://tenant")
	for text, want := range map[string][]string{
		"":                               {"scope"},
		"orders":                         {"scope"},
		"a/b/c/d":                        {"scope"},
		"a//c":                           {"scope.cluster"},
		"b d//e e":                       {"scope.cluster", "scope.tenant", "scope.namespace"},
		"b d/c c/e e":                    {"scope.tenant", "scope.namespace", "scope.cluster"},
		"a b/":                           {"scope.tenant", "scope.namespace"},
		"tenant:":                        {"scope.tenant"},
		"pattern:":                       {"scope.pattern"},
		"pattern:(":                      {"scope.pattern"},
		"kafka://a/b/c?subscription=":    {"subscription"},
		"kafka://a/b/c?subscription=%zz": {"subscription"},
		"kafka://a/b?subscription=":      {"topic", "subscription"},
		"kafka://a/b?subscription=%zz":   {"topic", "subscription"},
	} {
		_, err := policy.ParseScope(text)
		require.Error(t, err, text)
		assert.Equal(t, want, fields(err), text)
	}
}

func TestAppliesTo(t *testing.T) {
	topic, err := policy.ParseTopic("kafka://public/default/orders")
	require.NoError(t, err)
	for text, want := range map[string]bool{
		"cluster": true, "tenant:public": true, "tenant:other": false, "tag:bulk": false,
		"public/default": true, "public/other": false, "other/default": false,
		"public/eu/default": true, "public/us/default": false,
		"pattern:orders$": true, "pattern:^kafka://public/x": false,
		"kafka://public/default/orders": true, "kafka://public/default/orders?subscription=a": true,
		"persistent://public/default/orders": false, "kafka://public/default/x?subscription=a": false,
	} {
		s, err := policy.ParseScope(text)
		require.NoError(t, err)
		assert.Equal(t, want, s.AppliesTo("eu", topic), text)
	}
	assert.False(t, policy.Scope{Kind: policy.UnreadableKind, Pattern: "x"}.AppliesTo("eu", topic))
	assert.False(t, policy.PatternScope("(").AppliesTo("eu", topic))
}

func TestOnlyATopicHasSubscriptions(t *testing.T) {
	orders := policy.Topic{Scheme: "kafka", Tenant: "public", Namespace: "default", Name: "orders"}
	assert.NoError(t, policy.TopicScope(orders).WithSubscription("x").Validate())
	assert.Equal(
		t, []string{"subscription"}, fields(policy.TopicScope(orders).WithSubscription("").Validate()),
	)
	for _, scope := range []policy.Scope{
		policy.ClusterScope(), policy.NamespaceScope("a", "", "b"), policy.PatternScope("a"),
		policy.SubscriptionScope(orders, "y"),
	} {
		for _, name := range []string{"", "x"} {
			assert.Equal(
				t, []string{"subscription"}, fields(scope.WithSubscription(name).Validate()), "%s %q", scope,
				name,
			)
		}
	}
}

func FuzzParseScope(f *testing.F) {
	for _, s := range []string{
		"cluster", "a/b", "a/b/c", "pattern:^a", "kafka://a/b/c?subscription=d",
		"persistent://a/b/c/d-partition-1-partition-2",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		scope, err := policy.ParseScope(s)
		if err != nil {
			return
		}
		again, err := policy.ParseScope(scope.String())
		require.NoError(t, err)
		require.Equal(t, scope, again)
	})
}
