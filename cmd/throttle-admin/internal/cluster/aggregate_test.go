package cluster_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
)

// together returns a subscription that has used n permits of a limit of 100/s and m of one of its
// namespace, of 500/s.
func together(topic, name string, n, m int64) dispatch.SubscriptionStats {
	s := used(topic, name, n)
	s.Limits = append(s.Limits, dispatch.LimitStats{
		Key:    permits.LimitKey("eu", policy.NamespaceScope("public", "", "default"), false),
		Reason: dispatch.ReasonNamespaceMessages, Rate: 500, Granted: m,
	})
	return s
}

// publishEU adds the record of a replica of the cluster eu.
func publishEU(st *cluster.State, replica string, seconds float64, subs ...dispatch.SubscriptionStats) {
	add(st, dispatch.Stats{Replica: replica, Cluster: "eu", Time: at(seconds).UnixMilli(), Subscriptions: subs}, at(seconds))
}

// TestAggregates: a limit of a namespace has what all of its topics use of it.
func TestAggregates(t *testing.T) {
	st := cluster.NewState()
	now := 0.0
	overview := func(filter string) cluster.Overview {
		st.Tick(at(now), nil)
		return st.Overview(cluster.Query{Filter: filter, Size: 10}, at(now))
	}
	assert.Empty(t, overview("").Aggregates)
	publishEU(st, "a", now, together(orders, "billing", 0, 0), together(events, "search", 0, 0), used("kafka://shop/web/clicks", "s", 0))
	publishEU(st, "b", now, together(orders, "billing", 0, 0))
	all := overview("")
	require.Len(t, all.Aggregates, 1)
	assert.Equal(t, 1, all.MatchingAggregates)
	a := all.Aggregates[0]
	assert.Equal(t, "public/default", a.Scope)
	assert.Equal(t, "://public/default/", a.Filter)
	assert.Len(t, overview(a.Filter).Rows, 2, "the topics that have it")
	assert.Len(t, overview(a.Filter).Aggregates, 1)
	assert.Equal(t, cluster.Limit{Reason: dispatch.ReasonNamespaceMessages, Rate: 500}, a.Limit)
	assert.Equal(t, 2, a.Topics)
	assert.Equal(t, 2, a.Unknown)
	assert.False(t, a.Rate.Known(), "one record is no rate")

	now = 1
	waits := together(orders, "billing", 50, 50)
	waits.Waiting, waits.Reason = 7, dispatch.ReasonNamespaceMessages
	others := together(events, "search", 30, 30)
	others.Waiting, others.Reason = 9, dispatch.ReasonMessages // for its topic's limit
	caughtUp := together(events, "copy", 0, 0)
	publishEU(st, "a", now, waits, others, caughtUp, used("kafka://shop/web/clicks", "s", 70))
	publishEU(st, "b", now, together(orders, "billing", 20, 20))
	a = overview("DEFAULT").Aggregates[0]
	assert.Equal(t, 1, a.Unknown, "a subscription of events has one record")
	assert.EqualValues(t, 70, a.Rate, "of the topics whose rate is known")
	assert.Equal(t, 7, a.Waiting)
	assert.Equal(t, 1, a.Throttled)
	assert.Equal(t, cluster.Throttled, a.Condition)

	now = 1.5
	waits, others = together(orders, "billing", 75, 75), together(events, "search", 45, 45)
	waits.Waits = map[dispatch.Reason]int64{dispatch.ReasonNamespaceMessages: 1, dispatch.ReasonMessages: 9}
	others.Waits = map[dispatch.Reason]int64{dispatch.ReasonMessages: 9}
	publishEU(st, "a", now, waits, others, caughtUp)
	a = overview("").Aggregates[0]
	assert.Zero(t, a.Waiting)
	assert.Equal(t, 1, a.Throttled, "a call has waited since the last record, though none waits now")
	assert.Equal(t, cluster.Throttled, a.Condition)

	now = 2
	bypassed := together(events, "late", 0, 0) // has no rate, and nothing is charged to it
	bypassed.Limits[1].Bypassed = true
	again := together(orders, "billing", 100, 100)
	again.Waits = waits.Waits
	publishEU(st, "a", now, again, together(events, "search", 60, 60), caughtUp, bypassed)
	publishEU(st, "b", now, together(orders, "billing", 40, 40))
	a = overview("").Aggregates[0]
	assert.EqualValues(t, 100, a.Rate)
	assert.Zero(t, a.Unknown+a.Waiting+a.Throttled)
	assert.Equal(t, cluster.Flowing, a.Condition)
	assert.Empty(t, overview("orders").Aggregates, "the limit is not that of one topic")

	st.Present([]string{"b"}, at(now))
	a = overview("").Aggregates[0]
	assert.EqualValues(t, 20, a.Rate, "what a replica had that publishes no more is not counted")
	assert.Equal(t, 1, a.Topics)
	st.Present(nil, at(now))
	assert.Empty(t, overview("").Aggregates)
}

// TestAggregateWaits: what counts are the calls that have waited between two records, and only
// those of a subscription that is still published.
func TestAggregateWaits(t *testing.T) {
	st := cluster.NewState()
	throttled := func(seconds float64, subs ...dispatch.SubscriptionStats) int {
		publishEU(st, "a", seconds, subs...)
		st.Tick(at(seconds), nil)
		return st.Overview(cluster.Query{}, at(seconds)).Aggregates[0].Throttled
	}
	waited := func(n int64) dispatch.SubscriptionStats {
		s := together(orders, "billing", 0, 0)
		s.Waits = map[dispatch.Reason]int64{dispatch.ReasonNamespaceMessages: n}
		return s
	}
	assert.Zero(t, throttled(0, waited(5)), "it is unknown when these were")
	assert.Equal(t, 1, throttled(1, waited(6)))
	assert.Zero(t, throttled(2, waited(6)))
	assert.Equal(t, 1, throttled(3, waited(7)))
	assert.Zero(t, throttled(4), "the record has it no more")
}

// TestAggregatesDiffer: while some replicas have the next limit and some have the last one, the
// lowest is shown, whichever is read first; one in shadow mode only if all are.
func TestAggregatesDiffer(t *testing.T) {
	for range 20 { // maps have another order each time
		st := cluster.NewState()
		for seconds := range 2 {
			for i, rate := range []float64{900, 500, 700, 800, 600} {
				s := together(fmt.Sprintf("kafka://public/default/t%d", i/3), "billing", 0, 0)
				s.Limits[1].Rate, s.Limits[1].Shadow = rate, rate == 500
				publishEU(st, fmt.Sprint(i), float64(seconds), s)
			}
		}
		st.Tick(at(1), nil)
		o := st.Overview(cluster.Query{}, at(1))
		require.Len(t, o.Aggregates, 1)
		assert.Equal(t, cluster.Limit{Reason: dispatch.ReasonNamespaceMessages, Rate: 600}, o.Aggregates[0].Limit)
		assert.Equal(t, cluster.Idle, o.Aggregates[0].Condition)
	}
}

// TestManyAggregates: those are listed first that most calls wait for, then those that calls have
// waited for, in an order that stands still.
func TestManyAggregates(t *testing.T) {
	st := cluster.NewState()
	var subs []dispatch.SubscriptionStats
	for i := range 30 {
		name := fmt.Sprintf("ns%02d", i)
		s := used("kafka://public/"+name+"/t", "billing", 0)
		s.Limits = append(s.Limits, dispatch.LimitStats{
			Key:    permits.LimitKey("eu", policy.NamespaceScope("public", "", name), true),
			Reason: dispatch.ReasonNamespaceBytes, Rate: 1e6,
		})
		subs = append(subs, s)
	}
	publishEU(st, "a", 0, subs...)
	for i, waiting := range map[int]int{28: 300, 29: 3} {
		subs[i].Waiting, subs[i].Reason = waiting, dispatch.ReasonNamespaceBytes
	}
	subs[20].Waits = map[dispatch.Reason]int64{dispatch.ReasonNamespaceBytes: 1}
	publishEU(st, "a", 0.5, subs...)
	st.Tick(at(0), nil)
	o := st.Overview(cluster.Query{}, at(0))
	require.Len(t, o.Aggregates, 20)
	assert.Equal(t, 30, o.MatchingAggregates)
	for i, want := range []string{"public/ns28", "public/ns29", "public/ns20", "public/ns00", "public/ns01"} {
		assert.Equal(t, want, o.Aggregates[i].Scope)
	}
	assert.Equal(t, 1, st.Overview(cluster.Query{Filter: "ns28"}, at(0)).MatchingAggregates)
}
