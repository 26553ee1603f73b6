package permits_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestKeys has every key of every permit store.
func TestKeys(t *testing.T) {
	topic := policy.Topic{Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: "orders"}
	scope := policy.TopicScope(topic)
	limit := permits.LimitKey("eu", scope, false)
	for _, k := range []struct{ got, want string }{
		{limit, "throttle:limit:{eu/kafka://public/default/orders}:messages"},
		{permits.LimitKey("eu", scope, true), "throttle:limit:{eu/kafka://public/default/orders}:bytes"},
		{permits.LimitKey("eu", policy.SubscriptionScope(topic, "bil}ling"), true),
			"throttle:limit:{eu/kafka://public/default/orders}:bytes:bil}ling"},
		{permits.LimitKey("eu", policy.NamespaceScope("public", "", "default"), false),
			"throttle:limit:{eu/public/default}:messages"},
		{permits.LimitKey("eu", policy.TenantScope("public"), false), "throttle:limit:{eu/tenant:public}:messages"},
		{permits.LimitKey("eu", policy.ClusterScope(), false), "throttle:limit:{eu/cluster}:messages"},
		{permits.BusyKey("eu", topic, "billing"), "throttle:limit:{eu/kafka://public/default/orders}:busy:billing"},
		{permits.QuotaKey("eu", policy.TagScope("web")), "throttle:limit:{eu/tag:web}:quota"},
		{permits.PoolKey(limit), "throttle:pool:{eu/kafka://public/default/orders}:messages"},
		{permits.GroupsKey(limit), "throttle:groups:{eu/kafka://public/default/orders}:messages"},
		{permits.RatesKey("eu"), "throttle:rates:{eu}"},
		{permits.UsageOf("eu"), "eu/usage"},
		{permits.RedisStatus("eu", "host-1"), "throttle:status:{eu}:host-1"},
		{permits.RedisReplicas("eu"), "throttle:replica:{eu}"},
		{permits.RedisWake("a1b2"), "throttle:wake:a1b2"},
		{permits.EtcdKey("/throttle", limit),
			"/throttle/permits/throttle:limit:%7Beu%2Fkafka:%2F%2Fpublic%2Fdefault%2Forders%7D:messages"},
		{permits.EtcdStatus("/throttle", "eu/usage", "host-1"), "/throttle/status/eu%2Fusage/host-1"},
		{permits.EtcdStatus("/throttle", "eu", ""), "/throttle/status/eu/"},
		{permits.EtcdClock("/throttle"), "/throttle/clock"},
	} {
		assert.Equal(t, k.want, k.got)
	}
}

// TestScriptHasNoOtherKeys: the one key that allocate.lua makes is the channel of keys.go.
func TestScriptHasNoOtherKeys(t *testing.T) {
	script, err := os.ReadFile("redis/allocate.lua")
	require.NoError(t, err)
	assert.Equal(t, []string{"'" + permits.RedisWake("") + "'"},
		regexp.MustCompile(`'throttle:.*?'`).FindAllString(string(script), -1))
}
