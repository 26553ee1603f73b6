package doctor

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/internal/etcdclient"
	"github.com/dispatchthrottle/throttle/internal/role"
	"github.com/dispatchthrottle/throttle/policy"
)

// sound are facts without a finding.
func sound(entries ...policy.Entry) *facts {
	set, _ := policy.NewSet(entries)
	return &facts{
		cluster: "standalone", now: time.Now(), set: set,
		snapshot: configstore.Snapshot{
			Entries: entries, Revision: 5000, Applied: 5000, Marker: configstore.Marker{ID: "a", Epoch: 1},
		},
		stores: []store{
			{name: "policy store", flag: "--policies", etcd: &etcdclient.Health{
				Members: []etcdclient.Member{{Endpoint: "127.0.0.1:2379", InUse: 1 << 20, Quota: 1 << 31}}, Revision: 7,
			}},
			{name: "permit store", flag: "--permits", redis: []redispermits.Server{
				{Address: "127.0.0.1:6379", Version: "7.2.4", Eviction: "noeviction", AppendOnly: true},
			}},
		},
		replicas: []dispatch.Stats{{Replica: "r", Version: "v1", Identity: "a", Revision: 5000}},
	}
}

// TestChecks: what cannot be planted quickly in real servers.
func TestChecks(t *testing.T) {
	require.Empty(t, sound().report().Findings)
	orders := policy.Topic{Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: "orders"}
	for _, c := range []struct {
		check string
		spoil func(*facts)
	}{
		{"etcd-alarm", func(f *facts) { f.stores[0].etcd.Members[0].Alarms = []string{"alarm:NOSPACE"} }},
		{"etcd-space", func(f *facts) { f.stores[0].etcd.Members[0].InUse = 1800 << 20 }},
		{"etcd-member", func(f *facts) { f.stores[0].etcd.Members[0].Err = errors.New("connection refused") }},
		{"etcd-compaction", func(f *facts) { f.stores[0].etcd.Uncompacted = true }},
		{"etcd-unknown", func(f *facts) { f.stores[0].etcdErr = errors.New("permission denied") }},
		{"redis-unknown", func(f *facts) { f.stores[1].redisErr = errors.New("NOPERM") }},
		{"redis-version", func(f *facts) { f.stores[1].redis[0].Version = "6.2.1" }},
		{"store-slow", func(f *facts) { f.stores[1].p50 = 60 * time.Millisecond }},
		{"store-unreachable", func(f *facts) { f.stores[0].err = errors.New("refused") }},
		{"rights", func(f *facts) { f.stores[1].err = role.Denied(errors.New("NOPERM"), role.Redis, "") }},
		{"clock", func(f *facts) { f.stores[1].offset = -2 * time.Second }},
		{"clock", func(f *facts) { f.replicas[0].Time = f.now.Add(-40 * time.Second).UnixMilli() }},
		{"two-policy-stores", func(f *facts) { f.replicas[0].Rivals = []string{"b"} }},
		{"replica-policies", func(f *facts) { f.replicas[0].PolicyError = "refused" }},
		{"replica-slow", func(f *facts) { f.replicas[0].Permits = dispatch.PermitStoreStats{Slow: true, Latency: 0.2} }},
		{"damage", func(f *facts) { f.replicas[0].Permits.Damaged = 2 }},
		{"store-not-followed", func(f *facts) { f.snapshot.Marker.Count = 3 }},
		{"over-committed", func(f *facts) {
			*f = *sound(
				policy.Entry{Scope: policy.TagScope("a"), Settings: policy.Quota{Reserved: new(int64(20)), Total: new(int64(20))}},
				policy.Entry{Settings: policy.QuotaSettings{Capacity: new(int64(10))}},
			)
		}},
		{"never-reached", func(f *facts) {
			*f = *sound(
				policy.Entry{Scope: policy.TenantScope("public"), Settings: policy.Policy{MessageRate: policy.PerSecond(10)}},
				policy.Entry{Scope: policy.TopicScope(orders), Settings: policy.Policy{MessageRate: policy.PerSecond(10)}},
			)
		}},
		{"never-reached", func(f *facts) { // of bytes; no limit is wider than that of messages
			*f = *sound(
				policy.Entry{Scope: policy.TenantScope("public"), Settings: policy.Policy{ByteRate: policy.PerSecond(500)}},
				policy.Entry{Scope: policy.TopicScope(orders), Settings: policy.Policy{
					ByteRate: policy.PerSecond(600), MessageRate: policy.PerSecond(700),
				}},
			)
		}},
		{"never-reached", func(f *facts) {
			*f = *sound(
				policy.Entry{Scope: policy.TopicScope(orders), Settings: policy.Policy{ByteRate: policy.PerSecond(1000)}},
				policy.Entry{Scope: policy.SubscriptionScope(orders, "billing"), Settings: policy.Policy{
					ByteRate: policy.PerSecond(5000),
				}},
			)
		}},
		{"other-policies", func(f *facts) { f.replicas[0].Identity = "b" }},
		{"status-unreadable", func(f *facts) { f.stores[1].recordsErr = errors.New("a record of version 9") }},
		{"history", func(f *facts) { f.historyErr = errors.New("the head is damaged") }},
		{"ends-soon", func(f *facts) {
			*f = *sound(policy.Entry{
				Settings:  policy.QuotaSettings{Capacity: new(int64(10))},
				Temporary: true, Field: "capacity", Expires: f.now.Add(time.Minute),
			})
		}},
	} {
		f := sound()
		c.spoil(f)
		found := f.report().Findings
		if assert.Len(t, found, 1, "%s: %+v", c.check, found) {
			assert.Equal(t, c.check, found[0].Check)
			assert.NotEmpty(t, found[0].Mend)
		}
	}
}

// TestSound: what looks like a fault and is none has no finding.
func TestSound(t *testing.T) {
	limit := func(scope policy.Scope, rate, burst int64) policy.Entry {
		return policy.Entry{Scope: scope, Settings: policy.Policy{
			MessageRate: policy.PerSecond(rate), Burst: new(burst),
		}}
	}
	orders := policy.TopicScope(policy.Topic{
		Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: "orders",
	})
	public, standard := policy.TenantScope("public"), policy.NamespaceScope("public", "", "default")
	together := policy.Entry{Scope: standard, Settings: policy.Policy{
		MessageRate: policy.PerSecond(20), Burst: new(int64(20)), Aggregate: new(true),
	}}
	pattern := policy.PatternScope("kafka://public/default/x*")
	idle := dispatch.Stats{Replica: "idle", Version: "v1", Identity: "a", Revision: 5000}
	for name, f := range map[string]*facts{
		"a wider scope may throttle other topics": sound(limit(public, 10, 10), together, limit(orders, 5, 5)),
		"a smaller burst is reached":              sound(limit(public, 10, 10), limit(orders, 20, 5)),
		"a lower rate is reached":                 sound(limit(public, 10, 10), limit(orders, 5, 20)),
		"a smaller burst of bytes is reached": sound(
			policy.Entry{Scope: public, Settings: policy.Policy{
				ByteRate: policy.PerSecond(10), ByteBurst: new(int64(10)),
			}},
			policy.Entry{Scope: orders, Settings: policy.Policy{
				ByteRate: policy.PerSecond(20), ByteBurst: new(int64(5)),
			}},
		),
		"the topics of idle replicas are not known": func() *facts {
			f := sound(limit(pattern, 10, 10))
			f.replicas[0].Subscriptions = []dispatch.SubscriptionStats{{Topic: "kafka://public/default/y", Subscription: "s"}}
			f.replicas = append(f.replicas, idle)
			return f
		}(),
		"an idle replica publishes seldom": func() *facts {
			f := sound()
			f.replicas = []dispatch.Stats{idle}
			f.replicas[0].Revision, f.replicas[0].Time = 4000, f.now.Add(-20*time.Second).UnixMilli()
			return f
		}(),
	} {
		assert.Empty(t, f.report().Findings, name)
	}
}

// TestUnusedPatterns: a topic counts once, however many of its subscriptions are known.
func TestUnusedPatterns(t *testing.T) {
	f := sound(policy.Entry{
		Scope: policy.PatternScope("^kafka://public/default/x"), Settings: policy.Policy{MessageRate: policy.PerSecond(10)},
	})
	for _, topic := range []string{"a", "b"} {
		for _, subscription := range []string{"billing", "audit"} {
			f.replicas[0].Subscriptions = append(f.replicas[0].Subscriptions, dispatch.SubscriptionStats{
				Topic: "kafka://public/default/" + topic, Subscription: subscription,
			})
		}
	}
	found := f.report().Findings
	require.Len(t, found, 1, "%+v", found)
	assert.Equal(t, "pattern-unused", found[0].Check)
	assert.Equal(t, "it matches none of 2 topics that policies or running replicas name", found[0].Seen)
}

// TestMends: commands that do what is needed, and no harm.
func TestMends(t *testing.T) {
	held := func(entries ...policy.Entry) *facts {
		f := sound(entries...)
		f.replicas[0].PoliciesHeld, f.replicas[0].PolicyError = true, "it is another one"
		return f
	}
	for want, f := range map[string]*facts{
		"right one: throttle-admin adopt --yes --id a": held(policy.Entry{
			Scope: policy.TenantScope("public"), Settings: policy.Policy{MessageRate: policy.PerSecond(10)},
		}),
		"is to be empty: throttle-admin adopt --empty --yes --id a":      held(),
		"with --permits '', and then: throttle-admin adopt --yes --id a": held(),
		"--empty --yes --id interim; throttle-admin apply -f FILE; throttle-admin adopt --yes --id a; or, if": func() *facts {
			f := sound()
			f.snapshot.Marker.Count = 1
			return f
		}(),
		"or set all in one change: throttle-admin apply -f FILE --permits ''; or, if": func() *facts {
			f := held()
			f.replicas[0].Identity = ""
			return f
		}(),
		"see its log; replace the member if its data are damaged": func() *facts {
			f := sound()
			f.stores[0].etcd.Members[0].Alarms = []string{"alarm:CORRUPT"}
			return f
		}(),
		"redis-cli -h ::1 -p 6379 CONFIG SET appendonly yes": func() *facts {
			f := sound()
			f.stores[1].redis[0].Address, f.stores[1].redis[0].AppendOnly = "[::1]:6379", false
			return f
		}(),
	} {
		found := f.report().Findings
		if assert.Len(t, found, 1, "%s: %+v", want, found) {
			assert.Contains(t, found[0].Mend, want)
		}
	}
}

// BenchmarkChecks: 10,000 policies, and 1,000 replicas with ten subscriptions each.
func BenchmarkChecks(b *testing.B) {
	var entries []policy.Entry
	for i := range 10_000 {
		topic := policy.Topic{Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: fmt.Sprintf("t%05d", i)}
		entries = append(entries, policy.Entry{
			Scope: policy.TopicScope(topic), Settings: policy.Policy{MessageRate: policy.PerSecond(5)}, Revision: 1000,
		})
	}
	f := sound(entries...)
	f.replicas = nil
	for i := range 1000 {
		r := dispatch.Stats{Replica: fmt.Sprint("r", i), Version: "v1", Identity: "a", Revision: 5000}
		for j := range 10 {
			r.Subscriptions = append(r.Subscriptions, dispatch.SubscriptionStats{
				Topic: fmt.Sprintf("kafka://public/default/t%05d", (10*i+j)%10_000), Subscription: "billing",
			})
		}
		f.replicas = append(f.replicas, r)
	}
	for b.Loop() {
		if found := f.report().Findings; len(found) > 0 {
			b.Fatalf("%+v", found[0])
		}
	}
}

// TestMendOfWeights: what somebody has to decide comes before the command, so that nobody takes the
// whole for one; names are quoted.
func TestMendOfWeights(t *testing.T) {
	orders := policy.Topic{Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: "orders"}
	pattern, err := policy.ParseScope("pattern:^kafka://public/default/o(>x; touch x|rders)$")
	require.NoError(t, err)
	weight := policy.Policy{MessageRate: policy.PerSecond(10), Weight: new(2.0)}
	weight.Sharing.Mode = policy.Strict
	both, reserved := weight, policy.Policy{Reserved: policy.PerSecond(5)}
	both.Reserved = reserved.Reserved
	clear := "throttle-admin set " + orders.String() + " weight="
	for mend, settings := range map[string][2]policy.Policy{
		clear + " reserved=": {both, {}},
		"decide whether reserved of 'pattern:^kafka://public/default/o(>x; touch x|rders)$' " +
			"is meant for this topic, too; " + clear: {weight, reserved},
	} {
		found := sound(
			policy.Entry{Scope: policy.TopicScope(orders), Settings: settings[0]}, policy.Entry{Scope: pattern, Settings: settings[1]},
		).ignoredWeights()
		require.Len(t, found, 1)
		assert.Equal(t, mend, found[0].Mend)
	}
}
