package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// TestHardest: the subscriptions of a row come in the order in which they wait.
func TestHardest(t *testing.T) {
	st := cluster.NewState()
	var subs []dispatch.SubscriptionStats
	for name, waiting := range map[string]int{"a": 0, "b": 1, "c": 0, "d": 300, "e": 0} {
		s := used(orders, name, 1)
		s.Waiting = waiting
		s.CaughtUp = name == "a"
		subs = append(subs, s)
	}
	publish(st, "r", at(0), subs...)
	st.Tick(at(0), nil)
	for most, want := range map[int]string{0: "dbcea", 2: "db", 9: "dbcea"} {
		row := st.Overview(cluster.Query{Size: 1, Most: most}, at(0)).Rows[0]
		names := ""
		for _, s := range row.Subscriptions {
			names += s.Subscription
		}
		assert.Equal(t, want, names)
		assert.Equal(t, 5-len(names), row.More)
	}
}

// TestOverview: pages, orders and filters; the totals are of all topics.
func TestOverview(t *testing.T) {
	st := cluster.NewState()
	var subs []dispatch.SubscriptionStats
	for n := range 25 {
		s := used(fmt.Sprintf("kafka://public/default/t%02d", n), "Billing", 1)
		s.Waiting, s.Backlog = n%3, int64(100*n)
		s.Limits[0].Rate = float64(1000 - n)
		subs = append(subs, s)
	}
	add(st, dispatch.Stats{Replica: "a", Time: 1, Subscriptions: subs, More: 7}, at(0))
	st.Tick(at(0), nil)
	topics := func(q cluster.Query) (names []string) {
		o := st.Overview(q, at(0))
		assert.Equal(t, 25, o.Totals.Topics)
		assert.Equal(t, 24, o.Totals.Waiting)
		assert.Equal(t, 7, o.Totals.More)
		assert.EqualValues(t, 30_000, o.Totals.Backlog)
		assert.Equal(t, map[cluster.Condition]int{cluster.Throttled: 16, cluster.Flowing: 9}, o.Totals.Conditions)
		for _, r := range o.Rows {
			names = append(names, r.Topic[len("kafka://public/default/"):])
		}
		return names
	}
	assert.Equal(t, []string{"t23", "t20", "t17"}, topics(cluster.Query{Size: 3}), "by how hard they are throttled")
	assert.Equal(t, []string{"t14", "t11", "t08"}, topics(cluster.Query{Size: 3, Page: 1}))
	assert.Equal(t, []string{"t24"}, topics(cluster.Query{Size: 8, Page: 3, Sort: "topic"}))
	assert.Equal(t, []string{"t24"}, topics(cluster.Query{Size: 8, Page: 9, Sort: "topic"}), "the last page")
	assert.Empty(t, topics(cluster.Query{Page: 3}))
	assert.Empty(t, topics(cluster.Query{Size: 8, Page: 4, Filter: "none"}))
	assert.Equal(t, []string{"t24", "t23"}, topics(cluster.Query{Size: 2, Sort: "backlog"}))
	assert.Equal(t, []string{"t00", "t01"}, topics(cluster.Query{Size: 2, Sort: "backlog", Reverse: true}))
	assert.Equal(t, []string{"t00", "t01"}, topics(cluster.Query{Size: 2, Sort: "limit"}))
	assert.Equal(t, []string{"t20", "t22", "t23"}, topics(cluster.Query{Size: 9, Sort: "topic", Filter: "T2 billing throttled"}))
	assert.Len(t, topics(cluster.Query{Size: 50, Filter: strings.Repeat("t1 ", 10) + "x"}), 10, "ten words count")
	assert.Len(t, topics(cluster.Query{Size: 50, Filter: "t1" + strings.Repeat(" ", cluster.MaxFilter) + "x"}), 10, "words beyond MaxFilter are ignored")
	unknown := used("kafka://public/default/unknown", "Billing", 1)
	unknown.Backlog = -1
	publish(st, "b", at(0), unknown)
	st.Tick(at(0), nil)
	for _, reverse := range []bool{false, true} {
		all := st.Overview(cluster.Query{Size: 50, Sort: "backlog", Reverse: reverse}, at(0)).Rows
		assert.Equal(t, unknown.Topic, all[len(all)-1].Topic, "what is unknown comes last")
	}
	st = cluster.NewState()
	add(st, dispatch.Stats{Replica: "a", Time: 1, Subscriptions: subs, More: 7}, at(0))
	st.Tick(at(0), nil)
	for _, sort := range cluster.Sorts {
		assert.Len(t, topics(cluster.Query{Size: 50, Sort: sort}), 25, sort)
	}
}
