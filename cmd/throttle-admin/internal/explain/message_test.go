package explain

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
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
