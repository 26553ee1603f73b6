package explain

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestMessage: a message waits behind the calls that replicas say are waiting, and no longer when
// its subscription has caught up or the mode is shadow.
func TestMessage(t *testing.T) {
	s := newStores(t)
	s.admin(t, "set", "public/default", "messageRate=6/1m", "byteRate=1GiB")
	s.admin(t, "set-msg-rate", orders, "1000", "--subscription", "billing")
	message := func(args ...string) (r messageReport) {
		t.Helper()
		args = append([]string{"explain", "--message", orders, "-o", "json", "--subscription", "billing"}, args...)
		require.NoError(t, json.Unmarshal([]byte(s.admin(t, args...)), &r))
		return r
	}
	r := message()
	assert.Equal(t, []string{"It would not wait: no limit that applies is used up."}, r.Why)
	require.Len(t, r.Limits, 3)
	assert.Equal(t, messageLimit{
		Limit: dispatch.ReasonMessages, Scope: orders, From: "public/default", Rate: 0.1, Mode: policy.Enforce,
		Permits: 1, How: "free: no call waits for it",
	}, r.Limits[0])
	assert.Equal(t, int64(1024), r.Limits[1].Permits)
	assert.Equal(t, orders+"?subscription=billing", r.Limits[2].From)

	lim := s.open(t, throttle.WithReplica("replica-a"))
	sub, err := lim.Subscription(orders, "billing")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	defer callers.Wait()
	defer cancel()
	for range 4 { // the first one gets the permit of the first slot
		callers.Go(func() { _, _ = sub.Acquire(ctx, 1) })
	}
	throttletest.Until(t, "three calls wait", func() bool {
		r = message()
		return r.Limits[0].How == "(3 waiting calls in 1 replica + 1) x 1 / 0.1/s = 40s"
	})
	assert.InDelta(t, 40, r.Wait, 1e-9)
	assert.Equal(t, []string{
		"It would wait about 40s, for the message rate of " + orders + ", set by public/default.",
	}, r.Why)
	text := s.admin(t, "explain", "--message", orders, "--subscription", "billing", "--bytes", "5000")
	assert.Contains(t, text, "a message of subscription billing of "+orders+", 5000 bytes")
	assert.Regexp(t, `\nbyte rate +public/default +1073741824/s +5000 +0s\n`, text)
	assert.Contains(t, text, "\n- message rate: (3 waiting calls in 1 replica + 1) x 1 / 0.1/s = 40s\n")

	s.admin(t, "set", "public/default", "mode=shadow")
	throttletest.Until(t, "nothing waits in shadow mode", func() bool {
		return message().Limits[0].How == "does not wait, in shadow mode; else free: no call waits for it"
	})
	assert.Zero(t, message().Wait)
	s.admin(t, "set", "public/default", "mode=")
	sub.ReportBacklog(0)
	throttletest.Until(t, "it has caught up", func() bool {
		sub.ReportBacklog(0)
		return message().Limits[0].How == "does not apply: the subscription has no backlog"
	})
	s.admin(t, "pause", orders)
	r = message()
	assert.True(t, r.Forever)
	assert.Equal(t, []string{"It would wait until the scope is resumed: throttle-admin resume " + orders}, r.Why)
}

// TestMessageOfAUsedUpLimit: a limit may be used up while no call waits for it.
func TestMessageOfAUsedUpLimit(t *testing.T) {
	s := newStores(t)
	s.admin(t, "set-msg-rate", orders, "1/1h")
	lim := s.open(t)
	sub, err := lim.Subscription(orders, "billing")
	require.NoError(t, err)
	_, err = sub.Acquire(t.Context(), 1)
	require.NoError(t, err)
	_, _, ok := sub.TryAcquire(1)
	require.False(t, ok)
	throttletest.Until(t, "it is used up", func() bool {
		var r messageReport
		out := s.admin(t, "explain", "--message", orders, "-o", "json")
		require.NoError(t, json.Unmarshal([]byte(out), &r))
		return r.Wait > 3000 && r.Wait <= 7200
	})
}

// TestMessageOfADebt: a call takes all bytes of a message once one is free, and the next one waits
// for those that were not. They are paid also while no call waits.
func TestMessageOfADebt(t *testing.T) {
	s := newStores(t)
	s.admin(t, "set", orders, "byteRate=1000")
	message := func() (r messageReport) {
		out := s.admin(t, "explain", "--message", orders, "-o", "json", "--bytes", "5000")
		require.NoError(t, json.Unmarshal([]byte(out), &r))
		return r
	}
	sub, err := s.open(t).Subscription(orders, "billing")
	require.NoError(t, err)
	assert.Zero(t, message().Wait)
	_, err = sub.AcquireSized(t.Context(), 5000)
	require.NoError(t, err)
	throttletest.Until(t, "explain knows of the debt", func() bool {
		r := message()
		return r.Wait > 0 && r.Wait <= 5 && strings.Contains(r.Limits[0].How, " taken before they were free / 1000/s = ")
	})
	throttletest.Until(t, "the debt is paid", func() bool { return message().Wait == 0 })
}

// TestPredictions: the arithmetic of each kind of limit.
func TestPredictions(t *testing.T) {
	const key = "limit"
	replica := func(waiting int, held int64) dispatch.Stats {
		return dispatch.Stats{Subscriptions: []dispatch.SubscriptionStats{{
			Reason: dispatch.ReasonMessages, Waiting: waiting,
			Limits: []dispatch.LimitStats{{Key: key, Reason: dispatch.ReasonMessages, Held: held}},
		}}}
	}
	owing := func(waiting int, debt int64) dispatch.Stats {
		r := replica(waiting, 0)
		r.Subscriptions[0].Limits[0].Debt = debt
		return r
	}
	bytes := messageLimit{Limit: dispatch.ReasonBytes, Rate: 1000, Permits: 5000}
	for _, c := range []struct {
		name     string
		limit    messageLimit
		view     limitView
		replicas []dispatch.Stats
		wait     float64
		how      string
	}{
		{"calls in two replicas", messageLimit{Rate: 10, Permits: 1}, limitView{}, []dispatch.Stats{replica(3, 0), replica(2, 0)},
			0.6, "(5 waiting calls in 2 replicas + 1) x 1 / 10/s = 600ms"},
		{"bytes", messageLimit{Limit: dispatch.ReasonBytes, Rate: 1000, Permits: 500}, limitView{}, []dispatch.Stats{replica(3, 0)},
			1.5, "(3 waiting calls in 1 replica x 500 + 0 taken before they were free) / 1000/s = 1.5s"},
		{"strict", messageLimit{Rate: 4, Permits: 1}, limitView{Strict: true, Ahead: 1, Reserved: 4, Queued: 3}, nil,
			2, "(4 slots allocated + 3 callers queued + 1) / 4/s = 2s"},
		{"strict, and most calls wait in replicas", messageLimit{Rate: 4, Permits: 1}, limitView{Strict: true, Ahead: 1, Reserved: 4},
			[]dispatch.Stats{replica(7, 0)}, 2, "(7 waiting calls in 1 replica + 1) x 1 / 4/s = 2s"},
		{"a ramp", messageLimit{Rate: 10, Permits: 1}, limitView{Ramp: true, InForce: 2}, []dispatch.Stats{replica(1, 0)},
			1, "(1 waiting call in 1 replica + 1) x 1 / 2/s = 1s"},
		{"a ramp that is over", messageLimit{Rate: 10, Permits: 1}, limitView{InForce: 2}, []dispatch.Stats{replica(1, 0)},
			0.2, "(1 waiting call in 1 replica + 1) x 1 / 10/s = 200ms"},
		{"used up", messageLimit{Rate: 10, Permits: 1}, limitView{Ahead: 3}, []dispatch.Stats{replica(0, 0)},
			3, "used up: allocated for the next 3s, and no replica holds a permit"},
		{"permits that a replica holds", messageLimit{Rate: 10, Permits: 1}, limitView{Ahead: 3},
			[]dispatch.Stats{replica(0, 1)}, 0, "free: no call waits for it"},
		{"shadow", messageLimit{Rate: 10, Permits: 1, Mode: policy.Shadow}, limitView{}, []dispatch.Stats{replica(1, 0)},
			0, "does not wait, in shadow mode; else (1 waiting call in 1 replica + 1) x 1 / 10/s = 200ms"},
		{"a debt", bytes, limitView{Ahead: 0.1}, []dispatch.Stats{owing(0, 4900)}, 4.9, "4900 taken before they were free / 1000/s = 4.9s"},
		{"a debt of less than a batch", bytes, limitView{Ahead: 0.1}, []dispatch.Stats{owing(0, 150)}, 0, "free: no call waits for it"},
		{"a debt, and calls that wait", bytes, limitView{}, []dispatch.Stats{owing(1, 700), owing(1, 300)},
			11, "(2 waiting calls in 2 replicas x 5000 + 1000 taken before they were free) / 1000/s = 11s"},
		{"a limit of bytes that is used up for longer", bytes, limitView{Ahead: 6}, []dispatch.Stats{owing(0, 900)},
			6, "used up: allocated for the next 6s, and no replica holds a permit"},
		{"no rate yet", messageLimit{Permits: 1}, limitView{}, nil, 0, "its rate is not known yet"},
	} {
		x := explanation{replicas: c.replicas}
		c.view.Key = key
		x.predict(&c.limit, c.view)
		assert.InDelta(t, c.wait, c.limit.Wait, 1e-9, c.name)
		assert.Equal(t, c.how, c.limit.How, c.name)
	}
}

// TestMessageInFlight: a message waits for those in flight, though no limit is used up.
func TestMessageInFlight(t *testing.T) {
	s := newStores(t)
	s.admin(t, "set", orders, "messageRate=1000", "maxInFlight=2")
	sub, err := s.open(t).Subscription(orders, "billing")
	require.NoError(t, err)
	for range 2 {
		_, err = sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
	}
	throttletest.Until(t, "two messages are in flight", func() bool {
		var r messageReport
		out := s.admin(t, "explain", "--message", orders, "-o", "json")
		require.NoError(t, json.Unmarshal([]byte(out), &r))
		return slices.Equal(r.Why,
			[]string{"It would wait until one of 2 messages in flight is done, of at most 2 in each replica."})
	})
}

// TestCharged: a message is charged to one id: that of its tag, of its consumer, or the tenant.
func TestCharged(t *testing.T) {
	var entries []policy.Entry
	for _, id := range []policy.Scope{policy.TagScope("a"), policy.TagScope("b"), policy.TenantScope("public")} {
		entries = append(entries, policy.Entry{Scope: id, Settings: policy.Quota{Total: new(int64(5))}})
	}
	set, err := policy.NewSet(entries)
	require.NoError(t, err)
	running := func(owner string) replicaView {
		return replicaView{SubscriptionStats: dispatch.SubscriptionStats{Owner: owner}}
	}
	for _, c := range []struct {
		tag      string
		replicas []replicaView
		want     string
	}{
		{"", nil, "tenant:public"},
		{"a", nil, "tag:a"},
		{"unknown", nil, "tenant:public"},
		{"", []replicaView{running("tag:b")}, "tag:b"},
		{"", []replicaView{running("tag:unknown")}, "tenant:public"},
		{"", []replicaView{running("")}, "tenant:public"},
		{"a", []replicaView{running("tag:b")}, "tag:a"},
	} {
		x := explanation{Topic: orders, Replicas: c.replicas, set: set}
		var got []string
		for _, e := range entries {
			if id := e.Scope.String(); x.charged(id, c.tag) {
				got = append(got, id)
			}
		}
		assert.Equal(t, []string{c.want}, got, "%+v", c)
	}
}

// TestAccuracyMessage: the wait that explain predicts is about the one that a message then has.
func TestAccuracyMessage(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		for _, c := range []struct{ name, policy string }{
			{"fair", "messageRate=10"}, {"strict", "messageRate=10 sharing.mode=strict"}, {"bytes", "byteRate=1000"},
		} {
			s := newStores(t)
			s.admin(t, append([]string{"set", orders}, strings.Fields(c.policy)...)...)
			sub, err := s.open(t).Subscription(orders, "billing")
			require.NoError(m, err)
			ctx, cancel := context.WithCancel(t.Context())
			var callers sync.WaitGroup
			for range 100 {
				callers.Go(func() { _, _ = sub.AcquireSized(ctx, 100) })
			}
			took, predicted := waitOf(m, t, s, sub, "100")
			m.Within(c.name+": wait of a message, % of what explain predicted", 100*took/predicted, 75, 125)
			cancel()
			callers.Wait()
		}
		s := newStores(t)
		s.admin(t, "set", orders, "byteRate=1000")
		sub, err := s.open(t).Subscription(orders, "billing")
		require.NoError(m, err)
		_, err = sub.AcquireSized(t.Context(), 6000)
		require.NoError(m, err)
		took, predicted := waitOf(m, t, s, sub, "6000")
		m.Within("large messages: wait of the second, % of what explain predicted", 100*took/predicted, 75, 125)
	})
}

// waitOf returns how many seconds a message waits, and how many explain has predicted just before.
func waitOf(m *accuracy.M, t *testing.T, s stores, sub *dispatch.Subscription, bytes string) (took, predicted float64) {
	throttletest.Until(t, "explain knows that the limit is used up", func() bool {
		var r messageReport
		out := s.admin(t, "explain", "--message", orders, "-o", "json", "--bytes", bytes)
		require.NoError(m, json.Unmarshal([]byte(out), &r))
		predicted = r.Wait
		return predicted > 5
	})
	size, err := strconv.ParseInt(bytes, 10, 64)
	require.NoError(m, err)
	start := time.Now()
	_, err = sub.AcquireSized(t.Context(), size)
	require.NoError(m, err)
	return time.Since(start).Seconds(), predicted
}
