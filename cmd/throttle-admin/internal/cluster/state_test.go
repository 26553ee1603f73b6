package cluster_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/dispatch"
)

const (
	orders = "kafka://public/default/orders"
	events = "persistent://public/default/events"
)

var start = time.UnixMilli(1_800_000_000_000)

// at returns a time in seconds after the start.
func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * 1e9)) }

// used returns a subscription that has used n permits of a limit of 100/s.
func used(topic, name string, n int64) dispatch.SubscriptionStats {
	return dispatch.SubscriptionStats{
		Topic: topic, Subscription: name, Backlog: -1,
		Limits: []dispatch.LimitStats{{
			Key: topic, Reason: dispatch.ReasonMessages, Rate: 100, Granted: n + 5, Returned: 5, Allocations: n / 10,
		}},
	}
}

// add adds a record, as it is published.
func add(st *cluster.State, s dispatch.Stats, when time.Time) {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	r, err := cluster.Parse(text)
	if err != nil {
		panic(err)
	}
	st.Add(r, when)
}

// publish adds the record of a replica.
func publish(st *cluster.State, replica string, when time.Time, subs ...dispatch.SubscriptionStats) {
	add(st, dispatch.Stats{Replica: replica, Time: when.UnixMilli(), Subscriptions: subs}, when)
}

// rows returns all rows at a time.
func rows(st *cluster.State, now time.Time) []cluster.Row {
	st.Tick(now, nil)
	return st.Overview(cluster.Query{Size: 1000}, now).Rows
}

// TestRates: rates are differences of counters by the replicas' clocks, added up over replicas.
func TestRates(t *testing.T) {
	st := cluster.NewState()
	publish(st, "a", at(0), used(orders, "billing", 1000))
	publish(st, "b", at(0), used(orders, "billing", 0), used(orders, "alerts", 7))
	got := rows(st, at(0))
	require.Len(t, got, 1)
	assert.False(t, got[0].Rate.Known(), "one record is no rate")

	publish(st, "a", at(2), used(orders, "billing", 1040)) // 20/s
	publish(st, "b", at(1), used(orders, "billing", 10), used(orders, "alerts", 17))
	row := rows(st, at(2))[0]
	assert.Equal(t, cluster.Limit{Reason: dispatch.ReasonMessages, Rate: 100}, row.Limit)
	assert.InDelta(t, 40, float64(row.Rate), 1e-9)
	assert.Equal(t, 2, row.Replicas)
	require.Len(t, row.Subscriptions, 2)
	alerts, billing := row.Subscriptions[0], row.Subscriptions[1]
	assert.Equal(t, "alerts", alerts.Subscription)
	assert.InDelta(t, 0.25, float64(alerts.Share), 1e-9)
	assert.InDelta(t, 30, float64(billing.Rate), 1e-9)
	assert.InDelta(t, 3, float64(billing.Requests), 1e-9)
	assert.Equal(t, cluster.Flowing, row.Condition)

	publish(st, "a", at(2), used(orders, "billing", 9000))
	assert.Equal(t, row.Rate, rows(st, at(2))[0].Rate, "a record is counted once")

	publish(st, "a", at(3), used(orders, "billing", 3))
	publish(st, "b", at(3), used(orders, "billing", 30), used(orders, "alerts", 37))
	row = rows(st, at(3))[0]
	assert.False(t, row.Rate.Known(), "what a replica has done that started again is unknown")
	assert.False(t, row.Subscriptions[1].Rate.Known())
	assert.InDelta(t, 10, float64(row.Subscriptions[0].Rate), 1e-9)
	publish(st, "a", at(4), used(orders, "billing", 33))
	publish(st, "b", at(4), used(orders, "billing", 50), used(orders, "alerts", 47))
	assert.True(t, rows(st, at(4))[0].Rate.Known())
}

// TestLimitChanges: the rate against a limit is that of its own counter.
func TestLimitChanges(t *testing.T) {
	st := cluster.NewState()
	with := func(n int64, lower bool) dispatch.SubscriptionStats {
		s := used(orders, "billing", n)
		if lower { // counts only what it has granted
			s.Limits = append(s.Limits, dispatch.LimitStats{
				Key: "lower", Reason: dispatch.ReasonSubscriptionMessages, Rate: 5, Granted: n - 1_000_000,
			})
		}
		return s
	}
	publish(st, "a", at(0), with(1_000_000, false))
	publish(st, "a", at(1), with(1_000_050, false))
	assert.EqualValues(t, 50, rows(st, at(1))[0].Subscriptions[0].Rate)
	publish(st, "a", at(2), with(1_000_100, true))
	s := rows(st, at(2))[0].Subscriptions[0]
	assert.EqualValues(t, 5, s.Limit.Rate)
	assert.False(t, s.Rate.Known(), "it has no counter before")
	publish(st, "a", at(3), with(1_000_105, true))
	assert.EqualValues(t, 5, rows(st, at(3))[0].Subscriptions[0].Rate, "not smoothed with the rate of the other limit")
	publish(st, "a", at(4), with(1_000_110, false))
	rate := float64(rows(st, at(4))[0].Subscriptions[0].Rate)
	assert.Greater(t, rate, 5.0, "smoothed with its own")
	assert.Less(t, rate, 50.0)
}

// TestSharedLimit: a topic's limit is one that all its subscriptions have, and its rate is what
// they use of that one together.
func TestSharedLimit(t *testing.T) {
	st := cluster.NewState()
	limits := func(n int64, bytes, own, topic bool) (all []dispatch.LimitStats) {
		if topic {
			all = append(all, dispatch.LimitStats{Key: "topic", Reason: dispatch.ReasonMessages, Rate: 100, Granted: n})
		}
		if bytes {
			all = append(all, dispatch.LimitStats{Key: "bytes", Reason: dispatch.ReasonBytes, Rate: 1e6, Granted: 1000 * n})
		}
		if own {
			all = append(all, dispatch.LimitStats{Key: "own", Reason: dispatch.ReasonSubscriptionMessages, Rate: 10, Granted: n})
		}
		return all
	}
	row := func(topic bool) cluster.Row {
		for n := range 2 {
			a, b := used(orders, "a", 0), used(orders, "b", 0)
			a.Limits, b.Limits = limits(int64(5*n), true, true, topic), limits(int64(15*n), topic, false, true)
			publish(st, "r", at(float64(n)), a, b)
		}
		row := rows(st, at(1))[0]
		st = cluster.NewState()
		return row
	}
	r := row(true)
	assert.Equal(t, cluster.Limit{Reason: dispatch.ReasonMessages, Rate: 100}, r.Limit, "the lower one is not that of all")
	assert.EqualValues(t, 20, r.Rate)
	assert.EqualValues(t, 0.25, r.Subscriptions[0].Share)
	assert.EqualValues(t, 10, r.Subscriptions[0].Limit.Rate)
	r = row(false)
	assert.True(t, r.Several, "no limit is that of both")
	assert.Zero(t, r.Limit)
	assert.EqualValues(t, 20, r.Rate, "of messages")

	for n := range 2 {
		a, b := used(orders, "a", 0), used(orders, "b", 0)
		a.Limits, b.Limits = limits(int64(5*n), true, true, false), limits(int64(15*n), true, false, false)
		publish(st, "r", at(float64(n)), a, b)
	}
	r = rows(st, at(1))[0]
	assert.Equal(t, cluster.Limit{Reason: dispatch.ReasonBytes, Rate: 1e6}, r.Limit)
	assert.EqualValues(t, 20_000, r.Rate, "all in bytes")
	assert.EqualValues(t, 0.25, r.Subscriptions[0].Share)
	assert.EqualValues(t, 5, r.Subscriptions[0].Rate, "in messages, as its own limit")
}

// TestLeftOut: a subscription that a record has no room for is not idle, and one that is idle for a
// moment keeps what is known of it.
func TestLeftOut(t *testing.T) {
	st := cluster.NewState()
	waits := dispatch.Histogram{}
	record := func(second float64, more int, subs ...dispatch.SubscriptionStats) cluster.Row {
		add(st, dispatch.Stats{Replica: "a", Time: at(second).UnixMilli(), Subscriptions: subs, More: more}, at(second))
		return rows(st, at(second))[0]
	}
	read := func(n int64) dispatch.SubscriptionStats {
		waits.Buckets[5]++
		waits.Count++
		s := used(orders, "billing", n)
		s.WaitTimes = waits
		return s
	}
	record(0, 0, read(0))
	assert.EqualValues(t, 10, record(1, 0, read(10)).Rate)
	row := record(2, 0)
	assert.Equal(t, cluster.Idle, row.Condition)
	assert.Zero(t, row.Rate)
	assert.EqualValues(t, 0.3, row.WaitP99, "of the last minute")
	row = record(5, 0, read(22))
	assert.Equal(t, cluster.Throttled, row.Condition)
	assert.InDelta(t, 4*(1-math.Exp(-1)), float64(row.Rate), 0.4, "12 in the three seconds since it was published, smoothed")

	row = record(6, 7)
	assert.Equal(t, cluster.Unpublished, row.Condition)
	assert.False(t, row.Rate.Known())
	assert.Len(t, row.Subscriptions, 1)
	row = record(70, 7)
	assert.Equal(t, cluster.Idle, row.Condition, "after a minute")
	assert.Empty(t, row.Subscriptions)
}

// TestRamp: the limit is the present one.
func TestRamp(t *testing.T) {
	st := cluster.NewState()
	s := used(orders, "billing", 0)
	s.Limits[0].Rate, s.Limits[0].Ramp = 1000, 120
	publish(st, "a", at(0), s)
	assert.EqualValues(t, 120, rows(st, at(0))[0].Limit.Rate)
}

// TestSameName: of two entries with the same name, the first counts, and none stays.
func TestSameName(t *testing.T) {
	st := cluster.NewState()
	for n := range int64(3) {
		publish(st, "a", at(float64(n)), used(orders, "billing", 10*n), used(orders, "billing", 5000-n))
	}
	assert.InDelta(t, 10, float64(rows(st, at(2))[0].Rate), 1e-9)
	publish(st, "a", at(3))
	publish(st, "a", at(64))
	assert.Equal(t, cluster.Idle, rows(st, at(64))[0].Condition)
	assert.Empty(t, rows(st, at(64))[0].Subscriptions)
}

// TestConditions: each in one word.
func TestConditions(t *testing.T) {
	sub := func(change func(*dispatch.SubscriptionStats)) dispatch.SubscriptionStats {
		s := used(orders, "billing", 100)
		change(&s)
		return s
	}
	nothing := func(*dispatch.SubscriptionStats) {}
	for _, c := range []struct {
		condition cluster.Condition
		later     int64 // permits used a second later
		change    func(*dispatch.SubscriptionStats)
	}{
		{cluster.Idle, 0, nothing},
		{cluster.Flowing, 10, nothing},
		{cluster.Throttled, 10, func(s *dispatch.SubscriptionStats) { s.Waiting = 1 }},
		{cluster.Throttled, 0, func(s *dispatch.SubscriptionStats) { s.WaitTimes.Buckets[3], s.WaitTimes.Count = 1, 1 }},
		{cluster.Unavailable, 10, func(s *dispatch.SubscriptionStats) { s.Waiting, s.Reason = 1, dispatch.ReasonPermits }},
		{cluster.Paused, 0, func(s *dispatch.SubscriptionStats) { s.Waiting, s.Paused = 1, true }},
		{cluster.CaughtUp, 0, func(s *dispatch.SubscriptionStats) { s.CaughtUp, s.Exempt = true, true }},
	} {
		st := cluster.NewState()
		publish(st, "a", at(0), used(orders, "billing", 100))
		later := sub(c.change)
		later.Limits[0].Granted += c.later
		publish(st, "a", at(1), later)
		row := rows(st, at(1))[0]
		assert.Equal(t, c.condition, row.Condition)
		assert.Equal(t, c.condition, row.Subscriptions[0].Condition)
		assert.Equal(t, c.condition == cluster.CaughtUp, row.Uncounted, c.condition)
	}
}

// TestCaughtUp: what a subscription reads that has caught up is counted if it is charged to a
// limit, and then it is shown with that limit.
func TestCaughtUp(t *testing.T) {
	sub := func(name string, n int64, caughtUp bool, change func(*dispatch.SubscriptionStats)) dispatch.SubscriptionStats {
		s := used(orders, name, n)
		s.CaughtUp = caughtUp
		s.Limits[0].Bypassed = caughtUp
		change(&s)
		return s
	}
	aggregate := func(s *dispatch.SubscriptionStats) {
		s.Limits = append(s.Limits, dispatch.LimitStats{
			Key: "public/default", Reason: dispatch.ReasonNamespaceMessages, Rate: 1000, Granted: s.Limits[0].Granted,
		})
	}
	topic, namespace := cluster.Limit{Reason: dispatch.ReasonMessages, Rate: 100}, cluster.Limit{Reason: dispatch.ReasonNamespaceMessages, Rate: 1000}
	for name, c := range map[string]struct {
		change    func(*dispatch.SubscriptionStats)
		limit     cluster.Limit
		uncounted bool
	}{
		"nothing is charged":  {func(*dispatch.SubscriptionStats) {}, topic, true},
		"an older record":     {func(s *dispatch.SubscriptionStats) { s.Exempt, s.Limits[0].Bypassed = true, false }, topic, true},
		"caughtUp.throttle":   {func(s *dispatch.SubscriptionStats) { s.Limits[0].Bypassed = false }, topic, false},
		"an aggregate limit":  {aggregate, namespace, false},
		"it has no limit":     {func(s *dispatch.SubscriptionStats) { s.Limits = nil }, cluster.Limit{}, true},
		"its limit in shadow": {func(s *dispatch.SubscriptionStats) { aggregate(s); s.Limits[1].Shadow = true }, topic, true},
	} {
		st := cluster.NewState()
		for n := range 20 {
			publish(st, "a", at(float64(n)), sub("billing", int64(10*n), true, c.change))
			rows(st, at(float64(n)))
		}
		row := rows(st, at(19))[0]
		s := row.Subscriptions[0]
		assert.Equal(t, cluster.CaughtUp, row.Condition, name)
		assert.Equal(t, c.uncounted, row.Uncounted, name)
		assert.Equal(t, c.uncounted, s.Uncounted, name)
		assert.Equal(t, c.limit, row.Limit, name)
		assert.Equal(t, c.limit, s.Limit, name)
		points := st.Points(orders, 0, at(19))
		requests := points.Requests[len(points.Requests)-1]
		if c.uncounted {
			assert.False(t, row.Rate.Known(), name)
			assert.False(t, s.Rate.Known(), name)
			assert.True(t, math.IsNaN(float64(requests)), name)
		} else {
			assert.InDelta(t, 10, float64(row.Rate), 1e-9, name)
			assert.InDelta(t, 10, float64(s.Rate), 1e-9, name)
			assert.InDelta(t, 1, requests, 1e-6, name)
		}
		if len(s.Limit.Reason) > 0 {
			publish(st, "a", at(20))
			row = rows(st, at(20))[0]
			assert.Equal(t, cluster.Idle, row.Condition, name)
			assert.Zero(t, row.Rate, "%s: idle, and known to be", name)
		}
	}

	// Beside one that has not caught up, the topic is shown with the limit that this one waits for.
	st := cluster.NewState()
	for n := range int64(3) {
		publish(st, "r", at(float64(n)), sub("a", 30*n, true, aggregate), sub("b", 10*n, false, aggregate))
	}
	row := rows(st, at(2))[0]
	assert.Equal(t, topic, row.Limit)
	assert.InDelta(t, 10, float64(row.Rate), 1e-9, "permits of that limit")
	b, a := row.Subscriptions[0], row.Subscriptions[1] // by how hard they wait
	assert.Equal(t, namespace, a.Limit)
	assert.InDelta(t, 30, float64(a.Rate), 1e-9)
	assert.False(t, a.Share.Known(), "it has none")
	assert.Equal(t, topic, b.Limit)
	assert.EqualValues(t, 1, b.Share)
}

// TestStale: a replica that publishes no more is not counted, and forgotten after ten minutes.
func TestStale(t *testing.T) {
	st := cluster.NewState()
	for n := range 2 {
		publish(st, "a", at(float64(n)), used(orders, "billing", int64(10*n)))
		publish(st, "b", at(float64(n)), used(orders, "billing", int64(20*n)))
	}
	st.Present([]string{"a", "b"}, at(1))
	assert.InDelta(t, 30, float64(rows(st, at(1))[0].Rate), 1e-9)
	st.Present([]string{"a"}, at(2))
	row := rows(st, at(2))[0]
	assert.InDelta(t, 10, float64(row.Rate), 1e-9)
	assert.Equal(t, 1, row.Replicas)
	assert.Equal(t, cluster.Flowing, row.Condition)
	st.Present(nil, at(3))
	row = rows(st, at(100))[0]
	assert.Equal(t, cluster.Stale, row.Condition)
	assert.Equal(t, at(3), row.Since)
	assert.False(t, row.Rate.Known())
	publish(st, "b", at(101), used(orders, "billing", 500))
	assert.Equal(t, cluster.Flowing, rows(st, at(101))[0].Condition, "it is back")
	st.Present([]string{"b"}, at(102))
	st.Present([]string{"b"}, at(604))
	assert.Equal(t, 1, st.Overview(cluster.Query{}, at(604)).Totals.Replicas)
	st.Present(nil, at(700))
	st.Present(nil, at(1301))
	assert.Equal(t, cluster.Idle, rows(st, at(1301))[0].Condition)
	assert.Empty(t, rows(st, at(1301))[0].Subscriptions)

	publish(st, "a", at(1400), used(orders, "billing", 1))
	assert.Equal(t, cluster.Flowing, rows(st, at(1400))[0].Condition)
	publish(st, "a", at(1401))
	assert.Equal(t, cluster.Idle, rows(st, at(1401))[0].Condition, "an idle replica publishes no subscriptions")
	publish(st, "a", at(1470))
	assert.NotEmpty(t, st.Points(orders, 0, at(1500)).Times, "its points stay")
	rows(st, at(5080))
	assert.Empty(t, rows(st, at(5080)), "for an hour")
}

// TestUnknown: what no record says now is unknown, and neither 0 nor none.
func TestUnknown(t *testing.T) {
	st := cluster.NewState()
	sub := func(name string, change func(*dispatch.SubscriptionStats)) dispatch.SubscriptionStats {
		s := used(orders, name, 10)
		change(&s)
		return s
	}
	nothing := func(r cluster.Row) {
		t.Helper()
		assert.Equal(t, cluster.Limit{}, r.Limit)
		assert.False(t, r.Unlimited || r.Several || r.NotBehind || r.Uncounted)
		for name, n := range map[string]cluster.Number{
			"rate": r.Rate, "waiting": r.Waiting, "backlog": r.Backlog, "drained": r.DrainedIn, "wait": r.WaitP99,
		} {
			assert.False(t, n.Known(), name)
		}
		text, err := json.Marshal(r)
		require.NoError(t, err)
		assert.Contains(t, string(text), `"waiting":null`)
	}
	waits := func(s *dispatch.SubscriptionStats) { s.Waiting, s.Backlog, s.BehindSince = 7, 5000, start.UnixMilli() }
	for n := range 30 {
		publish(st, "a", at(float64(n)), sub("billing", func(s *dispatch.SubscriptionStats) { waits(s); s.Backlog -= int64(100 * n) }))
		st.Tick(at(float64(n)), nil)
	}
	row := rows(st, at(29))[0]
	assert.EqualValues(t, 7, row.Waiting)
	assert.InDelta(t, 21, float64(row.DrainedIn), 1e-6)
	assert.Zero(t, row.WaitP99)
	st.Present(nil, at(30))
	row = rows(st, at(30))[0]
	assert.Equal(t, cluster.Stale, row.Condition)
	assert.Equal(t, at(30), row.Since)
	nothing(row)
	s := row.Subscriptions[0]
	assert.False(t, s.Unlimited || s.Uncounted || s.NotBehind || s.Waiting.Known() || s.DrainedIn.Known() || s.WaitP99.Known())
	st.Present(nil, at(700))
	row = rows(st, at(700))[0]
	assert.Equal(t, cluster.Idle, row.Condition)
	nothing(row)

	// Of a record that has no room for all, only the limit is known.
	st = cluster.NewState()
	publish(st, "a", at(0), sub("billing", waits))
	assert.False(t, rows(st, at(0))[0].WaitP99.Known(), "one record says nothing about waits")
	publish(st, "a", at(1), sub("billing", waits))
	add(st, dispatch.Stats{Replica: "a", Time: at(2).UnixMilli(), More: 7}, at(2))
	row = rows(st, at(2))[0]
	assert.Equal(t, cluster.Unpublished, row.Condition)
	assert.EqualValues(t, 100, row.Limit.Rate)
	assert.False(t, row.NotBehind || row.Waiting.Known() || row.WaitP99.Known())

	// Without a known backlog, nobody can say whether a subscription is behind.
	for name, c := range map[string]struct {
		a, b     int64
		caughtUp bool // b
		not      bool
		since    int64 // a
		drained  bool  // it is known when
	}{
		"both are known":                 {5, 5, false, true, 0, true},
		"one is not":                     {5, -1, false, false, 0, false},
		"but caught up":                  {5, -1, true, true, 0, true},
		"one is behind":                  {5000, 5, false, false, 1, true},
		"one is behind, one not known":   {5000, -1, false, false, 1, false},
		"one is behind, one has none":    {5000, 0, true, false, 1, true},
		"one, of another, is not behind": {-1, 5000, false, false, 0, false},
	} {
		st := cluster.NewState()
		for n := range 20 {
			shrink := int64(0)
			if c.since > 0 {
				shrink = int64(100 * n)
			}
			publish(st, "a", at(float64(n)),
				sub("a", func(s *dispatch.SubscriptionStats) { s.Backlog, s.BehindSince = c.a-shrink, c.since }),
				sub("b", func(s *dispatch.SubscriptionStats) { s.Backlog, s.CaughtUp = c.b, c.caughtUp }))
			st.Tick(at(float64(n)), nil)
		}
		row := rows(st, at(19))[0]
		assert.Equal(t, c.not, row.NotBehind, name)
		assert.Equal(t, c.since > 0, !row.BehindSince.IsZero(), name)
		assert.Equal(t, c.drained, row.DrainedIn.Known(), name)
	}

	st = cluster.NewState()
	publish(st, "a", at(0), sub("billing", func(s *dispatch.SubscriptionStats) { s.Limits = nil }))
	row = rows(st, at(0))[0]
	assert.True(t, row.Unlimited)
	assert.True(t, row.Subscriptions[0].Unlimited)
}

// TestBacklogs: consumers of Kafka report their partitions, others the whole subscription.
func TestBacklogs(t *testing.T) {
	with := func(topic string, backlog, behindSince int64) dispatch.SubscriptionStats {
		s := used(topic, "billing", 1)
		s.Backlog, s.BehindSince = backlog, behindSince
		return s
	}
	for _, c := range []struct {
		topic string
		a, b  int64
		want  cluster.Number
	}{
		{orders, 100, 20, 120}, {orders, 100, -1, cluster.Unknown}, {orders, -1, -1, cluster.Unknown},
		{events, 100, 90, 100}, {events, 100, -1, 100}, {events, -1, -1, cluster.Unknown},
	} {
		st := cluster.NewState()
		publish(st, "a", at(0), with(c.topic, c.a, 5000))
		publish(st, "b", at(0), with(c.topic, c.b, 4000))
		row := rows(st, at(0))[0]
		assert.Equal(t, fmt.Sprint(c.want), fmt.Sprint(row.Backlog), "%v", c)
		assert.Equal(t, time.UnixMilli(4000), row.BehindSince, "the earliest")
	}
	st := cluster.NewState()
	a, b, other := with(orders, 50, 1), with(orders, 50, 1), with(orders, 3, 1)
	a.Owner, b.Owner, other.Subscription = "tag:a", "tag:b", "other"
	publish(st, "a", at(0), a, b, other)
	assert.EqualValues(t, 53, rows(st, at(0))[0].Backlog, "owners share a backlog")
	other.Backlog = -1
	publish(st, "a", at(1), a, b, other)
	row := rows(st, at(1))[0]
	assert.False(t, row.Backlog.Known(), "that of one subscription is unknown")
	other.CaughtUp = true
	publish(st, "a", at(2), a, b, other)
	assert.EqualValues(t, 50, rows(st, at(2))[0].Backlog, "what is caught up has none")
}

// TestBehindByAnotherClock: since when a topic is behind does not depend on its replica's clock.
func TestBehindByAnotherClock(t *testing.T) {
	for _, ahead := range []float64{0, -3600, 3600} {
		st := cluster.NewState()
		for second := range 3 {
			s := used(orders, "billing", int64(second))
			s.BehindSince = at(ahead - 30).UnixMilli()
			add(st, dispatch.Stats{Replica: "r", Time: at(ahead + float64(second)).UnixMilli(), Subscriptions: []dispatch.SubscriptionStats{s}}, at(float64(second)))
			assert.Equal(t, at(-30), rows(st, at(float64(second)))[0].BehindSince, "ahead by %v s", ahead)
		}
	}
}
