package policy_test

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dispatchthrottle/throttle/policy"
)

func entry(t testing.TB, scope string, p policy.Policy) policy.Entry {
	s, err := policy.ParseScope(scope)
	require.NoError(t, err)
	return policy.Entry{Scope: s, Settings: p}
}

func rate(n int64) policy.Policy { return policy.Policy{MessageRate: policy.PerSecond(n)} }

var orders = policy.Topic{Scheme: "kafka", Tenant: "public", Namespace: "default", Name: "orders"}

func TestResolveFieldByField(t *testing.T) {
	set, err := policy.NewSet([]policy.Entry{
		entry(
			t, "kafka://public/default/orders?subscription=billing",
			policy.Policy{
				MessageRate: policy.PerSecond(7), CaughtUp: policy.CaughtUp{Backlog: new(int64(7))},
			},
		),
		entry(t, "kafka://public/default/orders", policy.Policy{Burst: new(int64(6))}),
		entry(
			t, "pattern:orders$",
			policy.Policy{ByteRate: policy.PerSecond(5), Mode: policy.Shadow, Priority: new(1)},
		),
		entry(
			t, "pattern:^kafka://public/",
			policy.Policy{ByteRate: policy.PerSecond(4), OnOutage: policy.OutageStop},
		),
		entry(t, "public/east/default", policy.Policy{MessageRate: policy.PerSecond(3)}),
		entry(
			t, "public/default",
			policy.Policy{MessageRate: policy.PerSecond(2), Round: policy.Duration(time.Second)},
		),
		entry(
			t, "cluster",
			policy.Policy{MessageRate: policy.PerSecond(1), CaughtUp: policy.CaughtUp{Throttle: new(true)}},
		),
	})
	require.NoError(t, err)

	want := policy.Policy{
		MessageRate: policy.PerSecond(3), ByteRate: policy.PerSecond(5), Burst: new(int64(6)),
		Mode:     policy.Shadow,
		OnOutage: policy.OutageStop, Round: policy.Duration(time.Second),
		CaughtUp: policy.CaughtUp{Throttle: new(true)},
	}
	got := set.Explain("east", orders, "billing")
	assert.Equal(t, want, got.Topic)
	own := policy.Overlay(
		policy.Without(want, "byteRate", "burst"),
		policy.Policy{
			MessageRate: policy.PerSecond(7), CaughtUp: policy.CaughtUp{Backlog: new(int64(7))},
		},
	)
	assert.Equal(t, own, got.Subscription)
	sources := make(map[string]string)
	for field, scope := range got.Sources {
		sources[field] = scope.String()
	}
	assert.Equal(t, map[string]string{
		"messageRate":              "public/east/default",
		"subscription.messageRate": "kafka://public/default/orders?subscription=billing",
		"byteRate":                 "pattern:orders$", "mode": "pattern:orders$",
		"burst":    "kafka://public/default/orders",
		"onOutage": "pattern:^kafka://public/", "round": "public/default", "caughtUp.throttle": "cluster",
		"caughtUp.backlog": "kafka://public/default/orders?subscription=billing",
	}, sources)

	assert.Equal(t, int64(2), set.Resolve("west", orders, "billing").Topic.MessageRate.Permits)
	assert.Equal(t, policy.Rate{}, set.Resolve("west", orders, "other").Subscription.MessageRate)
	other := policy.Topic{Scheme: "persistent", Tenant: "x", Namespace: "y", Name: "z"}
	assert.Equal(
		t,
		policy.Policy{MessageRate: policy.PerSecond(1), CaughtUp: policy.CaughtUp{Throttle: new(true)}},
		set.Resolve("east", other, "billing").Topic,
	)
}

func TestV1NamesObeyTheOverrideOfTheirCluster(t *testing.T) {
	set, err := policy.NewSet([]policy.Entry{entry(t, "public/standalone/default", rate(500))})
	require.NoError(t, err)
	topic, err := policy.ParseTopic("persistent://public/standalone/default/orders")
	require.NoError(t, err)
	assert.Equal(t, policy.PerSecond(500), set.Resolve("standalone", topic, "s").Topic.MessageRate)
	assert.Zero(t, set.Resolve("other", topic, "s").Topic.MessageRate)
}

func TestTemporaryEntriesLieOverThePermanentOne(t *testing.T) {
	permanent := entry(
		t, "cluster", policy.Policy{MessageRate: policy.PerSecond(1), Burst: new(int64(1))},
	)
	paused := policy.Entry{
		Temporary: true, Expires: time.Unix(10, 0), Settings: policy.Policy{Paused: new(true)},
	}
	faster := policy.Entry{Temporary: true, Expires: time.Unix(20, 0), Settings: rate(9)}
	set, err := policy.NewSet([]policy.Entry{faster, paused, permanent})
	require.NoError(t, err)
	got := set.Resolve("", orders, "").Topic
	assert.Equal(
		t, policy.Policy{MessageRate: policy.PerSecond(9), Burst: new(int64(1)), Paused: new(true)}, got,
	)

	snapshot := policy.Snapshot{Set: set, Revision: 7000}
	assert.Equal(t, time.Unix(10, 0), set.NextEnd())
	assert.Equal(t, snapshot, snapshot.At(time.Unix(10, -1)))
	later := snapshot.At(time.Unix(10, 0))
	assert.False(t, later.Set.Resolve("", orders, "").Topic.IsPaused())
	assert.Len(t, later.Set.Entries(), 2)
	assert.Equal(t, int64(7001), later.Revision)
	assert.Equal(t, time.Unix(20, 0), later.Set.NextEnd())
	assert.Len(t, set.Entries(), 3, "a set never changes")

	last := later.At(time.Unix(20, 0))
	assert.Equal(t, snapshot.At(time.Unix(20, 0)), last, "however often it is asked for")
	assert.Equal(t, int64(7002), last.Revision)
	assert.Zero(t, last.Set.NextEnd())
}

func TestWhatEndsTogetherIsOneRevision(t *testing.T) {
	end := time.Unix(10, 0)
	set, err := policy.NewSet([]policy.Entry{
		{Temporary: true, Expires: end, Field: "paused", Settings: policy.Policy{Paused: new(true)}},
		{Temporary: true, Expires: end.UTC(), Field: "messageRate", Settings: rate(9)},
	})
	require.NoError(t, err)
	assert.Equal(t, int64(2), policy.Snapshot{Set: set, Revision: 1}.At(end).Revision)
}

func TestPatternsInOrder(t *testing.T) {
	set, err := policy.NewSet([]policy.Entry{
		entry(t, "pattern:orders", rate(1)),
		entry(t, "pattern:/orders", rate(2)), // longer
		entry(t, "pattern:o", policy.Policy{ByteRate: policy.PerSecond(3), Priority: new(1)}),
	})
	require.NoError(t, err)
	got := set.Resolve("", orders, "").Topic
	assert.Equal(
		t, policy.Policy{MessageRate: policy.PerSecond(2), ByteRate: policy.PerSecond(3)}, got,
	)
}

func TestBadPatternsAndTies(t *testing.T) {
	a, b := entry(t, "pattern:a.", rate(1)), entry(t, "pattern:b.", rate(2))
	bad := policy.Entry{Scope: policy.PatternScope("("), Settings: rate(3)}
	set, err := policy.NewSet([]policy.Entry{b, bad, a})
	assert.Equal(t, []string{"scope.pattern"}, fields(err.(interface{ Unwrap() []error }).Unwrap()[0]))
	both := policy.Topic{Scheme: "kafka", Tenant: "a", Namespace: "b", Name: "c"}
	got := set.Resolve("", both, "")
	assert.Equal(t, int64(1), got.Topic.MessageRate.Permits, "the first text wins")
	require.Len(t, got.Ties, 1, "the one that is met")
	assert.Equal(t, policy.TieError{A: a.Scope, B: b.Scope, Topic: "kafka://a/b/c"}, *got.Ties[0])
	assert.Empty(
		t,
		set.Resolve("", policy.Topic{Scheme: "kafka", Tenant: "a", Namespace: "x", Name: "c"}, "").Ties,
	)
}

func TestTies(t *testing.T) {
	all := func(policy.Scope) bool { return true }
	ties := func(among func(policy.Scope) bool, entries ...policy.Entry) (found []string) {
		set, err := policy.NewSet(entries)
		require.NoError(t, err)
		for _, tie := range set.Ties(among) {
			found = append(found, tie.A.Pattern+" "+tie.B.Pattern+" "+tie.Topic)
		}
		return found
	}
	a, b := entry(t, "pattern:a.", rate(1)), entry(t, "pattern:b.", rate(2))
	c := entry(t, "pattern:^X", rate(3))
	assert.Equal(t, []string{"a. b. kafka://a/b/a"}, ties(all, a, b, c))
	assert.Empty(t, ties(func(s policy.Scope) bool { return s == c.Scope }, a, b, c))
	assert.Empty(
		t,
		ties(all, entry(t, "pattern:^kafka://aa/", rate(1)), entry(t, "pattern:^kafka://bb/", rate(1))),
	)
	assert.Equal(t, []string{"(?:a|b){490}c$ (?:a|b){490}d$ "}, ties(all,
		entry(t, "pattern:(?:a|b){490}c$", rate(1)),
		entry(t, "pattern:(?:a|b){490}d$", rate(1))), "undecided")
	b.Settings = policy.Policy{MessageRate: policy.PerSecond(2), Priority: new(1)}
	assert.Empty(t, ties(all, a, b))
	var many []policy.Entry
	for i := range 2000 {
		many = append(many, entry(t, fmt.Sprintf("pattern:^kafka://tenant-%04d/", i), rate(1)))
	}
	assert.Empty(t, ties(all, many...), "and it does not take long")
}

// TestResolveAgainstModel compares with the sentence: the most specific scope that sets a field
// wins.
func TestResolveAgainstModel(t *testing.T) {
	scopes := []string{
		"cluster", "public/default", "public/east/default", "public/other", "pattern:orders",
		"pattern:ders", "pattern:nothing",
		"kafka://public/default/orders", "kafka://public/default/x",
	}
	rapid.Check(t, func(rt *rapid.T) {
		var entries []policy.Entry
		for _, scope := range scopes {
			if rapid.Bool().Draw(rt, scope) {
				p := anyPolicy(rt, scope, false)
				if !strings.HasPrefix(scope, "pattern:") {
					p.Priority = nil
				}
				entries = append(entries, entry(t, scope, p))
			}
		}
		set, err := policy.NewSet(rapid.Permutation(entries).Draw(rt, "order"))
		require.NoError(rt, err) // the lengths differ
		matching := slices.DeleteFunc(slices.Clone(entries), func(e policy.Entry) bool {
			s := e.Scope
			switch s.Kind {
			case policy.ClusterKind:
				return false
			case policy.NamespaceKind:
				return s.Namespace != "default"
			case policy.PatternKind:
				return !regexp.MustCompile(s.Pattern).MatchString(orders.String())
			}
			return s.Topic != orders
		})
		rank := func(e policy.Entry) int {
			n := int(e.Scope.Kind) * 1_000_000
			if p := e.Policy(); p.Priority != nil {
				n += *p.Priority * 100
			}
			return n + len(e.Scope.Pattern) + len(e.Scope.Cluster)
		}
		slices.SortFunc(matching, func(a, b policy.Entry) int { return cmp.Compare(rank(b), rank(a)) })
		got := set.Explain("east", orders, "none")
		assert.Equal(rt, got.Topic, set.Resolve("east", orders, "none").Topic)
		for _, f := range policy.PolicySection.Fields() {
			field := f.Name
			i := slices.IndexFunc(matching, func(e policy.Entry) bool {
				return policy.Text(e.Settings, field) != ""
			})
			if field == "priority" || i < 0 {
				assert.Empty(rt, policy.Text(got.Topic, field))
				assert.NotContains(rt, got.Sources, field)
				continue
			}
			assert.Equal(rt, policy.Text(matching[i].Settings, field), policy.Text(got.Topic, field))
			assert.Equal(rt, matching[i].Scope, got.Sources[field], field)
		}
	})
}

func TestAggregates(t *testing.T) {
	yes, no := new(true), new(false)
	set, err := policy.NewSet([]policy.Entry{
		entry(
			t, "cluster",
			policy.Policy{MessageRate: policy.PerSecond(100), Round: policy.Duration(time.Second)},
		),
		entry(
			t, "tenant:public",
			policy.Policy{MessageRate: policy.PerSecond(5000), OnOutage: policy.OutageStop},
		),
		entry(
			t, "public/default",
			policy.Policy{
				MessageRate: policy.PerSecond(1000), ByteRate: policy.PerSecond(9), Aggregate: yes,
				Mode: policy.Shadow,
			},
		),
		entry(t, "public/east/default", policy.Policy{MessageRate: policy.PerSecond(700)}),
		entry(t, "public/west/default", policy.Policy{MessageRate: policy.PerSecond(300), Aggregate: no}),
	})
	require.NoError(t, err)
	tenant := policy.Aggregate{Scope: policy.TenantScope("public"), Policy: policy.Policy{
		MessageRate: policy.PerSecond(5000), OnOutage: policy.OutageStop,
		Round: policy.Duration(time.Second),
	}}
	namespace := policy.NamespaceScope("public", "", "default")
	space := policy.Aggregate{Scope: namespace, Policy: policy.Policy{
		MessageRate: policy.PerSecond(700), ByteRate: policy.PerSecond(9),
		Round: policy.Duration(time.Second), Aggregate: yes, Mode: policy.Shadow,
	}, Modes: policy.Modes{Bytes: policy.LimitMode{Mode: policy.Shadow, By: namespace}}}
	got := set.Explain("east", orders, "billing")
	assert.Equal(t, []policy.Aggregate{tenant, space}, got.Aggregates)
	assert.Equal(t, policy.Policy{
		MessageRate: policy.PerSecond(100), Round: policy.Duration(time.Second), Mode: policy.Shadow,
	}, got.Topic,
		"the rates of an aggregate are no topic's own")
	assert.Equal(t, policy.ClusterScope(), got.Sources["messageRate"])

	got = set.Resolve("west", orders, "billing")
	assert.Equal(t, []policy.Aggregate{tenant}, got.Aggregates, "one namespace's override is plain")
	assert.Equal(t, int64(300), got.Topic.MessageRate.Permits)
	assert.Equal(t, int64(9), got.Topic.ByteRate.Permits)
}

func TestSnapshotRoundTrip(t *testing.T) {
	set, err := policy.NewSet([]policy.Entry{
		entry(t, "cluster", rate(1)),
		{
			Temporary: true, Field: "messageRate", Expires: time.Unix(100, 0).UTC(), Settings: rate(2),
			Revision: 3,
		},
		{Scope: orders2(), Settings: rate(4), Err: errors.New("bad data")},
		{Scope: policy.Scope{Kind: policy.UnreadableKind, Pattern: "%%%"}, Err: errors.New("no scope")},
		{Scope: policy.TagScope("bulk"), Settings: policy.Quota{Total: new(int64(5))}},
		{Settings: policy.QuotaSettings{Zones: []string{"a"}}},
	})
	require.NoError(t, err)
	data, err := policy.MarshalSnapshot(
		policy.Snapshot{Set: set, Identity: "etcd:1/throttle", Revision: 42},
	)
	require.NoError(t, err)
	got, err := policy.UnmarshalSnapshot(data)
	require.NoError(t, err)
	assert.Equal(t, policy.Snapshot{Set: set, Identity: "etcd:1/throttle", Revision: 42}, got)

	for _, bad := range []string{
		"", "{}",
		`{"schema":2,"entries":[{"section":"policies","scope":"cluster","settings":{}}]}`,
		`{"schema":2,"entries":[{"section":"x","scope":"cluster","settings":{"schema":2}}]}`,
		`{"schema":1}`,
	} {
		_, err := policy.UnmarshalSnapshot([]byte(bad))
		assert.Error(t, err, bad)
	}
	got, err = policy.UnmarshalSnapshot([]byte(`{"schema":2,"entries":[
		{"section":"policies","scope":"?","settings":{"schema":2}},
		{"section":"policies","scope":"cluster","settings":{"schema":2,"paused":true}}]}`))
	require.NoError(t, err)
	assert.NoError(t, got.Set.Entries()[0].Err, "the others are of use")
	assert.ErrorAs(t, got.Set.Entries()[1].Err, new(*policy.FieldError))
	_, err = policy.UnmarshalSnapshot([]byte(`{"schema":9}`))
	assert.ErrorAs(t, err, new(*policy.SchemaError))
}

func orders2() policy.Scope { return policy.TopicScope(orders) }

func BenchmarkResolve10kTopics(b *testing.B) {
	entries := []policy.Entry{
		entry(b, "cluster", rate(1)), entry(b, "public/default", rate(2)),
		entry(b, "pattern:^kafka://public/.*/audit-", rate(3)),
	}
	for i := range 10_000 {
		entries = append(entries, entry(b, fmt.Sprintf("kafka://public/default/topic-%d", i), rate(4)))
	}
	set, err := policy.NewSet(entries)
	require.NoError(b, err)
	topic := policy.Topic{Scheme: "kafka", Tenant: "public", Namespace: "default", Name: "topic-77"}
	b.ReportAllocs()
	for b.Loop() {
		set.Resolve("standalone", topic, "group")
	}
}

func BenchmarkNewSet10kTopics(b *testing.B) {
	var entries []policy.Entry
	for i := range 10_000 {
		entries = append(entries, entry(b, fmt.Sprintf("kafka://public/default/topic-%d", i), rate(4)))
	}
	b.ReportAllocs()
	for b.Loop() {
		_, _ = policy.NewSet(entries)
	}
}

func ExampleSet_Resolve() {
	scope, _ := policy.ParseScope("public/default")
	topic, _ := policy.ParseTopic("kafka://public/default/orders")
	set, _ := policy.NewSet([]policy.Entry{
		{Settings: policy.Policy{MessageRate: policy.PerSecond(1000), Burst: new(int64(10))}}, // cluster
		{Scope: scope, Settings: policy.Policy{MessageRate: policy.PerSecond(500)}},
	})
	got := set.Resolve("standalone", topic, "billing").Topic
	fmt.Println(got.MessageRate, *got.Burst)
	// Output: 500/s 10
}

// TestSubscriptionsInheritNoLimits: a subscription inherits what is no limit by itself. Resolve and
// the table of fields say so independently of each other.
func TestSubscriptionsInheritNoLimits(t *testing.T) {
	sample := func(field string) policy.Settings {
		for _, text := range []string{
			"true", "5", "1s", "busy", "0.2", "shadow", "stop", "queue", "strict", "none",
		} {
			if s, err := policy.PolicySection.ParseField(field, text); err == nil {
				return s
			}
		}
		t.Fatalf("no sample for %s", field)
		return nil
	}
	own := policy.SubscriptionScope(orders, "billing")
	limits := 0
	for _, f := range policy.PolicySection.Fields() {
		if !slices.Contains(f.Scopes, policy.SubscriptionKind) {
			continue
		}
		settings := sample(f.Name)
		ofTopic, err := policy.NewSet([]policy.Entry{
			{Scope: policy.TopicScope(orders), Settings: settings},
		})
		require.NoError(t, err, f.Name)
		inherited := policy.Text(ofTopic.Resolve("", orders, "billing").Subscription, f.Name) != ""
		ofSubscription, err := policy.NewSet([]policy.Entry{{Scope: own, Settings: settings}})
		require.NoError(t, err, f.Name)
		_, isLimit := ofSubscription.Explain("", orders, "billing").Sources["subscription."+f.Name]
		assert.Equal(t, isLimit, !inherited, f.Name)
		if isLimit {
			limits++
		}
	}
	assert.Equal(t, 4, limits, "rates and bursts")
}
