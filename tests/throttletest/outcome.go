package throttletest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// Outcome returns the outcome that f reports for its subscription, at most one; without a report it
// is ignored. It calls f up to three times.
func Outcome(
	t testing.TB, f func(*dispatch.Subscription),
) (o dispatch.Outcome, retryAfter time.Duration) {
	t.Helper()
	for _, c := range []struct {
		counts  string // as busy, so that they reach the permit store
		outcome dispatch.Outcome
	}{
		{policy.OutcomeBusy, dispatch.OutcomeBusy},
		{policy.OutcomeFailed, dispatch.OutcomeFailed},
		{policy.OutcomeTimeout, dispatch.OutcomeTimeout},
	} {
		told := answers(t, policy.Policy{Busy: policy.Busy{Outcomes: []string{c.counts}}}, f)
		if told == (schedule.Answers{}) {
			continue
		}
		require.InDelta(t, 1, told.OK+told.Busy, 0, "reports")
		if told.OK > 0 {
			return dispatch.OutcomeOK, 0
		}
		return c.outcome, time.Duration(told.RetryAfter * float64(time.Second))
	}
	return dispatch.OutcomeIgnored, 0
}

// answers returns how the reports of f reach the permit store.
func answers(t testing.TB, p policy.Policy, f func(*dispatch.Subscription)) schedule.Answers {
	t.Helper()
	store := &listener{Store: memory.New()}
	lim, err := dispatch.Open(t.Context(), dispatch.Config{
		Policies: dispatch.Fixed(p), Permits: store,
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, lim.Close()) }()
	sub, err := lim.Subscription("kafka://public/default/orders", "billing")
	require.NoError(t, err)
	f(sub)
	_, err = sub.Acquire(t.Context(), 1)
	if sub.Limited() { // an allocation carries the report
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			return store.heard() != schedule.Answers{}
		}, Patience, time.Millisecond)
	}
	return store.heard()
}

// A listener is a permit store that adds up the reports that it gets.
type listener struct {
	*memory.Store
	mu   sync.Mutex
	told schedule.Answers
}

func (l *listener) Do(ctx context.Context, requests []*permits.Request) {
	l.mu.Lock()
	for _, r := range requests {
		l.told.OK += r.Allocate.Answers.OK
		l.told.Busy += r.Allocate.Answers.Busy
		l.told.RetryAfter = max(l.told.RetryAfter, r.Allocate.Answers.RetryAfter)
	}
	l.mu.Unlock()
	l.Store.Do(ctx, requests)
}

func (l *listener) heard() schedule.Answers {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told
}
